"""Compiling kernels for the emulator, and launching them on tensors of the CPU."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import random
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from .translate import translate

HERE = Path(__file__).parent
COMPILER = shutil.which("g++")
MACHINE = ["-std=c++20", "-O3", "-march=native", "-fPIC", "-shared", "-U_FORTIFY_SOURCE", "-w"]
# An index outside of a local array, and an address that is not aligned for its type, stop the kernel.
CHECKS = ["-fsanitize=bounds,alignment", "-fsanitize-undefined-trap-on-error", "-fno-strict-aliasing"]
KERNELS = ["-std=c++17", "-O1", "-march=native", "-fPIC", "-shared", "-w", "-g1", "-Wl,-Bsymbolic", *CHECKS]
SOURCES = ["running.cpp", "memory.cpp", "products.cpp"]
HEADERS = ["device.h", "machine.h"]
MAP_MARK = 0x7E4507E4507E4507
ROOM = 4096


class EmulatorError(RuntimeError):
    """What a kernel did that a GPU would not, or not well, take."""


def folder() -> Path:
    """Where compiled kernels are kept from one run to the next."""
    made = Path(tempfile.gettempdir()) / f"headway-emulator-{os.getuid()}"
    made.mkdir(mode=0o700, exist_ok=True)
    return made


def _made(parts: Sequence[bytes | str], make: Callable[[Path], None], ending: str) -> Path:
    """The file that `make` writes, once for the same parts."""
    key = hashlib.sha256("\0".join(p if isinstance(p, str) else p.decode() for p in parts).encode()).hexdigest()[:24]
    made = folder() / f"{key}{ending}"
    if not made.exists():
        room = folder() / f"{key}.{os.getpid()}{ending}"
        make(room)
        room.replace(made)
    return made


def _run(command: Sequence[str | Path], what: str, text: str | None = None) -> str:
    process = subprocess.run([str(part) for part in command], input=text, capture_output=True, text=True, check=False)
    if process.returncode != 0:
        raise EmulatorError(f"{what} did not compile for the emulator:\n{process.stderr[:6000]}")
    return process.stdout


def _compile(arguments: Sequence[str | Path], what: str) -> str:
    if COMPILER is None:
        raise EmulatorError("the emulator needs g++, which was not found.")
    return _run([COMPILER, *arguments], what)


@functools.cache
def machine() -> ctypes.PyDLL:
    """The emulated GPU."""
    sources = [HERE / name for name in SOURCES]
    parts = [*MACHINE, *((HERE / name).read_text() for name in (*SOURCES, *HEADERS))]
    library = _made(parts, lambda to: _compile([*MACHINE, "-o", to, *sources], "the machine"), ".so")
    loaded = ctypes.PyDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    loaded.emulator_guard.restype = ctypes.c_void_p
    loaded.emulator_guard.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return loaded


@functools.cache
def compiled(source: Path, options: tuple[str, ...]) -> Path:
    """The library of a CUDA source. Of NVRTC's options, macros and folders of headers count."""
    given = [option for option in options if option.startswith(("-D", "-I"))]
    folders = [f"-I{option.split('=', 1)[1]}" for option in options if option.startswith("--include-path=")]
    own = ["-E", "-x", "c++", "-std=c++17", "-undef", "-D__CUDACC__", "-D__CUDA_ARCH__=900"]
    text = translate(_compile([*own, *given, *folders, f"-I{source.parent}", source], source.name))

    def make(to: Path) -> None:
        made = to.with_suffix(".cpp")
        made.write_text(text)
        try:
            _compile([*KERNELS, "-include", HERE / "device.h", "-o", to, made], source.name)
        finally:
            if not os.environ.get("HEADWAY_EMULATOR_KEEP"):
                made.unlink()

    return _made([text, *KERNELS, (HERE / "device.h").read_text()], make, ".so")


