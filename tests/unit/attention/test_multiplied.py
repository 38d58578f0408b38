"""A bias that layers share, multiplied out: the formula, its gradient, and where it is left alone."""

from __future__ import annotations

import pytest
import torch

import headway as hw
from headway.attention import for_layers
from headway.encodings import encoding

pytest.importorskip("triton")
from headway.attention.triton.multiplied import multiplied_out


@pytest.mark.parametrize("parts", ["toeplitz", "low rank", "both"])
@pytest.mark.parametrize(("q_len", "k_len"), [(1, 1), (3, 7), (5, 5), (1, 4)])
def test_it_is_the_formula(q_len, k_len, parts):
    values = torch.randn(1, 1, q_len + k_len - 1, dtype=torch.float64, requires_grad=True)
    left = torch.randn(1, 3, q_len, 2, dtype=torch.float64, requires_grad=True)
    right = torch.randn(1, 1, 2, k_len, dtype=torch.float64).mT.requires_grad_()  # strided
    toeplitz, low_rank = hw.Toeplitz(values, q_len), hw.LowRank(left, right)
    bias, given = {
        "toeplitz": (toeplitz, [values, None, None]),
        "low rank": (low_rank, [None, left, right]),
        "both": (toeplitz + low_rank, [values, left, right]),
    }[parts]
    dense = bias.dense()
    found = multiplied_out(*(None if t is None else t.float() for t in given), q_len, k_len)
    torch.testing.assert_close(found.double(), dense, rtol=1e-5, atol=1e-5)
    wanted, upstream = [t for t in given if t is not None], torch.randn_like(dense)
    expected = torch.autograd.grad(dense, wanted, upstream)
    for mine, theirs in zip(torch.autograd.grad(found, wanted, upstream.float()), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def test_half_precision_gains_digits_and_autocast_takes_none():
    left = torch.randn(1, 2, 6, 2).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        found = multiplied_out(None, left, left, 6, 6)
    torch.testing.assert_close(found, left.float() @ left.float().mT, rtol=1e-5, atol=1e-5)


def test_nor_does_autocast_around_the_backward_pass():
    left, right = (torch.randn(1, 2, 6, 2, requires_grad=True) for _ in range(2))
    found, upstream = multiplied_out(None, left, right, 6, 6), torch.randn(1, 2, 6, 6)
    with torch.autocast("cpu", torch.bfloat16):
        grads = torch.autograd.grad(found, (left, right), upstream)
    for mine, theirs in zip(grads, (upstream @ right, upstream.mT @ left), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def test_what_the_compiler_is_told_is_so():
    values, left = torch.randn(1, 1, 11), torch.randn(1, 3, 6, 2)
    torch.library.opcheck(multiplied_out, (values, left, left.clone(), 6, 6))
    torch.library.opcheck(multiplied_out, (values.requires_grad_(), None, None, 6, 6))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # of torch itself
def test_other_derivatives_go_the_plain_way(monkeypatch):
    """The operator knows the backward pass alone."""
    from headway.attention.triton import hopper, multiplied

    monkeypatch.setattr(multiplied, "INTERPRETED", True)
    monkeypatch.setattr(hopper, "takes_kind", lambda *_: True)
    kinds = {"heads": 2, "width": 64, "dtype": torch.bfloat16, "device": torch.device("cpu")}

    def dense(values):
        return for_layers(hw.Toeplitz(values, 6), 6, 6, **kinds).dense()

    values = torch.randn(1, 2, 11)
    _, tangent = torch.func.jvp(dense, (values,), (torch.ones_like(values),))
    torch.testing.assert_close(tangent, torch.ones(1, 2, 6, 6))
    with torch.autograd.forward_ad.dual_level():
        dual = dense(torch.autograd.forward_ad.make_dual(values, torch.ones_like(values)))
        torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(dual).tangent, torch.ones(1, 2, 6, 6))


@pytest.mark.parametrize("beside", ["nothing", "values", "scores", "mask", "documents"])
def test_a_model_asks_for_it_where_nothing_is_beside_the_bias(monkeypatch, beside):
    """The kernels take a matrix alone, and a structured bias beside much else."""
    from headway.models import context

    asked = []
    monkeypatch.setattr(context, "for_layers", lambda bias, *sizes, **kinds: asked.append(bias) or bias)
    sizes, options = {"num_layers": 2, "num_heads": 2, "head_dim": 4, "max_length": 8}, {}
    encodings = [encoding("t5", **sizes)]
    if beside == "values":
        encodings.append(encoding("shaw", sharing="layer", keys=False, **sizes))
    elif beside == "scores":
        encodings.append(encoding("diet-rel", **sizes))
    elif beside == "mask":
        options = {"mask": torch.ones(1, 1, 1, 8, dtype=torch.bool)}
    elif beside == "documents":
        options = {"documents": torch.zeros(1, 8, dtype=torch.long)}
    context.ForwardContext(encodings, scale=None, q_len=8, k_len=8, x=torch.randn(1, 8, 8), heads=(2, 4), **options)
    assert len(asked) == (beside == "nothing")


def test_elsewhere_a_bias_stays_as_it_is():
    bias = hw.Toeplitz(torch.randn(1, 2, 11), 6)
    kept = for_layers(bias, 6, 6, heads=2, width=64, dtype=torch.bfloat16, device=torch.device("cpu"))
    assert kept is bias
    assert for_layers(None, 6, 6, heads=2, width=64, dtype=torch.bfloat16, device=torch.device("cpu")) is None
