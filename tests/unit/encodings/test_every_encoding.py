"""What every encoding promises, whatever its formula: a new entry of ENCODINGS is held to all of it at once."""

import copy
import pickle
import re

import pytest
import torch
from acting import EXACT, SIZES, TOGETHER, E, acts, inputs, random, same, scale_of
from torch.testing import assert_close

from headway.encodings import ENCODINGS, encoding


@pytest.mark.parametrize("name", [*ENCODINGS, *TOGETHER])
@pytest.mark.parametrize("n", [1, 5, 9])
def test_one_step_of_cached_decoding_is_the_last_row(build, name, n):
    enc = build(name)
    x, q, k = inputs(n)
    for layer in range(2):
        full = acts(enc, layer, x, q, k)
        step = acts(enc, layer, x[:, -1:], q[:, :, -1:], k[:, :, -1:], q_start=n - 1)
        last = {key: value[:, -1:] if key == "embed" else value[:, :, -1:] for key, value in full.items()}
        same(step, last)


@pytest.mark.parametrize("name", [*ENCODINGS, *TOGETHER])
@pytest.mark.parametrize("segments", ["none", "input", "per-head"])
def test_a_block_in_the_middle_is_the_same_rows(build, name, segments):
    """Queries 3..6 against all nine keys, some of them to the right; packed texts and segments are cut alike."""
    enc = build(name, segments=segments)
    x, q, k = inputs(9)
    documents = torch.tensor([[4, 4, 4, 4, 4, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 0, 2, 2]])
    ids = torch.tensor([[0, 0, 1, 1, 1, 0, 1, 1, 1], [0, 1, 1, 1, 1, 1, 1, 0, 1]]) if segments != "none" else None
    for layer in range(2):
        for packed in (None, documents):
            full = enc.bias(layer, 9, 9, segments=ids, documents=packed)
            block = enc.bias(layer, 3, 9, 3, segments=ids, documents=packed)
            assert (full is None) == (block is None)
            if full is not None:
                assert_close(block.dense(q[:, :, 3:6]), full.dense(q)[:, :, 3:6], **EXACT)
            # The input and the rotation see what came before: positions 3..6 with the ids of 0..6.
            before = {"documents": None if packed is None else packed[:, :6]}
            for one, whole in zip(
                enc.rotate(q[:, :, 3:6], k[:, :, 3:6], layer=layer, q_start=3, **before),
                enc.rotate(q, k, layer=layer, documents=packed),
                strict=True,
            ):
                assert_close(one, whole[:, :, 3:6], **EXACT)
            before["segments"] = None if ids is None else ids[:, :6]
            assert_close(
                enc.embed(x[:, 3:6], q_start=3, **before),
                enc.embed(x, segments=ids, documents=packed)[:, 3:6],
                **EXACT,
            )
        values, block = enc.value_bias(layer, 9, 9), enc.value_bias(layer, 3, 9, 3)
        if values is not None:
            assert_close(block.dense(q_len=3, k_len=9), values.dense(q_len=9, k_len=9)[:, :, 3:6], **EXACT)


@pytest.mark.parametrize("name", [*ENCODINGS, *TOGETHER])
def test_packed_texts_are_as_if_alone(build, name):
    enc = build(name)
    x, q, k = inputs(9)
    documents = torch.tensor([[4, 4, 4, 4, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 0, 0, 2]])
    texts = [(0, 0, 4), (0, 4, 9), (1, 0, 8), (1, 8, 9)]
    for layer in range(2):
        packed = acts(enc, layer, x, q, k, documents=documents)
        for b, start, stop in texts:
            part = slice(start, stop)
            alone = acts(enc, layer, x[b : b + 1, part], q[b : b + 1, :, part], k[b : b + 1, :, part])
            assert alone.keys() == packed.keys()
            assert_close(packed["embed"][b : b + 1, part], alone["embed"], **EXACT)
            for key in ("q", "k"):
                assert_close(packed[key][b : b + 1, :, part], alone[key], **EXACT)
            for key in ("bias", "values"):
                if key in alone:
                    assert_close(packed[key][b : b + 1, :, part, part], alone[key], **EXACT)


