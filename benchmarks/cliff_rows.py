"""The calls of `benchmarks.cliffs`, each on the kernels that `auto` takes, on the general ones, and by torch alone."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from benchmarks.attention_inputs import BIASES, Form, Inputs
from benchmarks.attention_rows import Attend, Row, by_headway, by_torch, by_torch_with_matrix, train
from benchmarks.flex_tiles import Shape

NARROW, USUAL, ODD, WIDER, WIDE, WIDEST = (  # 768 or 1,024 columns; of 80 no whole number of heads has as many
    Form(heads, width) for heads, width in ((24, 32), (12, 64), (10, 80), (8, 96), (8, 128), (4, 256))
)
SHARED_KEYS = Form(32, 128, key_heads=8)
SINGLE = replace(USUAL, dtype=torch.float32)
Aim = tuple[float, float]  # forward, forward and backward, over torch without bias or mask


@dataclass(frozen=True)
class Cliff:
    """A call that should be about as fast as torch's attention without a bias."""

    bias: str
    form: Form = USUAL
    aim: Aim | None = None
    causal: bool = False

    @property
    def base(self) -> str:
        """Name the row of torch's attention at the same form without bias or mask; causal order is kept."""
        return f"torch, {self.form}{', causal' if self.causal else ''}"


CLIFFS = {
    "Toeplitz, D = 64": Cliff("Toeplitz", aim=(1.0, 1.15)),
    "Toeplitz, D = 32": Cliff("Toeplitz", NARROW, (1.15, 1.35)),
    "Toeplitz, D = 80": Cliff("Toeplitz", ODD, (1.3, 1.5)),
    "Toeplitz, D = 96": Cliff("Toeplitz", WIDER, (1.3, 1.5)),
    "Toeplitz, D = 128": Cliff("Toeplitz", WIDE, (1.15, 1.35)),
    "Toeplitz, D = 128, causal": Cliff("Toeplitz", WIDE, (1.15, 1.35), causal=True),
    "Toeplitz, D = 128, 8 of 32 key heads": Cliff("Toeplitz", SHARED_KEYS, (1.15, 1.35)),
    "Toeplitz, D = 256": Cliff("Toeplitz", WIDEST, (1.5, 2.0)),
    "Toeplitz, float32": Cliff("Toeplitz", SINGLE, (1.3, 1.6)),
    "Toeplitz, boolean key mask": Cliff("Toeplitz, key mask", aim=(1.15, 1.3)),
    "Toeplitz, lengths": Cliff("Toeplitz, lengths"),
    "no bias, boolean key mask": Cliff("key mask", aim=(1.15, 1.3)),
    "no bias, lengths": Cliff("lengths"),
    "Toeplitz, four packed documents": Cliff("Toeplitz, documents", aim=(0.6, 0.7)),
    "Toeplitz of each sequence": Cliff("Toeplitz of each sequence", aim=(1.25, 1.5)),
    "Dense, shared, D = 64": Cliff("matrix", aim=(1.3, 1.6)),
    "Dense, shared, D = 32": Cliff("matrix", NARROW, (1.4, 1.7)),
    "Dense, shared, D = 128": Cliff("matrix", WIDE, (1.4, 1.7)),
    "Dense of each sequence": Cliff("matrix of each sequence", aim=(2.0, 3.0)),
    "low rank 64, D = 128": Cliff("low rank", WIDE, (1.3, 1.7)),
    "relative keys, K = 16, D = 64": Cliff("relative keys", aim=(1.1, 1.3)),
    "relative keys, K = 16, D = 128": Cliff("relative keys", WIDE, (1.3, 1.5)),
    "relative keys, K = 64": Cliff("wide relative keys", aim=(1.5, 1.9)),
    "relative keys over all offsets": Cliff("all offsets", aim=(2.2, 3.0)),
    "Transformer-XL (q + v over all offsets)": Cliff("Transformer-XL", aim=(2.2, 3.0)),
    "DeBERTa, c2p + p2c, 512 rows by buckets": Cliff("DeBERTa", aim=(3.5, 4.5)),
    "Toeplitz + 3 segments": Cliff("Toeplitz, three segments", aim=(1.2, 1.4)),
    "Toeplitz + 2 segments + low rank": Cliff("Toeplitz, segments, low rank", aim=(1.5, 1.9)),
}
HOST = "host time of one call from Python, D = 64, ms"
HOST_AIM: Aim = (0.12, 0.35)
GENERAL = ", general kernels"
PEERS = {"Dense of each sequence": "torch, its dense mask, of each sequence"}  # torch doing the same work


