"""Calls off the beaten track: other devices, torch.func, scales that turn scores around."""

import sys

import pytest
import torch

import headway as hw


@pytest.mark.parametrize("scale", [0.0, -0.7])
@pytest.mark.parametrize("needs_grad", [True, False])
def test_causal_order_with_a_scale_that_is_not_positive(scale, needs_grad):
    q, k, v = (torch.randn(2, 2, 9, 8, requires_grad=needs_grad) for _ in range(3))
    found, right = (hw.attention(q, k, v, causal=True, scale=scale, backend=name) for name in ("auto", "eager"))
    torch.testing.assert_close(found, right)


def test_without_triton_other_devices_take_torchs_kernels(monkeypatch):
    """The meta device stands for one."""
    from headway.attention import triton

    monkeypatch.setattr(triton, "INSTALLED", False)
    monkeypatch.setitem(sys.modules, "triton", None)
    for name in [name for name in sys.modules if name.startswith("headway.attention.triton.")]:
        monkeypatch.delitem(sys.modules, name)
    q = torch.randn(1, 2, 64, 64, device="meta", dtype=torch.bfloat16, requires_grad=True)
    assert hw.explain(q, q, q).backend == "sdpa"
    assert hw.attention(q, q, q).shape == q.shape


@pytest.mark.parametrize("backend", ["auto", "eager", "sdpa"])
def test_the_meta_device_gives_shapes(backend):
    q, k, v = (torch.randn(2, 3, length, 8, device="meta") for length in (5, 7, 7))
    bias = hw.Toeplitz(torch.randn(1, 3, 11, device="meta"))
    output = hw.attention(q, k, v, bias, backend=backend)
    assert output.shape == q.shape and output.device.type == "meta"


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's kernels have no batching rule
def test_vmap_over_lengths():
    q, k, v = torch.randn(3, 4, 2, 6, 8)
    lengths = torch.tensor([6, 3, 1, 0])

    def one(q, k, v, length):
        return hw.attention(q[None], k[None], v[None], lengths=length[None])[0]

    torch.testing.assert_close(torch.func.vmap(one)(q, k, v, lengths), hw.attention(q, k, v, lengths=lengths))
