"""Plans of the fused kernels, and the packed description of a call that their operators take."""

import importlib

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import headway as hw
from headway.attention.request import Plan, checked
from headway.attention.triton.description import Description, Inputs, Kernels, Reads, Tables

LENGTH, HEADS, WIDTH = 200, 2, 64


class Nothing(TorchDispatchMode):
    """No tensor is computed with."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        raise AssertionError(f"a plan calls {function}")


@pytest.fixture
def hopper(monkeypatch):
    """Calls are planned as for a Hopper GPU."""
    pytest.importorskip("triton", reason="triton is not installed")
    module = importlib.import_module("headway.attention.triton.hopper")
    monkeypatch.setattr(importlib.import_module("headway.attention.triton"), "INTERPRETED", True)
    monkeypatch.setattr(module, "takes_kind", lambda dtype, *_: dtype != torch.float32)


def factors(rank):
    return [torch.randn(1, HEADS, LENGTH, rank) for _ in range(2)]


def two_segments():
    ids = torch.zeros(1, LENGTH, dtype=torch.long)
    return hw.SegmentTable(torch.randn(HEADS, 2, 2), ids, ids)


BIASES = {
    "none": (lambda: None, Kernels.HOPPER, Reads.NOTHING),
    "toeplitz": (lambda: hw.Toeplitz(torch.randn(1, HEADS, 2 * LENGTH - 1)), Kernels.HOPPER, Reads.TABLE),
    "low rank": (lambda: hw.LowRank(*factors(5)), Kernels.HOPPER, Reads.MATRIX),
    "dense": (lambda: hw.Dense(torch.randn(1, HEADS, LENGTH, LENGTH)), Kernels.HOPPER, Reads.MATRIX),
    "segments": (two_segments, Kernels.HOPPER, Reads.SEGMENTS),
    "relative keys": (lambda: hw.RelativeKeys(torch.randn(HEADS, 9, WIDTH)), Kernels.RELATIVE, Reads.PLACES),
    "both": (
        lambda: hw.RelativeKeys(torch.randn(HEADS, 9, WIDTH)) + two_segments(),
        Kernels.GENERAL,
        Reads.PARTS,
    ),
}


@pytest.mark.parametrize("kind", BIASES)
def test_a_plan_names_kernels_and_computes_nothing(hopper, kind):
    make, kernels, reads = BIASES[kind]
    q, k, v = (torch.randn(2, HEADS, LENGTH, WIDTH, dtype=torch.bfloat16) for _ in range(3))
    nothing = dict.fromkeys(("value_bias", "mask", "lengths", "documents", "scale"))
    request = checked(q, k, v, bias=make(), causal=False, dropout=0.1, **nothing)
    with Nothing():
        plan = importlib.import_module("headway.attention.triton").plan(request)
    assert isinstance(plan, Plan)
    assert (plan.kernels.kernels, plan.kernels.reads) == (kernels, reads)


def described(**settings):
    q, k, v, values, left, right, noise = torch.randn(7, 1, 1, 3, 2)
    left.requires_grad_()
    return Description(
        kernels=Kernels.HOPPER,
        inputs=Inputs(q, k, v, values=values, left=left, right=right, noise=noise),
        tables=Tables(fragments=torch.ones(1), transposed=torch.zeros(1)),
        scale=0.3,
        dropout=0.1,
        causal=True,
        reach=5,
        shift=7,
        exact=True,
        **settings,
    )


def test_a_description_is_unpacked_as_it_was():
    before = described(weights=True)
    tensors, tables, settings, scale, dropout = before.packed()
    assert len(tensors) == 7 and len(tables) == 2 and all(type(number) is int for number in settings)
    after = Description.unpacked(tensors, tables, settings, scale, dropout)
    for one, other in zip((*after.inputs, *after.tables), (*before.inputs, *before.tables), strict=True):
        assert one is other
    assert after[3:] == before[3:] and after.kernels is Kernels.HOPPER


def test_gradients_come_in_the_order_of_the_inputs():
    """Both factors are wanted if one is learned; values that nobody learns have none, nor has noise."""
    description = described().with_gradients()
    assert description.wanted == ["q", "k", "v", "left", "right"]
    assert description.in_order([1, 2, 3, 4, 5]) == [1, 2, 3, None, 4, 5, None]
    with pytest.raises(ValueError, match="argument"):
        description.in_order([1, 2, 3])
    whole = description.inputs._replace(qkv=torch.ones(1))
    packed = description._replace(inputs=whole).with_gradients()
    assert packed.wanted == ["qkv", "left", "right"]
    assert packed.in_order([1, 2, 3]) == [None, None, None, 1, None, 2, 3, None]
