"""What encodings refuse, and what they say: the argument, what was expected, what came, and the way out."""

import re

import pytest
import torch

from headway.encodings import ENCODINGS, encoding

SIZES = {"num_layers": 2, "num_heads": 2, "head_dim": 4, "max_length": 16}
SHARED = [name for name in ENCODINGS if ENCODINGS[name].default_sharing is not None]
TOGETHER = ["learned+tisa", "shaw+t5"]


def inputs(length):
    """x, (B, L, E), and q and k, (B, H, L, D)."""
    return torch.zeros(2, length, 8), *torch.zeros(2, 2, 2, length, 4).unbind(0)


@pytest.mark.parametrize("name", [name for name in ENCODINGS if ENCODINGS[name].default_sharing is None])
def test_sharing_needs_something_to_share(name):
    for sharing in ("none", "head", "layer"):
        with pytest.raises(ValueError, match=f"sharing: {re.escape(name)} has no per-head parameters.*Leave it out"):
            encoding(name, **SIZES, sharing=sharing)


def test_an_unknown_name_lists_every_valid_one():
    with pytest.raises(ValueError) as caught:
        encoding("diet", **SIZES)
    assert "'diet'" in str(caught.value)
    for name in ENCODINGS:
        assert re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", str(caught.value)), name
    with pytest.raises(ValueError, match="'nowhere'"):
        encoding("learned+nowhere", **SIZES)


@pytest.mark.parametrize("name", ENCODINGS)
def test_an_unknown_option_is_named(name):
    with pytest.raises((TypeError, ValueError), match=rf"(?s)(colour.*{re.escape(name)}|{re.escape(name)}.*colour)"):
        encoding(name, **SIZES, colour="red")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("tisa", {"kernels": "a"}, "kernels: expected int, got 'a'"),
        ("tisa", {"reach": 2.5}, "reach: expected int or None, got 2.5"),
        ("rope", {"base": "x"}, "base: expected float, got 'x'"),
        ("rope", {"interleaved": 1}, "interleaved: expected bool, got 1"),
        ("shaw", {"clip": True}, "clip: expected int or None, got True"),
        ("learned+tisa", {"kernels": None}, "kernels: expected int, got None"),
    ],
)
def test_an_option_of_another_type_is_named(name, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        encoding(name, **SIZES, **options)


def test_a_whole_number_is_a_number():
    assert encoding("rope", **SIZES, base=500).base == 500


@pytest.mark.parametrize("name", SHARED)
def test_an_unknown_sharing_lists_the_valid_ones(name):
    with pytest.raises(ValueError, match="sharing: expected one of none, head, layer, got 'heads'"):
        encoding(name, **SIZES, sharing="heads")


def test_an_unknown_segments_lists_the_valid_ones():
    with pytest.raises(ValueError, match="segments: expected one of none, input, per-head, got 'output'"):
        encoding("diet-rel", **SIZES, segments="output")


@pytest.mark.parametrize("size", ["num_layers", "num_heads", "head_dim", "max_length"])
@pytest.mark.parametrize("value", [0, -1, 2.0])
def test_sizes_are_whole_numbers_from_one(size, value):
    with pytest.raises(ValueError, match=f"{size}: expected a whole number of at least 1, got {re.escape(str(value))}"):
        encoding("diet-rel", **{**SIZES, size: value})


@pytest.mark.parametrize("name", ENCODINGS)
def test_segment_ids_without_segments_are_refused(build, name):
    enc = build(name)
    ids = torch.zeros(2, 5, dtype=torch.long)
    with pytest.raises(ValueError, match=r"segments: .* has no segments.*segments='input' or segments='per-head'"):
        enc.embed(inputs(5)[0], segments=ids)
    with pytest.raises(ValueError, match=r"segments: .* has no segments.*segments='input' or segments='per-head'"):
        enc.bias(0, 5, 5, segments=ids)


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_layer_that_is_not_there(build, name):
    enc = build(name)
    _, q, k = inputs(5)
    for layer in (2, -1):
        refusal = rf"layer: expected 0 to 1 \(num_layers\), got {layer}"
        for call in (
            lambda layer=layer: enc.bias(layer, 5, 5),
            lambda layer=layer: enc.value_bias(layer, 5, 5),
            lambda layer=layer: enc.rotate(q, k, layer=layer),
        ):
            with pytest.raises(ValueError, match=refusal):
                call()


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize(("q_len", "k_len", "q_start"), [(0, 5, 0), (5, 0, 0), (5, 5, -1)])
def test_empty_and_negative_lengths(build, name, q_len, k_len, q_start):
    enc = build(name)
    for method in (enc.bias, enc.value_bias):
        with pytest.raises(
            ValueError, match=f"at least 1 and q_start of at least 0, got {q_len}, {k_len} and {q_start}"
        ):
            method(0, q_len, k_len, q_start)


@pytest.mark.parametrize("name", ENCODINGS)
def test_wrong_shapes_of_the_input(build, name):
    enc = build(name)
    _, q, k = inputs(5)
    with pytest.raises(ValueError, match=r"x: expected \(B, L, 8\), got \(2, 5, 7\)"):
        enc.embed(torch.zeros(2, 5, 7))
    with pytest.raises(ValueError, match=r"x: expected \(B, L, 8\), got \(5, 8\)"):
        enc.embed(torch.zeros(5, 8))
    with pytest.raises(ValueError, match="rotate: expected q and k of the same positions, got lengths 5 and 4"):
        enc.rotate(q, k[:, :, :4])


@pytest.mark.parametrize("name", [*ENCODINGS, *TOGETHER])
def test_wrong_ids(build, name):
    enc = build(name, segments="per-head")
    x, q, k = inputs(5)
    for what in ("segments", "documents"):
        for ids in (torch.zeros(2, 4, dtype=torch.long), torch.zeros(5, dtype=torch.long)):
            refusal = rf"{what}: expected ids \(B, 5\).*got {re.escape(str(tuple(ids.shape)))}"
            for call in (
                lambda ids=ids, what=what: enc.bias(0, 5, 5, **{what: ids}),
                lambda ids=ids, what=what: enc.embed(x, **{what: ids}),
            ):
                with pytest.raises(ValueError, match=refusal):
                    call()
        for dtype in (torch.float32, torch.bool, torch.uint16):
            refusal = rf"{what}: expected integer ids, got {re.escape(str(dtype))}.*\.long\(\)"
            for call in (
                lambda dtype=dtype, what=what: enc.bias(0, 5, 5, **{what: torch.zeros(2, 5, dtype=dtype)}),
                lambda dtype=dtype, what=what: enc.embed(x, **{what: torch.zeros(2, 5, dtype=dtype)}),
            ):
                with pytest.raises(TypeError, match=refusal):
                    call()
    with pytest.raises(ValueError, match=r"documents: expected ids \(B, 5\)"):
        enc.rotate(q, k, documents=torch.zeros(2, 6, dtype=torch.long))


@pytest.mark.parametrize("segments", ["input", "per-head"])
@pytest.mark.parametrize("wrong", [2, -1])
def test_segment_ids_out_of_range(build, segments, wrong):
    enc = build("diet-rel", segments=segments)
    ids = torch.tensor([[0, 0, 1, 1, wrong]])
    refusal = rf"segments: expected ids from 0 to 1.*got {min(0, wrong)} to {max(1, wrong)}"
    act = (
        (lambda: enc.embed(torch.zeros(1, 5, 8), segments=ids))
        if segments == "input"
        else (lambda: enc.bias(0, 5, 5, segments=ids))
    )
    with pytest.raises(ValueError, match=refusal):
        act()
