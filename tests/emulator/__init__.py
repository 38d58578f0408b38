"""Running headway's CUDA kernels for Hopper on a CPU, without a GPU.

    from emulator import emulated

    with emulated():
        hw.attention(q, k, v, bias, backend="triton")  # tensors of the CPU, in half precision

takes the way that a call takes on an H100: the project's own host code, its launches, its CUDA sources. (The Triton
kernels beside them are interpreted; `TRITON_INTERPRET=1` must be set before triton is imported.) Whatever launches with
`cuda.Kernel` can run in there, autograd too.

The sources stay as they are. `translate.py` turns the inline PTX of a source into calls, and g++ compiles it with
`device.h`; `running.cpp`, `memory.cpp` and `products.cpp` are the GPU. Its threads are fibers of one host thread, which
take turns in a random order. `emulated(seed=...)` chooses the order, `sources=` a folder with other versions of the
kernels, and `multiprocessors=` how many the GPU has. What a kernel may not do is an `EmulatorError` that names the
line: an address out of bounds or not aligned, an instruction that is not known, a misused barrier, a deadlock with
who waits for what.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch

from .launching import Driver, EmulatorError, Kernel, available, tensor_map_of

__all__ = ["EmulatorError", "Kernel", "available", "emulated"]


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
