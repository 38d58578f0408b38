"""Configurations: refused with a reason when they are made, and recipes that say what their paper says."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from headway.bench.tasks import translate
from headway.bench.tasks.pretrain.config import EncoderChoice, PretrainConfig, Text
from headway.bench.tasks.pretrain.recipes import RECIPES, paper, paper_multilingual, quick, recipe
from headway.bench.tasks.training.settings import Intervals, Optimisation
from headway.storage import settings


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Optimisation(steps=0, batch=1, learning_rate=1.0),
            "steps: expected a whole number of at least 1, got 0",
        ),
        (lambda: Optimisation(steps=1, batch=2.5, learning_rate=1.0), "batch: expected a whole number"),
        (lambda: Optimisation(steps=1, batch=6, accumulate=4, learning_rate=1.0), "batch: expected a multiple of 4"),
        (lambda: Optimisation(steps=1, batch=1, learning_rate=0.0), "learning_rate: expected a finite number above 0"),
        (
            lambda: Optimisation(steps=1, batch=1, learning_rate=float("nan")),
            "learning_rate: expected a finite number above 0, got nan",
        ),
        (
            lambda: Optimisation(steps=1, batch=1, learning_rate=float("inf")),
            "learning_rate: expected a finite number above 0, got inf",
        ),
        (lambda: Optimisation(steps=1, batch=1, learning_rate=1.0, warmup=1.0), "warmup: expected a share"),
        (lambda: Optimisation(steps=1, batch=1, learning_rate=1.0, weight_decay=-0.1), "weight_decay: expected"),
        (lambda: Optimisation(steps=1, batch=1, learning_rate=1.0, clip=0.0), "clip: expected above 0"),
        (lambda: Intervals(keep=0), "keep: expected a whole number of at least 1, got 0"),
        (lambda: Text(corpus="book.txt"), "corpus: expected a tuple of at least one source, got 'book.txt'"),
        (lambda: Text(corpus=()), "corpus: expected a tuple"),
        (lambda: Text(kind="bpe"), "kind: expected one of wordpiece, unigram"),
        (lambda: Text(length=2), "length: expected a whole number of at least 3"),
        (lambda: Text(validation=0.0), "validation: expected between 0 and 1"),
        (lambda: Text(mask_probability=1.0), "mask_probability: expected between 0 and 1"),
        (lambda: EncoderChoice(preset="huge"), "preset: expected one of bert-base, bert-small, tiny, got 'huge'"),
        (lambda: EncoderChoice(encoding="dite-rel"), "Did you mean 'diet-rel'"),
        (lambda: EncoderChoice(encoding="alibi:sharing=layer"), "sharing: alibi has no"),
        (lambda: replace(quick(), seed=-1), "seed: expected a whole number of at least 0"),
    ],
)
def test_bad_values_are_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_paper_recipe_is_table_7_of_chen_et_al():
    english, multilingual = paper(), paper_multilingual()
    assert (english.optimisation.steps, multilingual.optimisation.steps) == (500_000, 125_000)
    assert (english.text.length, multilingual.text.length) == (128, 512)
    for config in (english, multilingual):
        assert config.optimisation.learning_rate == 0.0018
        assert config.optimisation.warmup == 0.025
        assert config.optimisation.batch == 4096
        assert config.intervals.checkpoint == 20_000
        encoder = config.model.config()
        assert (encoder.num_hidden_layers, encoder.hidden_size, encoder.num_attention_heads) == (12, 768, 12)
    assert (multilingual.text.kind, multilingual.text.vocab_size) == ("unigram", 120_000)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_whole_and_can_be_written(name):
    config = recipe(name).resolved("cpu")
    assert json.loads(json.dumps(settings(config)))["optimisation"]["bf16"] is False


def test_an_unknown_recipe_is_answered_with_all_names():
    with pytest.raises(ValueError, match="recipe: expected one of quick, small, paper, paper-multilingual, got 'larg'"):
        recipe("larg")


def test_the_device_decides_what_is_left_open():
    plan = quick().optimisation
    assert (plan.resolved("cuda").bf16, plan.resolved("cuda").compile) == (True, True)
    assert (plan.resolved("cpu").bf16, plan.resolved("cpu").compile) == (False, False)
    asked = replace(plan, bf16=True, compile=False)
    assert asked.resolved("cpu") == asked.resolved("cuda") == asked


def test_a_folder_is_named_by_what_changes_the_result():
    config = quick().resolved("cpu")
    assert config.default_folder.startswith("runs/pretrain-tiny-diet-rel-")
    assert replace(config, seed=1).default_folder != config.default_folder
    assert (
        replace(config, model=EncoderChoice(encoding="diet-rel:init_std=0.1")).default_folder != config.default_folder
    )
    assert replace(
        config, intervals=Intervals(log=1), optimisation=replace(config.optimisation, accumulate=2)
    ).default_folder == (config.default_folder)


def test_the_model_has_room_for_the_text():
    choice = EncoderChoice(preset="tiny")
    assert choice.config(length=64).max_position_embeddings == 128  # the preset's
    assert choice.config(length=500).max_position_embeddings == 500


def test_the_built_in_language_has_words_and_other_texts_have_pieces():
    assert Text(corpus=("builtin:500",)).trained_kind == "word"
    assert Text(corpus=("builtin", "book.txt")).trained_kind == "wordpiece"
    assert Text(corpus=("builtin",), kind="unigram").trained_kind == "unigram"
    assert Text(corpus=("en=builtin:300", "de=builtin:300:invented")).trained_kind == "word"


def test_a_configuration_does_not_change():
    config = PretrainConfig(
        model=EncoderChoice(), text=Text(), optimisation=Optimisation(steps=1, batch=1, learning_rate=1.0)
    )
    with pytest.raises(AttributeError):
        config.seed = 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoding": "t5"}, "encoding: it is chosen by --encoding"),
        ({"sharing": "layer"}, "sharing: it is part of the encoding"),
        ({"vocab_size": 77}, "vocab_size: it is that of the tokenizer"),
        ({"hidden_dropout_prob": "no"}, "hidden_dropout_prob: expected a share"),
        ({"layer_norm_eps": "x"}, "layer_norm_eps: expected a number"),
        ({"type_vocab_size": 0}, "type_vocab_size: expected a whole number"),
    ],
)
@pytest.mark.parametrize("choice", [EncoderChoice, translate.TranslatorChoice])
def test_settings_that_a_run_would_overrule_or_break_on(choice, changes, message):
    if choice is translate.TranslatorChoice and "type_vocab_size" in changes:
        pytest.skip("translation has no segments")
    with pytest.raises(ValueError, match=message):
        choice(changes=changes)


def test_settings_without_room_for_the_text():
    small = {"max_position_embeddings": 8}
    with pytest.raises(ValueError, match="max_position_embeddings: 8 positions are too few for texts of 64 tokens"):
        EncoderChoice(changes=small).config(length=64)
    with pytest.raises(ValueError, match="too few for texts of 64 tokens"):
        translate.TranslatorChoice(changes=small).config(length=64)
    assert EncoderChoice(changes={"max_position_embeddings": 99}).config(length=64).max_position_embeddings == 99
