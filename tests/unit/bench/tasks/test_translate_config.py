"""Translation configurations: refused with a reason when they are made, and recipes that say what their papers say."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from headway.bench.data.translation.cleaning import Rules
from headway.bench.tasks.training.settings import Intervals
from headway.bench.tasks.translate.config import Optimisation, ParallelData, TranslateConfig, TranslatorChoice
from headway.bench.tasks.translate.data import open_texts
from headway.bench.tasks.translate.recipes import RECIPES, diet_base, quick, recipe, shaw_base, shaw_big
from headway.models.translation import Decoding
from headway.storage import settings


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Optimisation(steps=0), "steps: expected a whole number of at least 1, got 0"),
        (lambda: Optimisation(steps=1, tokens=4), "tokens: expected a whole number of at least 8, got 4"),
        (lambda: Optimisation(steps=1, step_tokens=0), "step_tokens: expected a whole number of at least 1"),
        (lambda: Optimisation(steps=1, warmup=0), "warmup: expected a whole number of at least 1"),
        (lambda: Optimisation(steps=1, learning_rate=0.0), "learning_rate: expected a finite number above 0"),
        (lambda: Optimisation(steps=1, learning_rate=float("inf")), "learning_rate: expected a finite .*, got inf"),
        (lambda: Optimisation(steps=1, clip=0.0), "clip: expected above 0"),
        (lambda: ParallelData(kind="wordpiece"), "kind: expected one of bpe, unigram, word"),
        (lambda: ParallelData(on_error="ignore"), "on_error: expected raise or skip"),
        (lambda: ParallelData(held_out=0.0), "held_out: expected a share above 0"),
        (lambda: ParallelData(dev_target="a.de"), "dev_source: expected one beside dev_target='a.de'"),
        (lambda: ParallelData(translated=-1), "translated: expected a whole number of at least 0"),
        (lambda: ParallelData(test={"dev": "a,b"}), "test: dev is the name of the text to evaluate on"),
        (lambda: Rules(max_tokens=1), "max_tokens: expected an integer of at least 2"),
        (lambda: Rules(max_ratio=0.5), "max_ratio: expected at least 1"),
        (lambda: TranslatorChoice(preset="huge"), "preset: expected one of shaw-base, diet-base, big, small, tiny"),
        (lambda: TranslatorChoice(encoding="dite-rel"), "Did you mean 'diet-rel'"),
        (lambda: TranslatorChoice(encoding="t5:clip=3"), "clip"),
        (lambda: replace(quick(), save="worst"), "save: expected one of average, best, last, got 'worst'"),
        (lambda: replace(quick(), average=0), "average: expected a whole number of at least 1"),
        (lambda: replace(quick(), seed=-1), "seed: expected a whole number of at least 0"),
        (
            lambda: replace(quick(), save="best", intervals=Intervals(evaluate=3, checkpoint=4)),
            "to save the best checkpoint, .* every 3 steps and a checkpoint every 4. Pass --set intervals.evaluate=4",
        ),
        (lambda: recipe("papre"), "recipe: expected one of quick, small, shaw-base, shaw-big, diet-base, got 'papre'"),
    ],
)
def test_bad_values_are_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_recipes_are_section_4_1_of_shaw_et_al():
    base, big = shaw_base().resolved("cuda"), shaw_big().resolved("cuda")
    for config in (base, big):
        plan = config.optimisation
        assert (plan.tokens, plan.step_tokens, plan.warmup) == (4096, 25_000, 4000)
        assert (plan.betas, plan.epsilon, plan.clip, plan.bf16) == ((0.9, 0.98), 1e-9, None, True)
        assert config.data.vocab_size == 32_768
        model = config.model.config()
        assert (model.encoder_layers, model.decoder_layers, model.label_smoothing) == (6, 6, 0.1)
        assert model.head_dim == 64
        assert plan.rate(3999) == pytest.approx((model.hidden_size * 4000) ** -0.5)  # Vaswani et al., Eq. (3), its peak
    model = base.model.config()
    assert (model.hidden_size, model.num_attention_heads, model.intermediate_size) == (512, 8, 1024)
    assert (model.hidden_dropout_prob, model.encoding) == (0.1, "shaw:clip=16,sharing=none")
    assert (base.optimisation.steps, base.save) == (100_000, "last")
    model = big.model.config()
    assert (model.hidden_size, model.num_attention_heads, model.intermediate_size) == (1024, 16, 4096)
    assert (model.hidden_dropout_prob, model.encoding) == (0.3, "shaw:clip=8,sharing=head")
    assert (big.optimisation.steps, big.save, big.average) == (300_000, "average", 20)


def test_the_recipe_of_chen_et_al():
    config = diet_base()
    assert config.optimisation.steps == 250_000
    model = config.model.config()
    assert (model.encoder_layers, model.intermediate_size, model.encoding) == (6, 2048, "diet-rel")


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_can_be_written_down_and_named(name):
    config = recipe(name)
    json.dumps(settings(config), allow_nan=False)
    folder = config.default_folder
    assert folder.startswith(f"runs/translate-{config.model.preset}-{config.model.choice.name}-")
    assert replace(config, intervals=replace(config.intervals, log=7)).default_folder == folder
    assert replace(config, seed=5).default_folder != folder
    assert replace(config, intervals=replace(config.intervals, checkpoint=2, evaluate=2)).default_folder != folder


def test_configurations_without_test_sets_have_the_hash_that_they_had():
    """`test`, `decoding` and `lowercase` came later: at their defaults they are not part of the description."""
    said = settings(quick())
    assert not {"decoding", "lowercase"} & set(said) and "test" not in said["data"]
    changed = replace(quick(), decoding=Decoding(beam=10))
    assert settings(changed)["decoding"]["beam"] == 10
    assert changed.default_folder != quick().default_folder


def test_the_model_has_room_for_the_longest_pair():
    config = TranslateConfig(
        model=TranslatorChoice(preset="tiny"),
        data=ParallelData(),
        optimisation=Optimisation(steps=1),
        intervals=Intervals(),
    )
    assert config.model.config(length=300).max_position_embeddings == 300
    assert config.model.config(length=3).max_position_embeddings == 128


def test_training_and_dev_share_no_sentence(tmp_path):
    """Not in files that are called like the built-in language, and not in one split of the Hub."""
    for name in ("mine", "builtin"):
        for side in ("en", "de"):
            (tmp_path / f"{name}.{side}").write_text("".join(f"{side} {at}\n" for at in range(500)))
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path)
            train, dev = open_texts(ParallelData(source=f"{name}.en", target=f"{name}.de", held_out=0.1))
            sides = [{pair.source for pair in each} for each in (train, dev)]
        assert not sides[0] & sides[1] and len(sides[0] | sides[1]) == 500 and len(sides[1]) > 20
    with pytest.raises(ValueError, match=r"dev_source: expected one beside hub:wmt14:de-en:train.*hub:wmt14:de-en\."):
        open_texts(ParallelData(source="hub:wmt14:de-en:train", languages="de-en"))
    with pytest.raises(ValueError, match="joins files, which have no dev split, and Hub datasets, which do"):
        open_texts(ParallelData(source=f"{tmp_path}/mine.en+hub:wmt14:de-en", languages="en-de"))
    open_texts(ParallelData(source="hub:wmt14:de-en:train", dev_source="hub:wmt14:de-en:test", languages="de-en"))