class Kernel:
    """Stands for `cuda.Kernel`."""

    seeds = random.Random(0)  # of the orders in which threads run
    folder: Path | None = None  # of sources, in place of the project's own
    launched: list[str] = []  # names  # noqa: RUF012

    def __init__(self, source: Path, name: str, options: Sequence[str]) -> None:
        machine()
        self.name = name
        if self.folder is not None:
            source = self.folder / source.name
        self.library = compiled(source, tuple(options))
        loaded = ctypes.PyDLL(str(self.library))
        self.shared_bytes = ctypes.c_int.in_dll(loaded, f"{name}_shared_bytes").value
        self.entry = getattr(loaded, f"emulator_run_{name}")
        self.shared_bytes = ctypes.c_int.in_dll(loaded, f"{name}_shared_bytes").value
        room = (ctypes.c_uint64 * 128)()
        count = getattr(loaded, f"emulator_sizes_{name}")(room)
        self.sizes = list(room)[:count]

    def __call__(self, blocks: tuple[int, int], threads: int, *arguments: Any, together: bool = False) -> None:
        from headway.attention.triton import cuda

        boxes = [cuda._boxed(argument) for argument in arguments]
        sizes = [ctypes.sizeof(box) for box in boxes]
        if sizes != self.sizes:
            raise EmulatorError(f"{self.name}: arguments of {sizes} bytes are passed, and it takes {self.sizes}.")
        seed = self.seeds.getrandbits(62)
        memory, names = self._guard(arguments, boxes, seed)
        pointers = (ctypes.c_void_p * len(boxes))(*(ctypes.addressof(box) for box in memory))
        text = ctypes.create_string_buffer(ROOM)
        status = machine().emulator_launch(
            self.entry, pointers, *blocks, threads, self.shared_bytes, int(together), ctypes.c_uint64(seed),
            text, ctypes.c_size_t(ROOM),
        )  # fmt: skip
        beside = machine().emulator_unguard(int(status == 0))
        type(self).launched.append(self.name)
        if status != 0 or beside >= 0:
            said = text.value.decode() or f"memory beside tensor {beside} of the launch was written"
            said = re.sub("<0x[0-9a-f]+>", lambda found: line_of(int(found[0][1:-1], 16)), said)
            tensors = "\n".join(f"  tensor {i}: {name}" for i, name in enumerate(names)) if "tensor" in said else ""
            raise EmulatorError(f"{self.name}: {said}\n  {blocks} blocks of {threads} threads, seed {seed}\n{tensors}")

    def _guard(self, arguments: Sequence[Any], boxes: list[Any], seed: int) -> tuple[list[Any], list[str]]:
        """Arguments that point to copies of the tensors' memory, between pages that cannot be reached."""
        copies: dict[int, int] = {}
        names: list[str] = []
        made: list[Any] = []
        for index, (argument, box) in enumerate(zip(arguments, boxes, strict=True)):
            tensor = argument if isinstance(argument, Tensor) else getattr(argument, "tensor", None)
            if tensor is None or tensor.untyped_storage().nbytes() == 0:
                made.append(box)
                continue
            storage = tensor.untyped_storage()
            start = storage.data_ptr()
            if start not in copies:
                copies[start] = machine().emulator_guard(start, storage.nbytes(), seed & 1)
                names.append(f"argument {index}, {storage.nbytes()} bytes, {tuple(tensor.shape)} {tensor.dtype}")
            if isinstance(argument, Tensor):
                made.append(ctypes.c_void_p(argument.data_ptr() - start + copies[start]))
            else:
                box = type(box).from_buffer_copy(box)
                room = ctypes.create_string_buffer(256)
                aligned = type(box).from_buffer(room, -ctypes.addressof(room) % 64)
                ctypes.memmove(ctypes.byref(aligned), ctypes.byref(box), ctypes.sizeof(box))
                aligned.opaque[1] = aligned.opaque[1] - start + copies[start]
                made.append(aligned)
        return made, names


def line_of(address: int) -> str:
    """Which line of a source a machine instruction is of, and of those that it is inlined in."""
    tool = shutil.which("addr2line")
    for line in Path("/proc/self/maps").read_text().splitlines():
        where, _, offset, *_, file = [*line.split(maxsplit=5), ""][:6]
        first, last = (int(part, 16) for part in where.split("-"))
        if tool and first <= address < last and Path(file.strip()).is_file():
            at = hex(address - first + int(offset, 16))
            found = _run([tool, "-i", "-s", "-e", file.strip(), at], "addr2line").splitlines()
            return ", in ".join(name.split(" (")[0] for name in found)
    return hex(address)


class Driver:
    """Stands for the CUDA driver, of which `tensor_map` wants one function."""

    def cuTensorMapEncodeTiled(
        self, made: Any, kind: int, rank: int, address: Any, sizes: Any, between: Any, box: Any, every: Any,
        interleave: int, swizzle: int, promotion: int, beyond: int,
    ) -> int:  # fmt: skip
        """Write what the emulator reads of a map, if the driver would take it (memory.cpp, `Map`)."""
        element = {1: 2, 6: 2, 9: 2, 0: 1, 2: 4, 7: 4}[kind]
        sizes, between, box, every = (list(part) for part in (sizes, between, box, every))
        row = box[0] * element
        widest = {0: 256 * element, 1: 32, 2: 64, 3: 128}[swizzle]
        problems = {
            "the address is no multiple of 16": address.value % 16,
            "a stride is no multiple of 16, or none": any(step % 16 or not 0 < step < 2**40 for step in between),
            "a side of the box is 0 or above 256": not all(0 < side <= 256 for side in box),
            "a size is 0 or above 2^32": not all(0 < size <= 2**32 for size in sizes),
            "the box's rows are no multiples of 16 bytes": row % 16,
            "the box's rows are wider than the swizzle": row > widest,
            "interleaving and NaN beyond the end are not emulated": interleave or beyond,
            "steps between elements are not emulated": any(step != 1 for step in every),
            "rows narrower than the swizzle are not emulated": swizzle and row != widest,
        }
        for problem, is_so in problems.items():
            if is_so:
                raise EmulatorError(f"cuTensorMapEncodeTiled: {problem} ({sizes=}, {between=}, {box=}, {swizzle=}).")
        target = made._obj
        ctypes.memset(ctypes.byref(target), 0, ctypes.sizeof(target))
        target.opaque[0], target.opaque[1] = MAP_MARK, address.value
        numbers = [rank, element, swizzle, *box, *[0] * (5 - rank), *sizes, *[0] * (5 - rank), 0]
        (ctypes.c_uint32 * 14).from_buffer(target, 16)[:] = numbers
        (ctypes.c_uint64 * 4).from_buffer(target, 72)[: rank - 1] = between
        return 0


def tensor_map_of(original: Callable[..., Any]) -> Callable[..., Any]:
    """`cuda.tensor_map`, whose maps know their tensor."""

    def tensor_map(t: Tensor, *more: Any, **options: Any) -> Any:
        made = original(t, *more, **options)
        made.tensor = t
        return made

    return tensor_map


def available() -> bool:
    """Whether kernels can be emulated on this machine."""
    return COMPILER is not None and os.uname().machine in ("x86_64", "aarch64")
