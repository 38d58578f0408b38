"""Table 1 of Wennberg and Henter (2021): criteria as measured, against what each encoding is by construction."""

from __future__ import annotations

import pytest

from headway.encodings import ENCODINGS
from headway.encodings.criteria import NAMES, PUBLISHED, measure_criteria

WITHOUT_PARAMETERS = {"none", "sinusoidal", "rope", "alibi"}
RELATIVE = {"shaw", "music-transformer", "transformer-xl", "t5", "rel-scalar", "diet-rel", "tisa", "rope", "alibi"}
MEETS_WORDS = {"sinusoidal", "learned", "shaw", "music-transformer", "transformer-xl", "rope"}  # E_P in the input, or q


@pytest.fixture(scope="module")
def found():
    return {row.name: row for row in measure_criteria()}


def test_every_encoding_is_measured(found):
    assert list(found) == list(ENCODINGS)
    assert set(PUBLISHED) <= set(ENCODINGS)


def test_only_tisa_meets_all_six_as_the_paper_says(found):
    """Sec. 6: TISA is the first to satisfy all six."""
    assert [name for name, row in found.items() if all(getattr(row, each) for each in NAMES)] == ["tisa"]


def test_what_the_paper_says_in_words_is_what_is_measured(found):
    assert {name: row.differences for name, row in found.items() if row.differences} == {}


@pytest.mark.parametrize(
    ("criterion", "expected"),
    [
        ("any_length", {name for name, kind in ENCODINGS.items() if kind.extends}),
        ("any_distance", {"sinusoidal", "transformer-xl", "tisa", "rope", "alibi"}),  # the others clip, bucket or end
        ("data_driven", set(ENCODINGS) - WITHOUT_PARAMETERS),
        ("parameter_efficient", WITHOUT_PARAMETERS | {"t5", "tisa"}),
        ("translation_invariant", RELATIVE | {"none"}),
        ("parallelizable", {name for name, kind in ENCODINGS.items() if not kind.meets_query}),
        ("interpretable", set(ENCODINGS) - MEETS_WORDS),
    ],
)
def test_a_criterion_is_met_by_those_that_meet_it_by_construction(found, criterion, expected):
    assert {name for name, row in found.items() if getattr(row, criterion)} == expected


def test_parameters_are_those_of_bert_base(found):
    assert found["tisa"].parameters == 3 * 5 * 12 * 12  # Sec. 4.2: 3 S H L
    assert found["learned"].parameters == 512 * 768


def test_a_difference_from_the_paper_is_named(found, monkeypatch):
    monkeypatch.setitem(PUBLISHED, "rope", {"data_driven": True, "translation_invariant": True})
    assert measure_criteria(("rope",))[0].differences == ("data_driven",)
