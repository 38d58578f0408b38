"""One value for a choice of encoding: its text, equality, what it refuses, and what it builds."""

import pickle
from dataclasses import replace

import pytest

from headway.encodings import ENCODINGS, Dimensions, EncodingChoice, Together, encoding
from headway.encodings.choice import with_one_encoding

DIMS = Dimensions(num_layers=2, num_heads=2, head_dim=4, max_length=16)
SIZES = {"num_layers": 2, "num_heads": 2, "head_dim": 4, "max_length": 16}
CHOICES = [
    EncodingChoice("none"),
    EncodingChoice("diet-abs", {"rank": 64}, "layer", "per-head"),
    EncodingChoice("diet-abs", {"rank": None}),
    EncodingChoice("learned+tisa", {"kernels": 3, "init_std": 1e-05}, segments="input"),
    EncodingChoice("shaw", {"values": False, "clip": 4}, sharing="none", segments="none"),
    EncodingChoice("diet-rel", sharing="layer", segments="per-head", segment_sharing="head"),
    EncodingChoice("rel-scalar", {"beyond": "raise"}),
    EncodingChoice("rope", {"base": 500, "fraction": 0.5, "interleaved": True}),
]


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_the_text_says_all(choice):
    again = EncodingChoice.parse(str(choice))
    assert again == choice and hash(again) == hash(choice) and str(again) == str(choice)
    assert pickle.loads(pickle.dumps(choice)) == choice


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_name_alone_is_a_choice(name):
    assert EncodingChoice.parse(name) == EncodingChoice(name) and str(EncodingChoice(name)) == name


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("diet-abs:rank=64,sharing=layer,segments=per-head", CHOICES[1]),
        (" diet-abs : segments = per-head, sharing = layer, rank = 64 ", CHOICES[1]),
        ("diet-abs:rank=none", CHOICES[2]),
        ("shaw:sharing=none,segments=none,values=false,clip=4", CHOICES[4]),
    ],
)
def test_reading(text, choice):
    assert EncodingChoice.parse(text) == choice


def test_writing():
    assert str(CHOICES[1]) == "diet-abs:rank=64,sharing=layer,segments=per-head"
    assert str(CHOICES[5]) == "diet-rel:sharing=layer,segments=per-head,segment_sharing=head"
    assert str(CHOICES[4]) == "shaw:clip=4,values=false,sharing=none,segments=none"


def test_the_order_of_options_means_nothing():
    one, other = EncodingChoice.parse("shaw:clip=4,keys=false"), EncodingChoice.parse("shaw:keys=false,clip=4")
    assert one == other and hash(one) == hash(other) and str(one) == str(other)
    assert one != EncodingChoice.parse("shaw:clip=4") != EncodingChoice.parse("shaw:clip=4,sharing=none")


def test_options_are_its_own():
    given = {"rank": 8}
    choice = EncodingChoice("diet-abs", given)
    given["rank"] = 9
    assert choice.options == {"rank": 8}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("diet-abz", "expected one of none, sinusoidal,.*got 'diet-abz'. Did you mean 'diet-abs'"),
        ("learned+nowhere", "got 'nowhere'"),
        ("", "expected one of none"),
        ("diet-abs:rank", "NAME\\[:OPTION=VALUE,...\\], such as diet-abs:rank=64.*got 'diet-abs:rank'"),
        ("diet-abs:", "NAME\\[:OPTION=VALUE"),
        ("diet-abs:rank=8,rank=9", "each option once"),
        ("diet-abs:rank=8,,sharing=layer", "NAME\\[:OPTION=VALUE"),
        ("diet-abs:rank=many", "rank: expected int or None, got 'many'"),
        ("diet-abs:rank=64:sharing=layer", "rank: expected int or None, got '64:sharing=layer'"),
        ("learned:init_std=NaN", "init_std: expected a finite number"),
        ("diet-abs:clip=8", "options: diet-abs has rank, key_length, init_std, beside sharing.*got clip"),
        ("none:rank=8", "none has none.*got rank"),
        ("diet-abs:sharing=heads", "sharing: expected one of none, head, layer, got 'heads'"),
        ("diet-abs:segments=output", "segments: expected one of none, input, per-head, got 'output'"),
        ("diet-abs:segments=per-head,segment_sharing=heads", "segment_sharing: expected one of none, head, layer"),
        (
            "diet-abs:segments=input,segment_sharing=head",
            "segment_sharing: only segments=per-head.*'head' with segments=i",
        ),
        ("diet-abs:segment_sharing=head", "segment_sharing: only segments=per-head have tables"),
        (None, "NAME\\[:OPTION=VALUE.*got None. Without position it is 'none'"),
    ],
)
def test_what_is_wrong_is_named(text, message):
    with pytest.raises(ValueError, match=message):
        EncodingChoice.parse(text)


