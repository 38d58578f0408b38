"""Compiling a CUDA kernel with the NVRTC that comes with torch, and launching it: no toolkit is needed."""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor


class Kernel:
    """A compiled kernel of one device. Tensors are passed as pointers, integers as int, floats as double."""

    def __init__(self, source: Path, name: str, options: Sequence[str]) -> None:
        driver, binary = driver_here(), _compiled(source, tuple(options))
        self._shared_bytes = shared_bytes(binary, name)
        module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        _check(driver.cuModuleLoadData(ctypes.byref(module), binary))
        _check(driver.cuModuleGetFunction(ctypes.byref(self._function), module, name.encode()))
        most_dynamic_shared_bytes = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _check(driver.cuFuncSetAttribute(self._function, most_dynamic_shared_bytes, self._shared_bytes))

    def __call__(self, blocks: tuple[int, int], threads: int, *arguments: Argument, together: bool = False) -> None:
        """Launch it; `together`: all blocks run at the same time, or none does."""
        boxes = [_boxed(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(boxes))(*(ctypes.addressof(box) for box in boxes))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        size = (*blocks, 1, threads, 1, 1, self._shared_bytes, stream, pointers)
        if together:
            _check(driver_here().cuLaunchCooperativeKernel(self._function, *size))
        else:
            _check(driver_here().cuLaunchKernel(self._function, *size, None))


def driver_here() -> ctypes.CDLL:
    """The driver, ready for calls from this thread.

    A thread of autograd's that has launched nothing yet has no context, and the driver, unlike torch, gives it none.
    """
    driver, context = _driver(), ctypes.c_void_p()
    _check(driver.cuCtxGetCurrent(ctypes.byref(context)))
    if not context.value:
        _check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), torch.cuda.current_device()))
        _check(driver.cuCtxSetCurrent(context))
    return driver


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


class TensorMap(ctypes.Structure):
    """Where a tensor lies, for the tensor memory accelerator. Made by `tensor_map`."""

    _fields_ = [("opaque", ctypes.c_uint64 * 16)]


def tensor_map(t: Tensor) -> TensorMap:
    """Describe a (B, H, L, D) tensor in half precision, which is read in tiles of 64 x 64.

    Tiles are zero beyond the tensor's ends, and swizzled in pieces of 16 bytes.
    """
    return _tensor_map(t.data_ptr(), tuple(t.shape), t.stride())


@functools.lru_cache(maxsize=1024)
def _tensor_map(address: int, shape: tuple[int, ...], stride: tuple[int, ...]) -> TensorMap:
    room = ctypes.create_string_buffer(2 * ctypes.sizeof(TensorMap))
    made = TensorMap.from_buffer(room, -ctypes.addressof(room) % 64)
    sizes = (ctypes.c_uint64 * 4)(*reversed(shape))
    # Of an axis of one, no step is ever taken.
    between = [2 * step if size > 1 else 16 for size, step in zip(shape[2::-1], stride[2::-1], strict=True)]
    tile, every = (ctypes.c_uint32 * 4)(64, 64, 1, 1), (ctypes.c_uint32 * 4)(1, 1, 1, 1)
    of_16_bits, plain, swizzle_128, promote_128, zeros_beyond = 1, 0, 3, 2, 0  # as the driver numbers them
    status = driver_here().cuTensorMapEncodeTiled(
        ctypes.byref(made), of_16_bits, 4, ctypes.c_void_p(address), sizes, (ctypes.c_uint64 * 3)(*between),
        tile, every, plain, swizzle_128, promote_128, zeros_beyond,
    )  # fmt: skip
    _check(status)
    return made


def _check(status: int) -> None:
    if status != 0:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(status, ctypes.byref(text))
        raise RuntimeError(f"CUDA: {(text.value or b'unknown error').decode()} ({status}).")


Argument = Tensor | TensorMap | int | float | None


def _boxed(argument: Argument) -> TensorMap | ctypes.c_void_p | ctypes.c_int | ctypes.c_double:
    if isinstance(argument, TensorMap):
        return argument
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
    """That of torch's CUDA; beside a torch without CUDA any, which can compile though nothing will run."""
    name = f"libnvrtc.so.{(torch.version.cuda or '').split('.')[0]}"
    packages = Path(torch.__file__).parents[1]
    files = [*sorted(packages.glob(f"nvidia/**/{name}*")), *sorted(packages.glob(f"torch/lib/{name}*"))]
    for place in (name, *files):
        try:
            for builtins in place.parent.glob("libnvrtc-builtins.so*") if isinstance(place, Path) else ():
                ctypes.CDLL(str(builtins))  # which it looks for by name
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


def shared_bytes(binary: bytes, kernel: str) -> int:
    """Read how much shared memory a kernel needs from its compiled code, where hopper.cuh has SHARED_BYTES put it."""
    wanted = f"{kernel}_shared_bytes".encode()
    sections = _sections(binary)
    for kind, offset, size, names in sections:
        if kind != SYMBOLS:
            continue
        _, names_offset, names_size, _ = sections[names]
        texts = binary[names_offset : names_offset + names_size]
        for name, _, _, section, place, _ in struct.iter_unpack("<IBBHQQ", binary[offset : offset + size]):
            if texts[name : texts.index(b"\0", name)] == wanted:
                found: int = struct.unpack_from("<i", binary, sections[section][1] + place)[0]
                return found
    raise RuntimeError(f"The compiled code of kernel {kernel!r} does not say how much shared memory it needs.")


SYMBOLS = 2  # SHT_SYMTAB


def _sections(binary: bytes) -> list[tuple[int, int, int, int]]:
    """Sections of an ELF file: kind, offset, size and link."""
    (start,) = struct.unpack_from("<Q", binary, 0x28)
    size, count = struct.unpack_from("<HH", binary, 0x3A)
    headers = (struct.unpack_from("<IIQQQQI", binary, start + i * size) for i in range(count))
    return [(kind, offset, length, link) for _, kind, _, _, offset, length, link in headers]