@pytest.mark.parametrize("name", [*ENCODINGS, *TOGETHER])
def test_short_texts_may_be_packed_beyond_max_length(build, name):
    """Nine tokens in two texts of at most five: no encoding needs more than five positions."""
    enc = build(name, max_length=5)
    x, q, k = inputs(9)
    documents = torch.tensor([[0] * 4 + [1] * 5] * 2)
    embedded = enc.embed(x, documents=documents)
    bias = enc.bias(0, 9, 9, documents=documents)
    turned = enc.rotate(q, k, documents=documents)
    assert_close(embedded[:, 4:], enc.embed(x[:, 4:]), **EXACT)
    assert_close(turned[0][:, :, 4:], enc.rotate(q[:, :, 4:], k[:, :, 4:])[0], **EXACT)
    if bias is not None:
        alone = enc.bias(0, 5, 5).dense(q[:, :, 4:])
        assert_close(bias.dense(q)[:, :, 4:, 4:], alone.expand(bias.dense(q).shape[0], -1, -1, -1), **EXACT)


@pytest.mark.parametrize("name", [*ENCODINGS, *TOGETHER])
def test_values_of_short_texts_packed_beyond_max_length(build, name):
    """A model asks every encoding for a value bias; offsets within a text need no more than five positions."""
    enc = build(name, max_length=5)
    values, alone = enc.value_bias(0, 9, 9), enc.value_bias(0, 5, 5)
    if values is not None:
        assert_close(values.dense()[:, :, 4:, 4:], alone.dense(), **EXACT)


@pytest.mark.parametrize("segments", ["none", "input", "per-head"])
@pytest.mark.parametrize("name", [*ENCODINGS, *TOGETHER])
def test_gradients_reach_every_parameter(build, name, segments):
    enc = build(name, segments=segments)
    x, q, k = inputs(16)
    ids = torch.tensor([[0] * 6 + [1] * 10, [0, 1] * 8]) if segments != "none" else None
    loss = torch.zeros((), dtype=torch.float64)
    for layer in range(2):
        for n, value in enumerate(acts(enc, layer, x, q, k, segments=ids).values()):
            loss = loss + (value * random(*value.shape, seed=10 * layer + n)).sum()
    if list(enc.parameters()):
        loss.backward()
    for key, parameter in enc.named_parameters():
        assert parameter.grad is not None, key
        assert torch.isfinite(parameter.grad).all(), key
        if parameter.dim() >= 3:  # (layers, heads, ...): none of them is left out
            assert (parameter.grad.flatten(2).abs().amax(-1) > 0).all(), key
        else:
            assert (parameter.grad != 0).any(), key


@pytest.mark.parametrize("name", ENCODINGS)
def test_the_initial_parameters_get_gradients_too(name):
    """A table that starts where its gradient vanishes would never be learned."""
    torch.manual_seed(0)
    enc = encoding(name, **SIZES).double()
    if not list(enc.parameters()):
        return
    loss = torch.zeros((), dtype=torch.float64)
    for layer in range(2):
        for n, value in enumerate(acts(enc, layer, *inputs(16)).values()):
            loss = loss + (value * random(*value.shape, seed=10 * layer + n)).sum()
    loss.backward()
    moved = [bool((parameter.grad != 0).any()) for parameter in enc.parameters()]
    assert all(moved), dict(zip(dict(enc.named_parameters()), moved, strict=True))


@pytest.mark.parametrize("name", [name for name in ENCODINGS if ENCODINGS[name].extends])
def test_beyond_max_length_where_it_extends(build, name):
    enc = build(name)
    found = acts(enc, 1, *inputs(40))
    assert all(torch.isfinite(value).all() for value in found.values())
    near = acts(enc, 1, *(t[..., :16, :] for t in inputs(40)))
    for key in ("bias", "values"):  # the first 16 are what they were
        if key in near:
            assert_close(found[key][:, :, :16, :16], near[key], **EXACT)


