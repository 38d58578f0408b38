"""Configurations of translation models: the papers' sizes, and what is refused."""

from __future__ import annotations

import pytest
import torch

from headway.models.translation import TRANSLATION_PRESETS, TranslationConfig, TranslationModel, translation_preset


def test_the_papers_sizes():
    """Vaswani et al. (2017), Table 3: base has 65 million parameters with 37,000 words; Shaw's base is narrower."""
    with torch.device("meta"):
        counts = {
            name: sum(p.numel() for p in TranslationModel(translation_preset(name, vocab_size=37000)).parameters())
            for name in ("shaw-base", "diet-base", "big")
        }
    assert round(counts["diet-base"] / 1e6) in (63, 64, 65)
    assert round(counts["big"] / 1e6) in range(209, 216)
    assert counts["diet-base"] - counts["shaw-base"] == 12 * 1024 * (2 * 512 + 1)


def test_presets_are_configurations():
    for name in TRANSLATION_PRESETS:
        assert translation_preset(name, encoding="t5").encoding == "t5"
    with pytest.raises(ValueError, match="preset: expected one of shaw-base"):
        translation_preset("huge")


def test_buckets_are_one_way_in_the_decoder_only():
    config = translation_preset("tiny", encoding="t5")
    assert config.build_encoder().bidirectional
    assert not config.build_decoder().bidirectional
    asked = translation_preset("tiny", encoding="t5:bidirectional=true")
    assert asked.build_decoder().bidirectional


def test_tables_per_layer_and_head_as_the_papers_vary_them():
    shapes = {
        sharing: tuple(
            translation_preset("shaw-base", encoding=f"shaw:sharing={sharing}").build_decoder().key_table.shape
        )
        for sharing in ("none", "head", "layer")
    }
    assert shapes == {"none": (6, 8, 33, 64), "head": (6, 1, 33, 64), "layer": (1, 8, 33, 64)}


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"hidden_size": 30, "num_attention_heads": 4}, "hidden_size: expected a multiple of num_attention_heads"),
        ({"encoding": "tissa"}, "Did you mean 'tisa'"),
        ({"clip": 8}, "clip: it is an option of the encoding"),
        ({"decoder_layer": 2}, "Did you mean 'decoder_layers'"),
        ({"encoding": "sinusoidal:clip=8"}, "options: sinusoidal has amplitude"),
        ({"norm": "both"}, "norm: expected one of post, pre"),
        ({"cross": "all"}, "cross: expected one of none, same"),
        ({"label_smoothing": 1.0}, "label_smoothing: expected a share of at least 0 and below 1"),
        ({"eos_token_id": 0}, "eos_token_id: expected another token than pad_token_id"),
        ({"vocab_size": 2}, "eos_token_id: expected 0 to 1"),
        ({"encoder_layers": 0}, "encoder_layers: expected a whole number"),
    ],
)
def test_what_is_wrong_is_named(choices, message):
    with pytest.raises(ValueError, match=message):
        TranslationConfig(**choices)


@pytest.mark.parametrize("name", ["sinusoidal", "learned", "none", "rope", "transformer-xl", "learned+tisa"])
def test_cross_attention_takes_only_what_relates_two_sides(name):
    with pytest.raises(NotImplementedError, match=r"cross: .* relates no target"):
        translation_preset("tiny", encoding=name, cross="same")


def test_the_start_token_is_bos_unless_given():
    assert TranslationConfig(bos_token_id=5).decoder_start_token_id == 5
    assert TranslationConfig(decoder_start_token_id=0).decoder_start_token_id == 0
