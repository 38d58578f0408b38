"""Settings are read from configurations, with the library's defaults."""

from __future__ import annotations

import pytest

from headway.bench.claims.ledger import CLAIMS
from headway.bench.claims.settings import Setting, complete_choice, head_width
from headway.encodings import ENCODINGS, EncodingChoice, encoding
from headway.models import PRESETS, preset
from headway.models.translation import TRANSLATION_PRESETS


def setting(text, attention="full"):
    """A complete setting, as of a result."""
    return Setting(complete_choice(EncodingChoice.parse(text)), attention)


@pytest.mark.parametrize("name", ENCODINGS)
def test_what_is_filled_in_builds_the_same_encoding(name):
    """Every parameter has the shape that it has when nothing is filled in."""
    sizes = {"num_layers": 2, "num_heads": 2, "head_dim": 8, "max_length": 16}
    complete = complete_choice(EncodingChoice(name), 8)
    shapes, plain = (
        {key: value.shape for key, value in encoding(choice, **sizes).state_dict().items()}
        for choice in (complete, name)
    )
    assert shapes == plain
    assert Setting(complete).has_parameters == bool(dict(encoding(name, **sizes).named_parameters()))


def test_head_widths_are_the_presets():
    for name in PRESETS:
        assert head_width(name) == preset(name).head_dim
    assert {head_width(name) for name in TRANSLATION_PRESETS} <= {16, 32, 64}
    assert head_width("nobody") is None


def test_what_a_configuration_leaves_open_is_filled_in():
    old = {"preset": "bert-small", "encoding": "diet-abs", "sharing": None, "segments": "input", "options": {}}
    new = {"preset": "bert-small", "encoding": "diet-abs:sharing=none,segments=input"}
    said = Setting.of(old)
    assert said == Setting.of(new)
    assert (said.encoding.options["rank"], said.encoding.sharing, said.encoding.segments) == (64, "none", None)
    changed = {"attention": "linformer", "projected_length": 32}
    said = Setting.of({"preset": "bert-small", "encoding": "learned+tisa", "changes": changed})
    assert said.encoding.options["kernels"] == 5 and said.attention == "linformer"
    assert str(said).startswith("learned+tisa:") and str(said).endswith(", linformer")


def test_a_claim_takes_defaults_for_options_and_any_sharing():
    both, clipped = setting("shaw"), setting("shaw:clip=2")
    asked = Setting.parse("shaw")
    assert asked.fits(both) and not asked.fits(clipped)
    assert Setting.parse("shaw:clip=2").fits(clipped)
    assert asked.fits(setting("shaw:sharing=head"))
    assert not Setting.parse("shaw:sharing=none").fits(setting("shaw:sharing=head"))
    assert min([setting("shaw:sharing=head"), both], key=asked.preference) == both
    assert not Setting.parse("learned").fits(setting("learned", "linformer"))
    assert Setting.parse("learned", "linformer").fits(setting("learned", "linformer"))
    assert Setting.parse("diet-abs").fits(setting("diet-abs:rank=16"))  # whichever a head's width is
    assert not Setting.parse("diet-abs:rank=8").fits(setting("diet-abs:rank=16"))


def test_an_option_that_no_claim_names_is_another_setting():
    usual, quiet = setting("sinusoidal"), setting("sinusoidal:amplitude=0.03")
    assert usual != quiet
    assert Setting.parse("sinusoidal").fits(usual)
    assert not Setting.parse("sinusoidal").fits(quiet)


def test_an_encoding_with_two_names_counts_under_both():
    assert ENCODINGS["rel-scalar"].__mro__[1] is ENCODINGS["diet-rel"]
    assert Setting.parse("rel-scalar:sharing=layer").fits(setting("diet-rel:sharing=layer"))
    assert Setting.parse("diet-rel").fits(setting("rel-scalar"))
    assert not Setting.parse("rel-scalar").fits(setting("abs-scalar"))


def test_folders_are_named_by_all_that_a_claim_says():
    sides = {
        setting
        for claim in CLAIMS
        for contrast in (*claim.contrasts, *claim.stand_in)
        for setting in contrast.sides
        if setting is not None and setting.encoding.segments is None
    }
    assert len({each.folder for each in sides}) == len(sides) > 10
    assert Setting.parse("diet-abs:rank=64,sharing=layer", "linformer").folder == "diet-abs-rank64-layer-linformer"
