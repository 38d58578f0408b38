"""Running headway's CUDA kernels for Hopper on a CPU, without a GPU.

    from emulator import emulated

    with emulated():
        hw.attention(q, k, v, bias, backend="triton")  # tensors of the CPU, in half precision

takes the way that a call takes on an H100: the project's own host code, its launches, its CUDA sources. (The Triton
kernels beside them are interpreted; `TRITON_INTERPRET=1` must be set before triton is imported. A call that goes to
Triton's kernels alone is no longer one for the emulator, and their interpreter cannot multiply bfloat16: compare the
list that `emulated()` gives with the kernels that should have run.) Whatever launches with `cuda.Kernel` can run in
there, autograd too.

The sources stay as they are. `translate.py` turns the inline PTX of a source into calls, and g++ compiles it with
`device.h`; `running.cpp`, `memory.cpp` and `products.cpp` are the GPU. Its threads are fibers of one host thread,
which take turns in a random order. `emulated(seed=...)` chooses the order, `sources=` a folder with other versions of
the kernels, and `multiprocessors=` how many the GPU has. What a kernel may not do is an `EmulatorError` that names
the lines of the source. A new kernel can be tried alone: inside, `cuda.Kernel` takes the path of any source.

What is as on a GPU: tiles and fragments in registers and shared memory, descriptors, swizzles, boxes of tensor maps
with zeros beyond the ends, barriers with their phases and bytes, named barriers, lanes that meet, blocks that wait
for one another. Copies and products come late, where the program allows it, and what they will write is NaN until
then, as are new tensors of the host's code. One warp may run far ahead of the others. Products and bulk copies see
what threads wrote only after a fence. Found are an address beyond a tensor or beyond shared memory, or not aligned
for its type; an index outside of a local array; an instruction without its partners; an overwritten or miscounted
barrier; a copy or product that nobody waited for when its thread or block ends; a deadlock, with who waits for what.

What is not: time, registers and their spilling, bank conflicts, and whether a compiler keeps products in flight. A
fence by one thread counts for its whole block, and global memory needs none. Sums of products are rounded to float32
one by one, which the tensor cores do otherwise. A race that no order of turns shows stays hidden: each run tries one
order, and blocks that need not run together run one by one. What is taken for granted of products and boxes,
tests/gpu/test_products.py checks on a GPU; everything else was written from the documentation of PTX, so that only a
run on a GPU shows that a kernel works.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from .launching import Driver, EmulatorError, Kernel, available, tensor_map_of

__all__ = ["EmulatorError", "Kernel", "available", "emulated"]

EMPTY = [(torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")]


def _filled(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """What makes tensors without writing them, with NaN in them."""

    def made(*size: Any, **options: Any) -> torch.Tensor:
        t = make(*size, **options)
        return t.fill_(torch.nan if t.is_floating_point() else True if t.dtype == torch.bool else 77)

    return made


@contextlib.contextmanager
def emulated(*, seed: int = 0, sources: Path | None = None, multiprocessors: int = 4) -> Iterator[list[str]]:
    """As if tensors of the CPU were a Hopper GPU's. Gives a list to which every launch adds the kernel's name."""
    from headway.attention.triton import arguments, cuda, hopper

    takes_kind = hopper.takes_kind
    launched: list[str] = []
    emulated_kernel = type(
        "Emulated", (Kernel,), {"folder": sources, "launched": launched, "seeds": random.Random(seed)}
    )
    gpu, properties = torch.device("cuda", 0), SimpleNamespace(multi_processor_count=multiprocessors)
    caches = hopper.kernel, cuda._tensor_map
    patches = [
        mock.patch.object(cuda, "Kernel", emulated_kernel),
        mock.patch.object(cuda, "driver_here", Driver),
        mock.patch.object(cuda, "tensor_map", tensor_map_of(cuda.tensor_map)),
        mock.patch.object(torch.cuda, "device", return_value=contextlib.nullcontext()),
        mock.patch.object(torch.cuda, "get_device_properties", return_value=properties),
        mock.patch.object(arguments.Call, "multiprocessors", multiprocessors),
        *(mock.patch.object(of, name, _filled(getattr(of, name))) for of, name in EMPTY),
        mock.patch.object(hopper, "_capable", return_value=True),
        mock.patch.object(hopper, "takes_kind", lambda dtype, width, _: takes_kind(dtype, width, gpu)),
    ]
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        for cache in caches:
            cache.cache_clear()
        try:
            yield launched
        finally:
            for cache in caches:
                cache.cache_clear()
