"""Compiling a CUDA kernel with the NVRTC that comes with torch, and launching it: no toolkit is needed."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor


class Kernel:
    """A compiled kernel of one device. Tensors are passed as pointers, integers as int, floats as double."""

    def __init__(self, source: Path, name: str, options: Sequence[str], shared_bytes: int) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._shared_bytes = shared_bytes
        module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        self._check(self._driver.cuModuleLoadData(ctypes.byref(module), _compiled(source, tuple(options))))
        self._check(self._driver.cuModuleGetFunction(ctypes.byref(self._function), module, name.encode()))
        most_dynamic_shared_bytes = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._check(self._driver.cuFuncSetAttribute(self._function, most_dynamic_shared_bytes, shared_bytes))

    def __call__(self, blocks: int, threads: int, *arguments: Tensor | int | float | None) -> None:
        boxes = [_boxed(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(boxes))(*(ctypes.addressof(box) for box in boxes))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self._check(
            self._driver.cuLaunchKernel(
                self._function, blocks, 1, 1, threads, 1, 1, self._shared_bytes, stream, pointers, None
            )
        )

    def _check(self, status: int) -> None:
        if status != 0:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(status, ctypes.byref(text))
            raise RuntimeError(f"CUDA: {(text.value or b'unknown error').decode()} ({status}).")


def _boxed(argument: Tensor | int | float | None) -> ctypes.c_void_p | ctypes.c_int | ctypes.c_double:
    if argument is None:
        return ctypes.c_void_p(0)
    if isinstance(argument, Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    return ctypes.c_int(argument) if isinstance(argument, int) else ctypes.c_double(argument)


def available() -> bool:
    """Whether kernels for Hopper can be compiled and run here."""
    return torch.cuda.is_available() and torch.version.cuda is not None and _nvrtc() is not None


@functools.cache
def _nvrtc() -> ctypes.CDLL | None:
    name = f"libnvrtc.so.{(torch.version.cuda or '').split('.')[0]}"
    packages = Path(torch.__file__).parents[1]
    for place in (name, *sorted(packages.glob(f"nvidia/**/{name}")), *sorted(packages.glob(f"torch/lib/{name}*"))):
        try:
            return ctypes.CDLL(str(place))
        except OSError:
            continue  # not there: the next place
    return None


@functools.cache  # a file's kernels are compiled together
def _compiled(source: Path, options: tuple[str, ...]) -> bytes:
    compiler = _nvrtc()
    if compiler is None:
        raise RuntimeError("NVRTC, the CUDA compiler that torch's packages bring, was not found.")
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    text, label = source.read_bytes(), source.name.encode()
    status = compiler.nvrtcCreateProgram(ctypes.byref(program), text, label, 0, None, None)
    given = [option.encode() for option in (*options, f"--include-path={source.parent}")]
    status = status or compiler.nvrtcCompileProgram(program, len(given), (ctypes.c_char_p * len(given))(*given))
    if status != 0:
        compiler.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        compiler.nvrtcGetProgramLog(program, log)
        raise RuntimeError(f"{source.name} did not compile ({status}):\n{log.value.decode()}")
    compiler.nvrtcGetCUBINSize(program, ctypes.byref(size))
    binary = ctypes.create_string_buffer(size.value)
    compiler.nvrtcGetCUBIN(program, binary)
    return binary.raw