@contextlib.contextmanager
def without_hopper_kernels() -> Iterator[None]:
    """Plan calls as on a GPU of another generation; tests/unit/attention/traced_calls.py does it in the same way."""
    from headway.attention.triton import hopper

    capable = hopper._capable
    hopper._capable = lambda device: False
    try:
        yield
    finally:
        hopper._capable = capable


def on_general_kernels(attend: Attend) -> Attend:
    """Make the same call without Hopper's kernels; its backward pass takes what its forward pass planned."""

    def run(x: Inputs) -> Tensor:
        with without_hopper_kernels():
            return attend(x)

    return run


def rows(gpu: bool, cliffs: dict[str, Cliff]) -> dict[str, Row]:
    """List for each call torch's attention, ours, and ours on the general kernels; on a CPU what it has in their place.

    The general kernels are asked for by name, so that a call they do not take has no time rather than torch's.
    """
    every: dict[str, Row] = {}
    for name, cliff in cliffs.items():
        if cliff.base not in every:
            every[cliff.base] = torch_alone(cliff, gpu)
        if name in PEERS:
            backends = {"EFFICIENT": SDPBackend.EFFICIENT_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}
            dense = by_torch_with_matrix(cliff.bias, backends if gpu else {"torch's choice": None})
            every[PEERS[name]] = replace(dense, form=cliff.form)
        usual = replace(by_headway(cliff.bias, "auto", cliff.causal), form=cliff.form)
        asked = by_headway(cliff.bias, "triton" if gpu else "auto", cliff.causal).settings[""]
        every[name] = usual
        every[name + GENERAL] = replace(usual, settings={"": on_general_kernels(asked)})
    return every


def torch_alone(cliff: Cliff, gpu: bool) -> Row:
    """torch's attention without bias or mask, with each of its fused kernels as a setting."""
    backends: dict[str, SDPBackend | None] = {"torch's choice": None}
    if gpu:
        backends = {
            "cuDNN": SDPBackend.CUDNN_ATTENTION,
            "FlashAttention-2": SDPBackend.FLASH_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION,
        }
    settings = {name: by_torch(backend, cliff.causal).settings[""] for name, backend in backends.items()}
    return Row(settings, causal=cliff.causal, form=cliff.form)


def backend_of(row: Row, x: Inputs) -> dict[str, str]:
    """Say which backend `auto` takes for the call of a row: in inference, and in training."""
    import headway as hw

    case, found = BIASES[row.bias], {}
    for mode, learns in (("forward", False), ("forward+backward", True)):
        with torch.set_grad_enabled(learns):
            of_scores, of_values = case.pair(x)
            explained = hw.explain(x.q, x.k, x.v, of_scores, of_values, causal=row.causal, **case.masked(x))
        found[mode] = explained.backend
    return found


def compile_ahead(names: list[str], shape: Shape, seconds: float, gpu: bool = True) -> int:
    """Run calls once in processes of their own, which leave Triton's kernels in its cache on disk.

    What does not run there, or not in time, is compiled later, and problems are seen then. Returns how many were made.
    """
    end = time.monotonic() + seconds
    processes = max(1, min(len(names), (os.cpu_count() or 2) - 2))
    with multiprocessing.get_context("spawn").Pool(processes) as pool:  # which ends its processes behind this block
        answers = [pool.apply_async(run_once, (name, shape, gpu)) for name in names]
        for answer in answers:
            answer.wait(max(0.0, end - time.monotonic()))
        return sum(answer.ready() and answer.successful() for answer in answers)


def run_once(name: str, shape: Shape, gpu: bool) -> None:
    """Make one call of a row with one sequence: forward alone, and forward and backward."""
    cliff = name.removesuffix(GENERAL)
    row = rows(gpu, {cliff: CLIFFS[cliff]})[name]
    x = Inputs(shape[0], 1, "cuda" if gpu else "cpu", form=row.form, parameters=BIASES[row.bias].reads)
    for attend in row.settings.values():
        with contextlib.suppress(Exception):  # seen when the benchmark's own process makes the call
            with torch.no_grad():
                attend(x)
            train(attend, x, row.wanted)


def host_rows(gpu: bool) -> dict[str, Row]:
    """List the calls whose time on the host is measured, at width 64."""
    name = "Toeplitz, D = 64"
    every = rows(gpu, {name: CLIFFS[name]})
    return {"torch, no bias": by_torch(None), "headway": every[name], "headway" + GENERAL: every[name + GENERAL]}