def test_building():
    built = EncodingChoice.parse("learned+tisa:kernels=3,segments=per-head").build(DIMS, num_segments=3)
    assert isinstance(built, Together) and built.name == "learned+tisa+segment-per-head"
    assert built.parts[1].kernels == 3 and built.parts[2].num_segments == 3


@pytest.mark.parametrize("name", ["learned", "learned+tisa"])
def test_tensors_of_positions_have_the_same_names_without_segments(name):
    alone, nothing = EncodingChoice(name).build_apart(DIMS)
    beside, segments = EncodingChoice(name, segments="per-head").build_apart(DIMS)
    assert alone.state_dict().keys() == beside.state_dict().keys()
    assert nothing is None and list(segments.state_dict()) == ["table"]


def test_keywords_say_the_same():
    said = "diet-abs:rank=3,sharing=layer,segments=per-head,segment_sharing=head"
    text = encoding(said, **SIZES)
    keywords = encoding("diet-abs", **SIZES, rank=3, sharing="layer", segments="per-head", segment_sharing="head")
    both = encoding("diet-abs:rank=3,segments=per-head,segment_sharing=head", **SIZES, sharing="layer")
    choice = encoding(EncodingChoice.parse(said), **SIZES)
    shapes = [
        {name: tensor.shape for name, tensor in each.state_dict().items()} for each in (text, keywords, both, choice)
    ]
    assert shapes[0] == shapes[1] == shapes[2] == shapes[3]


@pytest.mark.parametrize(("text", "twice"), [("diet-abs:rank=3", "rank"), ("diet-abs:sharing=layer", "sharing")])
def test_nothing_is_said_twice(text, twice):
    with pytest.raises(ValueError, match=f"{twice}: expected it in the text '{text}' or as a keyword, got both"):
        encoding(text, **SIZES, **{twice: 3 if twice == "rank" else "layer"})


def test_a_changed_choice_is_checked():
    with pytest.raises(ValueError, match="rank"):
        replace(CHOICES[1], name="tisa")


@pytest.mark.parametrize(
    ("old", "text"),
    [
        ({"encoding": "diet-abs", "options": {"rank": 4}}, "diet-abs:rank=4"),
        ({"encoding": "diet-rel", "sharing": "layer", "segments": "input"}, "diet-rel:sharing=layer,segments=input"),
        (
            {"encoding": "diet-rel", "sharing": "layer", "segments": "per-head"},
            "diet-rel:sharing=layer,segments=per-head,segment_sharing=layer",
        ),
        (
            {"encoding": "diet-rel", "sharing": "none", "segments": "per-head"},
            "diet-rel:sharing=none,segments=per-head",
        ),
        ({"encoding": "t5", "sharing": None, "segments": "per-head"}, "t5:segments=per-head"),
        (
            {"encoding": "alibi", "sharing": "head", "segments": "per-head"},
            "alibi:segments=per-head,segment_sharing=head",
        ),
    ],
)
def test_fields_of_older_configurations_are_folded_into_the_text(old, text):
    """One sharing then held for positions and segments alike."""
    assert with_one_encoding({**old, "hidden_size": 8}) == {"encoding": text, "hidden_size": 8}
    assert with_one_encoding({"encoding": text}) == {"encoding": text}
