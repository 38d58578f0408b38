"""What a learned position bias costs on a GPU, beside torch's own attention without any.

    python -m benchmarks.attention [--out benchmarks/results]

bf16, 12 heads x 64. Parity first: if a case differs from the float64 oracle by more than twice (gradients: three times)
eager's error plus a rounding step, nothing is timed. Times are medians over replays of a captured graph, so that they
are the GPU's and not Python's; "launched", in the raw numbers, is the same call made from Python.
"""

from __future__ import annotations

import argparse
import functools
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention

import headway as hw
from benchmarks.measure import environment, save

HEADS, WIDTH, RANK, CLIP = 12, 64, 64, 16
SHAPES = ((64, 1024), (128, 512), (512, 128), (2048, 16), (8192, 2))  # length and batch size
CHECKED = (50, 110, 320)  # lengths, of all families of kernels
Attend = Callable[["Inputs"], Tensor]


class Inputs:
    def __init__(self, length: int, batch: int, dtype: torch.dtype = torch.bfloat16) -> None:
        generator = torch.Generator("cuda").manual_seed(0)

        def draw(*size: int, kind: torch.dtype) -> Tensor:
            return torch.randn(size, generator=generator, device="cuda").to(kind).requires_grad_()

        own = torch.promote_types(dtype, torch.float32)
        self.q, self.k, self.v = (draw(batch, HEADS, length, WIDTH, kind=dtype) for _ in range(3))
        self.values = draw(1, HEADS, 2 * length - 1, kind=own)
        self.fixed = self.values.detach()
        self.buckets = draw(1, HEADS, 2 * 128 + 1, kind=own)  # T5, and clipped offsets: constant from 128 on
        self.left, self.right = (draw(1, HEADS, length, RANK, kind=own) for _ in range(2))
        self.matrix = draw(1, HEADS, length, length, kind=own)
        self.table = draw(HEADS, 2, 2, kind=own)
        self.keys, self.on_values = (draw(HEADS, 2 * CLIP + 1, WIDTH, kind=own) for _ in range(2))
        self.segments = (torch.arange(length, device="cuda") >= length // 2).long().expand(batch, -1)
        self.grad = torch.randn(batch, HEADS, length, WIDTH, generator=generator, device="cuda").to(dtype)


def torch_with(backend: SDPBackend, causal: bool = False, dropout: float = 0.0) -> Attend:
    def attend(x: Inputs) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(x.q, x.k, x.v, is_causal=causal, dropout_p=dropout)

    return attend


def fused(make: Callable[[Inputs], Any], **options: Any) -> Attend:
    def attend(x: Inputs) -> Tensor:
        made = make(x)
        bias, value_bias = made if isinstance(made, tuple) else (made, None)
        return hw.attention(x.q, x.k, x.v, bias, value_bias, **{"backend": "triton", **options})

    return attend


def flex(x: Inputs) -> Tensor:
    """FlexAttention with tiles set by hand: as shipped, it asks for more shared memory than there is."""
    length, table = x.q.shape[2], x.values[0].to(x.q.dtype)

    def add(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score + table[h, j - i + length - 1]

    tiles = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_M1": 32, "BLOCK_N1": 64, "BLOCK_M2": 64, "BLOCK_N2": 32}
    return compiled_flex()(x.q, x.k, x.v, score_mod=add, kernel_options={**tiles, "num_stages": 2})  # type: ignore


@functools.cache
def compiled_flex() -> Callable[..., Tensor]:
    return torch.compile(flex_attention, dynamic=False)


BIASES: dict[str, Callable[[Inputs], Any]] = {
    "headway, no bias": lambda x: None,
    "headway, learned Toeplitz": lambda x: hw.Toeplitz(x.values),
    "headway, fixed Toeplitz (ALiBi)": lambda x: hw.Toeplitz(x.fixed),
    "headway, T5 (clipped offsets)": lambda x: hw.Toeplitz.clipped(x.buckets, x.q.shape[2], x.k.shape[2]),
    "headway, segments": lambda x: hw.SegmentTable(x.table, x.segments, x.segments),
    "headway, low rank 64": lambda x: hw.LowRank(x.left, x.right),
    "headway, learned matrix (Dense)": lambda x: hw.Dense(x.matrix),
    "headway, Shaw, K = 16, keys and values": lambda x: (hw.RelativeKeys(x.keys), hw.RelativeValues(x.on_values)),
}
CASES: dict[str, Attend] = {
    "torch, cuDNN, no bias": torch_with(SDPBackend.CUDNN_ATTENTION),
    "torch, FlashAttention-2, no bias": torch_with(SDPBackend.FLASH_ATTENTION),
    "torch, dense learned Toeplitz": lambda x: F.scaled_dot_product_attention(
        x.q, x.k, x.v, hw.Toeplitz(x.values).dense().to(x.q.dtype).expand(len(x.q), -1, -1, -1)
    ),
    "torch, FlexAttention, learned Toeplitz": flex,
    **{name: fused(make) for name, make in BIASES.items()},
    "headway, low rank 64": fused(BIASES["headway, low rank 64"], backend="auto"),  # long ones train on torch
    "headway, low rank 64, joined to q and k (cuDNN)": fused(BIASES["headway, low rank 64"], backend="sdpa"),
    "torch, cuDNN, causal": torch_with(SDPBackend.CUDNN_ATTENTION, causal=True),
    "headway, learned Toeplitz, causal": fused(BIASES["headway, learned Toeplitz"], causal=True),
    "torch, cuDNN, dropout": torch_with(SDPBackend.CUDNN_ATTENTION, dropout=0.1),
    "torch, FlashAttention-2, dropout": torch_with(SDPBackend.FLASH_ATTENTION, dropout=0.1),
    "headway, learned Toeplitz, dropout": fused(BIASES["headway, learned Toeplitz"], dropout=0.1),
}
SLOW = ("torch, dense learned Toeplitz", "torch, FlexAttention, learned Toeplitz")


def wanted(x: Inputs) -> list[Tensor]:
    return [t for t in vars(x).values() if isinstance(t, Tensor) and t.requires_grad]


def train(attend: Attend, x: Inputs) -> list[Tensor | None]:
    output = attend(x)
    return [output, *torch.autograd.grad(output, wanted(x), x.grad.to(output.dtype), allow_unused=True)]


def parity(length: int, batch: int = 2) -> dict[str, float]:
    """Error over what is allowed: at most 1 for every output and gradient."""
    worst = {}
    half, exact = Inputs(length, batch), Inputs(length, batch, torch.float64)
    for name, value in vars(half).items():  # all start from the same numbers
        if isinstance(value, Tensor) and value.is_floating_point():
            setattr(exact, name, value.detach().double().requires_grad_(value.requires_grad))
    for name, make in BIASES.items():
        runs = [
            train(fused(make, backend=backend), x)
            for backend, x in (("triton", half), ("eager", half), ("eager", exact))
        ]
        ratios = []
        for index, (ours, eager, truth) in enumerate(zip(*runs, strict=True)):
            if truth is not None and ours is not None and eager is not None:
                allowed = (2 if index == 0 else 3) * (eager.double() - truth).norm() + 2**-8 * truth.norm()
                ratios.append(((ours.double() - truth).norm() / allowed).item())
        worst[name] = max(ratios)
    return worst


def milliseconds(run: Callable[[], Any], repeats: int, captured: bool) -> float:
    for _ in range(3):
        run()
    if captured:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        run = graph.replay
        run()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    torch.cuda.synchronize()
    for start, stop in events:
        start.record()
        run()
        stop.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(stop) for start, stop in events)


def measure(length: int, batch: int) -> dict[str, dict[str, float | None]]:
    torch.compiler.reset()  # FlexAttention is compiled for each shape, and torch stops after eight
    x = Inputs(length, batch)
    result: dict[str, dict[str, float | None]] = {}
    for name, attend in CASES.items():
        repeats = 5 if name in SLOW else 20
        try:
            with torch.no_grad():
                forward = milliseconds(lambda a=attend: a(x), repeats, captured=True)
            both = milliseconds(lambda a=attend: train(a, x), repeats, captured=True)
            launched = milliseconds(lambda a=attend: train(a, x), repeats, captured=False)
            result[name] = {"forward": forward, "forward+backward": both, "launched": launched}
        except (RuntimeError, torch.OutOfMemoryError) as error:  # what torch raises where a kernel does not run
            result[name] = {"forward": None, "forward+backward": None, "launched": None}
            print(f"{name} at n = {length}: {type(error).__name__}: {str(error).splitlines()[0]}")
            torch.cuda.empty_cache()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    found = [parity(length) for length in CHECKED]
    errors = {name: max(each[name] for each in found) for name in BIASES}
    wrong = {name: value for name, value in errors.items() if not value <= 1}
    if wrong:
        raise SystemExit(f"parity: {wrong} times the allowed error; nothing is timed")
    record: dict[str, Any] = {"environment": environment(), "parity": errors, "milliseconds": {}}
    for length, batch in SHAPES:
        record["milliseconds"][f"n={length} B={batch}"] = measure(length, batch)
    table = Table(title=f"milliseconds, forward / forward+backward, {HEADS} heads x {WIDTH}, bf16")
    table.add_column("")
    for shape in record["milliseconds"]:
        table.add_column(shape, justify="right")
    for name in CASES:
        cells = [times[name] for times in record["milliseconds"].values()]
        shown = [f"{c['forward']:.3f} / {c['forward+backward']:.3f}" if c["forward"] else "-" for c in cells]
        table.add_row(name, *shown)
    Console(width=140).print(table)
    print(f"wrote {save('attention', record, options.out)}")


if __name__ == "__main__":
    main()