@pytest.mark.parametrize("name", [name for name in ENCODINGS if not ENCODINGS[name].extends])
def test_beyond_max_length_where_it_does_not(build, name):
    enc = build(name)
    acts(enc, 0, *inputs(16))
    x, q, k = inputs(17)
    refusal = rf"positions: expected at most 16 \(max_length of {re.escape(name)}\), got 17\. .*larger max_length"
    for call in (
        lambda: enc.embed(x),
        lambda: enc.embed(x[:, :1], q_start=16),
        lambda: enc.rotate(q, k),
        lambda: enc.bias(0, 17, 17),
        lambda: enc.bias(0, 1, 17, 16),
        lambda: enc.bias(0, 1, 17),
    ):
        with pytest.raises(ValueError, match=refusal):
            call()


@pytest.mark.parametrize("name", ["learned+tisa", "t5+diet-abs"])
def test_together_the_shorter_limit_counts(build, name):
    with pytest.raises(ValueError, match=r"expected at most 16.*got 17.*larger max_length"):
        acts(build(name), 0, *inputs(17))


def attention_output(enc, tokens):
    """One layer of attention over token vectors, (B, L, E) to (B, H, L, D), in plain torch."""
    x = enc.embed(tokens)
    q, k, v = ((x @ w).unflatten(-1, (2, 4)).transpose(1, 2) for w in random(3, E, E, seed=5))  # (B, H, L, D)
    q, k = enc.rotate(q, k)
    scores = scale_of(enc) * q @ k.transpose(-1, -2)
    length = tokens.shape[1]
    bias, value_bias = enc.bias(0, length, length), enc.value_bias(0, length, length)
    if bias is not None:
        scores = scores + bias.dense(q, scale=scale_of(enc))
    weights = scores.softmax(-1)
    out = weights @ v
    return out if value_bias is None else out + value_bias.weigh(weights)


@pytest.mark.parametrize("name", [*ENCODINGS, *TOGETHER])
def test_sees_order_as_declared(build, name):
    enc = build(name)
    tokens, swap = random(1, 4, E), [0, 2, 1, 3]  # the first stays: TUPE treats it as [CLS]
    straight, swapped = attention_output(enc, tokens), attention_output(enc, tokens[:, swap])[:, :, swap]
    blind = torch.allclose(straight, swapped, atol=1e-6)
    assert blind != enc.sees_order
    if name in ENCODINGS:
        assert enc.sees_order == ENCODINGS[name].sees_order


@pytest.mark.parametrize("name", ENCODINGS)
def test_acts_where_it_says(build, name):
    enc = build(name)
    x, q, k = inputs(5)
    found = acts(enc, 0, x, q, k)
    where = {
        "input": not torch.equal(found["embed"], x),
        "queries and keys": not (torch.equal(found["q"], q) and torch.equal(found["k"], k)),
        "scores": "bias" in found,
        "values": "values" in found,
    }
    assert {place for place, acted in where.items() if acted} == set(ENCODINGS[name].places)


@pytest.mark.parametrize("segments", ["none", "input", "per-head"])
@pytest.mark.parametrize("name", [*ENCODINGS, *TOGETHER])
def test_dtype_follows_the_module(name, segments):
    ids = torch.tensor([[0, 0, 1, 1, 1]] * 2) if segments != "none" else None
    for dtype in (torch.float32, torch.float64):
        enc = encoding(name, **SIZES, segments=segments).to(dtype)
        x, q, k = (t.to(dtype) for t in inputs(5))
        for key, value in acts(enc, 0, x, q, k, segments=ids).items():
            assert value.dtype == dtype, key


