"""What a learned position bias costs on a CPU, as a ratio to attention without any, in one run.

    python -m benchmarks.cpu_attention [--quick] [--out benchmarks/results]

Parity first, at the shapes that are timed: if the output or a gradient of any case differs from the float64 oracle,
nothing is timed. Every sample is kept, and so is whether two calls give the same bits.
"none" is torch's scaled_dot_product_attention without a bias; "torch, dense" is the same function given the learned
Toeplitz bias as a dense mask, what torch alone offers.
"""

from __future__ import annotations

import argparse
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor

import headway as hw
from benchmarks.measure import add_record_options, environment, interleaved, ratios, save
from headway.bench.terminal import fitting_tables

HEADS, WIDTH, RANK, CLIP = 12, 64, 64, 16
SHAPES = ((128, 16), (512, 4), (2048, 1))  # length and batch size
Attend = Callable[["Inputs"], Tensor]


class Inputs:
    """q, k, v and the parameters of every bias, all learned."""

    def __init__(self, length: int, batch: int, dtype: torch.dtype = torch.float32) -> None:
        generator = torch.Generator().manual_seed(0)

        def draw(*size: int) -> Tensor:
            return torch.randn(size, generator=generator).to(dtype).requires_grad_()

        self.length, self.batch = length, batch
        self.q, self.k, self.v = (draw(batch, HEADS, length, WIDTH) for _ in range(3))
        self.values = draw(1, HEADS, 2 * length - 1)
        self.left, self.right = (draw(1, HEADS, length, RANK) for _ in range(2))
        self.keys_table, self.values_table = (draw(HEADS, 2 * CLIP + 1, WIDTH) for _ in range(2))
        self.segment_table = draw(HEADS, 2, 2)
        self.segments = (torch.arange(length) >= length // 2).long().expand(batch, -1)
        self.grad = torch.randn(batch, HEADS, length, WIDTH, generator=generator).to(dtype)
        self.kept_low_rank = hw.LowRank(self.left, self.right).frozen()  # as encodings keep them for inference
        self.kept_toeplitz = hw.Toeplitz(self.values, length).frozen()

    def learned(self) -> list[Tensor]:
        return [t for t in vars(self).values() if isinstance(t, Tensor) and t.requires_grad]


def torch_dense(x: Inputs) -> Tensor:
    return F.scaled_dot_product_attention(x.q, x.k, x.v, hw.Toeplitz(x.values).dense())


TRAINING: dict[str, Attend] = {
    "none": lambda x: F.scaled_dot_product_attention(x.q, x.k, x.v),
    "Toeplitz": lambda x: hw.attention(x.q, x.k, x.v, hw.Toeplitz(x.values)),
    "torch, dense": torch_dense,
    "segments": lambda x: hw.attention(x.q, x.k, x.v, hw.SegmentTable(x.segment_table, x.segments, x.segments)),
    "low rank 64": lambda x: hw.attention(x.q, x.k, x.v, hw.LowRank(x.left, x.right)),
    "Shaw, K = 16": lambda x: hw.attention(
        x.q, x.k, x.v, hw.RelativeKeys(x.keys_table), hw.RelativeValues(x.values_table)
    ),
}
INFERENCE: dict[str, Attend] = {
    **TRAINING,
    "Toeplitz": lambda x: hw.attention(x.q, x.k, x.v, x.kept_toeplitz),
    "low rank 64": lambda x: hw.attention(x.q, x.k, x.v, x.kept_low_rank),
}


def train(attend: Attend, x: Inputs) -> list[Tensor]:
    output = attend(x)
    wanted = x.learned()
    grads = torch.autograd.grad(output, wanted, x.grad.to(output.dtype), allow_unused=True)
    return [output.detach(), *(g if g is not None else torch.zeros_like(t) for g, t in zip(grads, wanted, strict=True))]


def parity(length: int, batch: int) -> dict[str, float]:
    """Return the largest error of output and gradients against the formula in float64, over the largest value."""
    x, exact = Inputs(length, batch), Inputs(length, batch, torch.float64)

    def error(got: list[Tensor], truth: list[Tensor]) -> float:
        pairs = zip(got, truth, strict=True)
        return max(((a.double() - b).abs().max() / b.abs().max().clamp(min=1e-30)).item() for a, b in pairs)

    errors = {name: error(train(attend, x), train(_oracle(name), exact)) for name, attend in TRAINING.items()}
    with torch.no_grad():
        for name, attend in INFERENCE.items():
            errors[f"{name}, inference"] = error([attend(x)], [_oracle(name)(exact)])
    return errors


def repeats(shapes: tuple[tuple[int, int], ...]) -> dict[str, dict[str, bool]]:
    """Return whether two calls give the same bits: output and gradients in training, the output in inference."""
    found: dict[str, dict[str, bool]] = {}
    for length, batch in shapes:
        x, same = Inputs(length, batch), {}
        for name, attend in TRAINING.items():
            same[name] = _same_bits(train(attend, x), train(attend, x))
        with torch.no_grad():
            for name, attend in INFERENCE.items():
                same[f"{name}, inference"] = _same_bits([attend(x)], [attend(x)])
        found[f"n={length} B={batch}"] = same
    return found


def _same_bits(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def _oracle(name: str) -> Attend:
    def attend(x: Inputs) -> Tensor:
        bias: Any = {
            "Toeplitz": hw.Toeplitz(x.values),
            "torch, dense": hw.Toeplitz(x.values),
            "segments": hw.SegmentTable(x.segment_table, x.segments, x.segments),
            "low rank 64": hw.LowRank(x.left, x.right),
            "Shaw, K = 16": hw.RelativeKeys(x.keys_table),
        }.get(name)
        values = hw.RelativeValues(x.values_table) if name.startswith("Shaw") else None
        return hw.attention(x.q, x.k, x.v, bias, values, backend="eager")

    return attend


def measure(length: int, batch: int, rounds: int) -> dict[str, Any]:
    x = Inputs(length, batch)
    seconds = {"training": interleaved({n: lambda a=a: train(a, x) for n, a in TRAINING.items()}, rounds)}
    with torch.no_grad():
        seconds["inference"] = interleaved({n: lambda a=a: a(x) for n, a in INFERENCE.items()}, 2 * rounds)
    return {
        "length": length,
        "batch": batch,
        "seconds": seconds,
        "ratios": {mode: ratios(times, "none") for mode, times in seconds.items()},
    }


def send_peak(name: str, length: int, pipe: Any) -> None:
    torch.set_num_threads(1)
    x = Inputs(length, 1)
    train(TRAINING[name], Inputs(64, 1))  # what the first call loads
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew from what is held now
    before = read_memory("VmHWM")
    train(TRAINING[name], x)
    pipe.send(read_memory("VmHWM") - before)


def read_memory(what: str) -> int:
    """Return a number of bytes of this process's memory, as Linux counts them: VmRSS or VmHWM."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))


def memory(lengths: tuple[int, ...]) -> dict[str, dict[int, int]]:
    """Return the bytes by which a training step of one sequence raises the peak of a new process."""
    result: dict[str, dict[int, int]] = {}
    context = multiprocessing.get_context("spawn")
    for name in ("none", "Toeplitz", "torch, dense"):
        for length in lengths:
            receive, send = context.Pipe(duplex=False)
            process = context.Process(target=send_peak, args=(name, length, send))
            process.start()
            result.setdefault(name, {})[length] = receive.recv()
            process.join()
    return result


def start_up(rounds: int) -> dict[str, Any]:
    """Return the seconds to import torch, to import headway's core, and to print the help."""

    def run(*arguments: str) -> Callable[[], Any]:
        return lambda: subprocess.run([sys.executable, *arguments], check=True, capture_output=True)

    cases = {
        "import torch": run("-c", "import torch"),
        "import headway core": run("-c", "import headway; headway.attention; headway.encoding"),
        "headway --help": run("-m", "headway", "--help"),
    }
    seconds = interleaved(cases, rounds)
    return {"seconds": seconds, "ratios": ratios(seconds, "import torch")}


def print_ratios(lengths: list[dict[str, Any]], console: Console) -> None:
    """Print every bias's time over attention without one."""
    columns = [
        (f"{mode}\nn = {part['length']}", [f"{part['ratios'][mode][name]['median']:.2f}" for name in TRAINING])
        for mode in ("training", "inference")
        for part in lengths
    ]
    title = f"Time over attention without bias, {HEADS} heads x {WIDTH}, float32"
    for table in fitting_tables(list(TRAINING), columns, console.width, title=title):
        console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one short length, few rounds: does it run?")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    add_record_options(parser)
    options = parser.parse_args()
    machine = environment(dirty=options.dirty or options.quick, commit=options.commit)
    shapes, rounds = (((64, 2),), 2) if options.quick else (SHAPES, options.rounds)

    started = time.perf_counter()
    errors = {f"n={length} B={batch}": parity(length, batch) for length, batch in shapes}
    wrong = {
        f"{name}, {shape}": error for shape, each in errors.items() for name, error in each.items() if not error < 1e-4
    }
    if wrong:
        sys.exit(f"parity: {wrong} differ from the oracle; nothing is timed")
    record: dict[str, Any] = {"environment": machine, "parity": errors, "repeats": repeats(shapes)}
    record["lengths"] = [measure(length, batch, rounds) for length, batch in shapes]
    if not options.quick:  # the account of memory is Linux's
        record["memory"] = memory((1024, 2048, 4096))
        record["start_up"] = start_up(5)

    print_ratios(record["lengths"], Console())
    print(f"wrote {save('cpu_attention', record, options.out)} after {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
