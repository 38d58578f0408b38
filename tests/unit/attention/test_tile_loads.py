"""The Triton kernels, compiled for GPUs that are not here: how they load the tiles of a product."""

from __future__ import annotations

import importlib
import re
from types import SimpleNamespace

import pytest
import torch

import headway as hw

pytest.importorskip("triton", reason="triton is not installed")

KINDS = {
    torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int32: "*i32", torch.int64: "*i64",
    torch.uint8: "*u8",
}  # fmt: skip


@pytest.fixture
def launches(monkeypatch):
    """Every launch of a Triton kernel that a call would make: the kernel, its arguments by name, its options."""
    from triton.runtime.jit import JITFunction

    made = []

    def record(self, *arguments, grid, warmup=False, **named):
        names = [parameter.name for parameter in self.params]
        options = {name: value for name, value in named.items() if name not in names}
        given = {name: value for name, value in named.items() if name in names}
        made.append((self, dict(zip(names, arguments, strict=False)) | given, options))

    monkeypatch.setattr(JITFunction, "run", record)
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # as it is by default, without a warning
    monkeypatch.setattr(importlib.import_module("headway.attention.triton"), "INTERPRETED", True)  # CPU tensors
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=132))
    return made


def compiled(kernel, arguments, options, capability):
    """The kernel for these arguments, as a launch on a GPU would have it compiled."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature, constants, attributes = {}, {}, {}
    for place, parameter in enumerate(kernel.params):
        name, value = parameter.name, arguments[parameter.name]
        specialised = isinstance(value, int) and not parameter.do_not_specialize
        if parameter.is_constexpr or (specialised and value == 1):
            signature[name], constants[(place,)] = "constexpr", value
            continue
        if isinstance(value, torch.Tensor):
            signature[name] = KINDS[value.dtype]
        else:
            signature[name] = "i32" if isinstance(value, int) else "fp32"
        if isinstance(value, torch.Tensor) or (specialised and value % 16 == 0):
            attributes[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constants, attributes)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def train(width, rank, dtype, *, q_len=17, k_len=257, shift=0):
    """A low-rank bias and, of `shift`, rows that do not begin at 16 bytes."""
    q, k, v = (
        torch.randn(3, 2, length, width + shift).to(dtype)[..., shift:].requires_grad_()
        for length in (q_len, k_len, k_len)
    )
    left, right = (torch.randn(1, 2, length, rank, requires_grad=True) for length in (q_len, k_len))
    hw.attention(q, k, v, hw.LowRank(left, right), backend="triton").sum().backward()


@pytest.mark.parametrize(
    ("width", "rank", "dtype", "shift"),
    [(24, 70, torch.bfloat16, 0), (64, 5, torch.float16, 1)],
)
def test_loops_load_the_operands_of_products_asynchronously(launches, width, rank, dtype, shift):
    """Each into shared memory of its own: ptxas 12.8 gives operands that take turns in it wrong addresses."""
    train(width, rank, dtype, shift=shift)
    forward = next(launch for launch in launches if launch[0].fn.__name__ == "forward_kernel")
    text = compiled(*forward, capability=90).asm["ttgir"]
    loops = text[text.index("scf.for") :]
    assert "ttg.async_copy_global_to_local" in loops and "ttng.warp_group_dot" in loops
    # A tile that is loaded by its threads would be stored by them: an allocation with contents.
    assert not re.search(r"ttg\.local_alloc %", loops)


@pytest.mark.parametrize(("width", "rank", "precision"), [(64, 8, "tf32x3"), (128, 8, "tf32x3"), (64, 200, "ieee")])
def test_float32_is_multiplied_by_the_tensor_cores_where_registers_suffice(launches, width, rank, precision):
    train(width, rank, torch.float32)
    assert {arguments["PRECISION"] for _, arguments, _ in launches if "PRECISION" in arguments} == {precision}
    assert all(kernel.fn.__name__ != "short_forward_kernel" for kernel, _, _ in launches)