@pytest.mark.parametrize("name", ENCODINGS)
def test_double_is_exact(build, name):
    """After .double() nothing is left in single precision: it agrees with float32 to float32's rounding only."""
    enc = build(name)
    single = copy.deepcopy(enc).float()
    one = acts(enc, 1, *inputs(9))
    other = acts(single, 1, *(t.float() for t in inputs(9)))
    same({key: value.float() for key, value in one.items()}, other, rtol=1e-4, atol=1e-4)
    again = acts(single.double(), 1, *inputs(9))  # buffers made in float32 would show here for fixed encodings
    if not list(enc.parameters()):
        same(one, again)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", [name for name in ENCODINGS if ENCODINGS[name].extends])
def test_half_precision_does_not_lose_count(build, name, dtype):
    """bfloat16 counts to 256 and float16 to 2048: positions must be worked out in something wider."""
    enc = build(name)
    with torch.no_grad():
        for parameter in enc.parameters():
            parameter.div_(4).copy_(
                parameter.to(dtype)
            )  # representable, so that only the encoding's own rounding counts
    half = copy.deepcopy(enc).to(dtype)
    x, q, k = inputs(3)
    for q_start in (300, 3001):
        exact = acts(enc, 1, x, q, k, q_start=q_start)
        rough = acts(half, 1, *(t.to(dtype) for t in (x, q, k)), q_start=q_start)
        for key, value in exact.items():
            error = (rough[key].double() - value).abs().max() / value.abs().max()
            assert error.item() < 0.05, (key, q_start)


@pytest.mark.parametrize("name", [*ENCODINGS, *TOGETHER])
def test_a_model_width_that_is_not_heads_times_head_width(build, name):
    enc = build(name, embed_dim=10, segments="input")
    _, q, k = inputs(5)
    ids = torch.tensor([[0, 0, 1, 1, 1]] * 2)
    found = acts(enc, 1, random(2, 5, 10), q, k, segments=ids)
    assert found["embed"].shape == (2, 5, 10)
    assert found.get("bias", torch.zeros(2, 2, 5, 5)).shape == (2, 2, 5, 5)
    with pytest.raises(ValueError, match=r"x: expected \(B, L, 10\), got \(2, 5, 8\)"):
        enc.embed(random(2, 5, 8))


@pytest.mark.parametrize("segments", ["none", "input", "per-head"])
@pytest.mark.parametrize("name", [*ENCODINGS, *TOGETHER])
def test_state_dict_deepcopy_and_pickle(build, name, segments):
    enc, other = build(name, segments=segments), build(name, segments=segments, seed=7)
    ids = torch.tensor([[0, 0, 1, 1, 1]] * 2) if segments != "none" else None
    with torch.no_grad():
        expected = acts(enc, 1, *inputs(5), segments=ids)  # and leaves what inference keeps behind
    other.load_state_dict(enc.state_dict())
    same(acts(other, 1, *inputs(5), segments=ids), expected, rtol=1e-12, atol=1e-12)
    for twin in (copy.deepcopy(enc), pickle.loads(pickle.dumps(enc))):
        same(acts(twin, 1, *inputs(5), segments=ids), expected, rtol=1e-12, atol=1e-12)
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.add_(1.0)
        same(acts(enc, 1, *inputs(5), segments=ids), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [*ENCODINGS, *TOGETHER])
def test_reset_draws_every_parameter_anew(build, name):
    enc = build(name, segments="per-head")
    before = {key: parameter.detach().clone() for key, parameter in enc.named_parameters()}
    draws = []
    for _ in range(2):
        torch.manual_seed(3)
        enc.reset_parameters()
        draws.append({key: parameter.detach().clone() for key, parameter in enc.named_parameters()})
    for key, parameter in enc.named_parameters():
        assert torch.isfinite(parameter).all(), key
        assert not (parameter == before[key]).any(), key
        assert_close(draws[0][key], draws[1][key], rtol=0, atol=0)
