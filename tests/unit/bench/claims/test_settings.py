"""Settings are read from configurations, with the library's defaults."""

from __future__ import annotations

import inspect

import pytest

from headway.bench.claims.ledger import CLAIMS
from headway.bench.claims.settings import HEAD_WIDTH, OPTIONS, SHARING, WITHOUT_PARAMETERS, Choice, Setting
from headway.encodings import ENCODINGS, encoding
from headway.models import PRESETS
from headway.models.translation import TRANSLATION_PRESETS


def test_defaults_are_the_librarys():
    assert {name: kind.default_sharing for name, kind in ENCODINGS.items() if kind.default_sharing} == SHARING
    for name, options in OPTIONS.items():
        parameters = inspect.signature(ENCODINGS[name]).parameters
        assert options == {option: parameters[option].default for option in options}, name


def test_head_widths_are_the_presets():
    for name, sizes in [*PRESETS.items(), *TRANSLATION_PRESETS.items()]:
        assert sizes["hidden_size"] // sizes["num_attention_heads"] == HEAD_WIDTH[name]


@pytest.mark.parametrize("name", ENCODINGS)
def test_who_has_parameters(name):
    built = encoding(name, num_layers=2, num_heads=2, head_dim=8, max_length=16)
    assert Setting(name).has_parameters == (sum(1 for _ in built.parameters()) > 0) == (name not in WITHOUT_PARAMETERS)


def test_what_a_configuration_leaves_open_is_filled_in():
    said = Setting.of({"preset": "bert-small", "encoding": "diet-abs", "sharing": None, "options": {}, "changes": {}})
    assert said == Setting("diet-abs", "none", (("rank", 64),))
    changed = {"attention": "linformer", "projected_length": 32}
    said = Setting.of({"preset": "bert-small", "encoding": "learned+tisa", "options": {}, "changes": changed})
    assert said == Setting("learned+tisa", "none", (("kernels", 5),), "linformer")


def test_a_choice_takes_defaults_for_what_it_does_not_name():
    both = Setting.of({"encoding": "shaw", "options": {}})
    clipped = Setting.of({"encoding": "shaw", "options": {"clip": 2}})
    assert Choice(encoding="shaw").fits(both)
    assert not Choice(encoding="shaw").fits(clipped)
    assert Choice(encoding="shaw", options={"clip": 2}).fits(clipped)
    assert Choice(encoding="shaw").fits(Setting.of({"encoding": "shaw", "sharing": "head"}))
    assert not Choice(encoding="shaw", sharing="none").fits(Setting.of({"encoding": "shaw", "sharing": "head"}))
    assert not Choice(encoding="learned").fits(Setting("learned", attention="linformer"))


def test_an_option_that_no_claim_names_is_another_setting():
    usual, quiet = (Setting.of({"encoding": "sinusoidal", "options": given}) for given in ({}, {"amplitude": 0.03}))
    assert usual != quiet
    assert Choice(encoding="sinusoidal").fits(usual)
    assert not Choice(encoding="sinusoidal").fits(quiet)


def test_an_option_that_no_encoding_has_is_refused():
    with pytest.raises(ValueError, match=r"options: expected of shaw any of .*clip.*, got rank"):
        Choice(encoding="shaw", options={"rank": 3}).fits(Setting("shaw"))


def test_every_choice_of_the_ledger_is_an_encoding_that_can_be_made():
    for claim in CLAIMS:
        for contrast in (*claim.contrasts, *claim.stand_in):
            for choice in (contrast.better, contrast.than):
                if isinstance(choice, Choice) and contrast.measure != "parameters":
                    sizes = {"num_layers": 2, "num_heads": 2, "head_dim": 8, "max_length": 16}
                    encoding(choice.encoding, sharing=choice.sharing, **choice.options, **sizes)
                    choice.fits(Setting.of({"encoding": choice.encoding}))
