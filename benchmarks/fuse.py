"""Times of pretrained models' architectures, fused and as transformers runs them, in one run.

    python -m benchmarks.fuse [--cases t5 bloom] [--compile] [--rounds 7] [--out benchmarks/results]

On a GPU the models of the table have base sizes, and every row runs compiled too: training is a forward and a backward
pass under bfloat16 autocast, inference has weights in bfloat16. On a CPU the models have two layers, in float32, and
are compiled with --compile alone. Weights and position tables are random, dropout is off, and nothing is padded.

Parity first, at the shapes that are timed: outputs and gradients of every row are compared with eager attention in
float64. A fused row may have twice eager's error (gradients three times), else it has no time. Rows take turns, and
every sample is kept. What a row cannot do, or what does not fit into memory, is written down as its problem.
"""

from __future__ import annotations

import argparse
import copy
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from torch import Tensor

import headway as hw
from benchmarks.measure import add_record_options, environment, save
from headway.bench.statistics import ratio
from headway.pretrained.fusing.check import FuseConfig, Inputs, random_inputs

MODES = ("training", "inference")
IMPLEMENTATIONS = {"eager": "eager", "SDPA": "sdpa", "flex": "flex_attention"}
FUSED = "headway"
COMPILED = ", compiled"
POSITIONS = ("relative", "rel_pos", "rel_embeddings", "pos_bias", "distance_embedding", "bias_table", "r_w_bias")
LARGEST_ERROR = {"outputs": 2.0, "gradients": 3.0}  # of a fused row, over eager's in the same precision
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 1e-2}  # what any row may have


@dataclass(frozen=True)
class Case:
    """A model of random weights and the batch that it gets."""

    config: str
    model: str
    sizes: dict[str, Any]
    batch: int
    length: int


BERT_SIZES = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "vocab_size": 32000}
T5_SIZES = {"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_heads": 12, "vocab_size": 32000}
DEBERTA_V3 = {
    **BERT_SIZES,
    **{"relative_attention": True, "position_buckets": 256, "pos_att_type": ["p2c", "c2p"], "share_att_key": True},
    **{"norm_rel_ebd": "layer_norm", "max_relative_positions": -1, "type_vocab_size": 0},
    "position_biased_input": False,  # no positions at the input, which would end at 512
}
SPEECH_SIZES = {name: size for name, size in BERT_SIZES.items() if name != "vocab_size"}


def cases_of(layers: int, width: int | None, shapes: dict[str, tuple[int, int]]) -> dict[str, Case]:
    """Return the models of `shapes`, name -> batch and length; `width` replaces that of the base sizes."""
    bert = {**BERT_SIZES, "num_hidden_layers": layers, "max_position_embeddings": 2048 + 2}
    bloom = {"hidden_size": 1024, "n_head": 16, "n_layer": layers, "vocab_size": 32000}
    mpt = {"d_model": 1024, "n_heads": 16, "n_layers": layers, "vocab_size": 32000}
    speech = {**SPEECH_SIZES, "num_hidden_layers": layers}
    models: dict[str, tuple[str, str, dict[str, Any]]] = {
        "t5": ("T5Config", "T5EncoderModel", {**T5_SIZES, "num_layers": layers}),
        "deberta-v3": ("DebertaV2Config", "DebertaV2Model", {**DEBERTA_V3, "num_hidden_layers": layers}),
        "mpnet": ("MPNetConfig", "MPNetModel", bert),
        "xlnet": ("XLNetConfig", "XLNetModel", {"d_model": 768, "n_layer": layers, "n_head": 12, "d_inner": 3072}),
        "bloom": ("BloomConfig", "BloomModel", bloom),
        "mpt": ("MptConfig", "MptModel", mpt),
        "mpt-wide": ("MptConfig", "MptModel", {**mpt, "d_model": 2048, "n_layers": max(1, 2 * layers // 3)}),
        "wav2vec2-conformer": ("Wav2Vec2ConformerConfig", "Wav2Vec2ConformerModel", speech),
        "wav2vec2-bert": ("Wav2Vec2BertConfig", "Wav2Vec2BertModel", speech),
        "beit": (
            *("BeitConfig", "BeitModel"),
            {**SPEECH_SIZES, "num_hidden_layers": layers, "use_relative_position_bias": True},
        ),
        "bert": ("BertConfig", "BertModel", bert),
    }
    found = {}
    for name, (batch, length) in shapes.items():
        config, model, sizes = models[name.split(" ")[0]]
        if width is not None:
            sizes = {key: width if key in ("hidden_size", "d_model") else size for key, size in sizes.items()}
            sizes = {key: 2 * width if "intermediate" in key or key == "d_ff" else size for key, size in sizes.items()}
            sizes = {key: 4 if key in ("num_attention_heads", "n_head", "n_heads") else v for key, v in sizes.items()}
        found[name] = Case(config, model, sizes, batch, length)
    return found


ON_GPU = {
    "t5 512": (64, 512),
    "t5 2048": (16, 2048),
    "deberta-v3 512": (64, 512),
    "deberta-v3 2048": (16, 2048),
    "mpnet": (64, 512),
    "xlnet": (64, 512),
    "mpt": (8, 2048),
    "mpt-wide": (8, 2048),
    "bloom": (8, 2048),
    "wav2vec2-conformer": (8, 1499),  # frames of 30 seconds
    "wav2vec2-bert": (8, 1500),
    "beit": (128, 1),
    "bert": (64, 512),
}
CPU_SHAPES = ((2, 128), (2, 512), (1, 2048))  # the share of attention grows with the length
ON_CPU = {
    **{f"{name} {shape[1]}": shape for name in ("t5", "deberta-v3", "mpnet", "bert") for shape in CPU_SHAPES},
    **dict.fromkeys(("xlnet", "bloom", "mpt"), (2, 512)),
}
QUICK = {"t5": (2, 24), "bloom": (2, 24), "bert": (2, 24)}


def without_dropout(config: Any) -> Any:
    """Set every probability of dropping something to 0."""
    for name, value in vars(config).items():
        if isinstance(value, float) and ("drop" in name or name == "mask_time_prob"):
            setattr(config, name, 0.0)
    return config


def eager_model(case: Case) -> Any:
    """Return the model with random weights, random position tables and eager attention."""
    torch.manual_seed(0)
    config = without_dropout(getattr(transformers, case.config)(**case.sizes))
    config._attn_implementation = "eager"
    model = getattr(transformers, case.model)(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(word in name for word in POSITIONS):
                parameter.normal_(std=0.5)
    return model


class Runs:
    """The rows of one case, in one mode: what each computes, and how long that takes."""

    def __init__(self, case: Case, mode: str, device: torch.device, compiled: bool) -> None:
        self.mode, self.device = mode, device
        self.half = device.type == "cuda"
        self.model = eager_model(case).to(device)
        self.inputs: Inputs = random_inputs(
            self.model, FuseConfig(model="", length=case.length, batch=case.batch, padding=False)
        )
        self.problems: dict[str, str] = {}
        self.errors: dict[str, dict[str, float]] = {}
        self.rows: dict[str, Any] = {}
        for name in [*IMPLEMENTATIONS, FUSED]:
            try:
                self.rows[name] = self._row(name)
            except (ValueError, ImportError, NotImplementedError) as error:
                self.problems[name] = str(error).split(". ")[0]
        if compiled:
            self.rows |= {f"{name}{COMPILED}": torch.compile(row) for name, row in self.rows.items()}
        self.upstream: Tensor | None = None

    def _row(self, name: str) -> Any:
        model = copy.deepcopy(self.model)
        if self.half and self.mode == "inference":
            model = model.bfloat16()
        if name == FUSED:
            return hw.fuse(model)
        if name != "eager":
            model.set_attn_implementation(IMPLEMENTATIONS[name])
            if model.config._attn_implementation != IMPLEMENTATIONS[name]:
                raise ValueError("the model computes attention itself")
        return model

    def _arguments(self, model: Any, rows: slice = slice(None)) -> dict[str, Tensor]:
        dtype = next(model.parameters()).dtype
        return {
            name: (part.to(dtype) if part.is_floating_point() else part)[rows]
            for name, part in self.inputs.arguments.items()
        }

    def _autocast(self, model: Any) -> AbstractContextManager[Any]:
        on = self.half and self.mode == "training" and next(model.parameters()).dtype == torch.float32
        return torch.autocast("cuda", torch.bfloat16) if on else nullcontext()

    def outputs(self, model: Any, rows: slice = slice(None)) -> Tensor:
        """Return the hidden states; in training, gradients are added up in the parameters."""
        with self._autocast(model), torch.set_grad_enabled(self.mode == "training"):
            found: Tensor = model(**self._arguments(model, rows)).last_hidden_state
            if self.mode == "training":
                if self.upstream is None:
                    whole = (next(iter(self.inputs.arguments.values())).shape[0], *found.shape[1:])
                    draw = torch.Generator(self.device).manual_seed(1)
                    self.upstream = torch.randn(whole, generator=draw, device=self.device)
                (found.float() * self.upstream[rows]).sum().backward()
        return found.detach()

    def check(self) -> None:
        """Compare all rows with eager attention in float64, one sequence at a time; drop rows that are wrong."""
        exact = self._numbers(copy.deepcopy(self.model).double(), one_by_one=True)
        for name, row in list(self.rows.items()):
            try:
                found = self._numbers(row, one_by_one=name == "eager")
            except Exception as error:  # a row of transformers, of torch's compiler, or out of memory
                self._drop(name, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200])
                continue
            self.errors[name] = {
                what: max(_error(a, b, c) for a, b, c in zip(found[what], *scaled(exact[what]), strict=True))
                for what in found
            }
        rounding = ROUNDING[torch.bfloat16 if self.half else torch.float32]
        for name, errors in self.errors.items():
            for what, error in errors.items():
                most = LARGEST_ERROR[what] * self.errors["eager"][what] + rounding
                if not error <= most:
                    self._drop(name, f"{what}: error {error:.1e}, at most {most:.1e} is allowed")

    def _drop(self, name: str, problem: str) -> None:
        self.problems[name] = problem
        self.rows.pop(name, None)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _numbers(self, model: Any, one_by_one: bool) -> dict[str, list[Tensor]]:
        batch = next(iter(self.inputs.arguments.values())).shape[0]
        parts = [slice(i, i + 1) for i in range(batch)] if one_by_one else [slice(None)]
        model.zero_grad(set_to_none=True)
        found = {"outputs": [torch.cat([self.outputs(model, part) for part in parts])]}
        if self.mode == "training":
            found["gradients"] = [_or_zero(parameter) for parameter in model.parameters()]
        model.zero_grad(set_to_none=True)
        return found

    def step(self, name: str) -> None:
        """Run one row once and wait for the device."""
        model = self.rows[name]
        self.outputs(model)
        if self.mode == "training":
            model.zero_grad(set_to_none=True)
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def times(self, rounds: int) -> tuple[dict[str, list[float]], dict[str, int]]:
        """Return the seconds of every round by row, and on a GPU the peak of memory of each row."""
        peaks: dict[str, int] = {}
        for name in list(self.rows):
            try:
                if self.device.type == "cuda":
                    torch.cuda.reset_peak_memory_stats()
                self.step(name)
            except torch.OutOfMemoryError as error:
                self._drop(name, f"out of memory: {str(error).splitlines()[0]}"[:200])
                continue
            if self.device.type == "cuda":
                peaks[name] = torch.cuda.max_memory_allocated()
        seconds: dict[str, list[float]] = {name: [] for name in self.rows}
        names = list(self.rows)
        for number in range(rounds):
            first = number % len(names)  # no row always runs after the same one
            for name in names[first:] + names[:first]:
                start = time.perf_counter()
                self.step(name)
                seconds[name].append(time.perf_counter() - start)
        return seconds, peaks


def scaled(exact: list[Tensor]) -> tuple[list[Tensor], list[float]]:
    """Return tensors, and for each the norm that its error is divided by: at least a hundredth of the largest."""
    norms = [float(each.norm()) for each in exact]
    return exact, [max(norm, max(norms) / 100) for norm in norms]


def _error(found: Tensor, exact: Tensor, norm: float) -> float:
    return float((found.double() - exact).norm()) / norm


def _or_zero(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def measure(case: Case, device: torch.device, compiled: bool, rounds: int) -> dict[str, Any]:
    """Check and time all rows of a case in both modes."""
    record: dict[str, Any] = asdict(case)
    for mode in MODES:
        runs = Runs(case, mode, device, compiled)
        runs.check()
        seconds, peaks = runs.times(rounds)
        record[mode] = {
            "seconds": seconds, "peak_memory": peaks, "errors": runs.errors, "problems": runs.problems,
        }  # fmt: skip
        del runs
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return record


def best(seconds: dict[str, list[float]], ours: bool) -> str | None:
    """Return the fastest row of headway, or of transformers."""
    rows = {name: median(times) for name, times in seconds.items() if name.startswith(FUSED) == ours}
    return min(rows, key=lambda name: rows[name]) if rows else None


def summary(part: dict[str, Any]) -> list[str]:
    """Return the cells of one case and mode: milliseconds of the best of transformers and of ours, and the ratio."""
    seconds = part["seconds"]
    theirs, ours = best(seconds, ours=False), best(seconds, ours=True)
    if ours is None or theirs is None:
        return ["–" if theirs is None else f"{1e3 * median(seconds[theirs]):.0f} ({theirs})", "–", "–"]
    found = ratio(seconds[theirs], seconds[ours])
    return [
        f"{1e3 * median(seconds[theirs]):.0f} ({theirs})",
        f"{1e3 * median(seconds[ours]):.0f}" + (f" ({COMPILED[2:]})" if COMPILED in ours else ""),
        f"{found.median:.2f} [{found.low:.2f}, {found.high:.2f}]",
    ]


def show(cases: dict[str, dict[str, Any]]) -> None:
    """Print a table of each mode, and the problems of headway's rows."""
    for mode in MODES:
        table = Table(box=SIMPLE_HEAD, title=f"{mode}, milliseconds")
        for head in ("model", "best of transformers", "fused", "times as fast"):
            table.add_column(head, justify="left" if head == "model" else "right")
        for name, case in cases.items():
            table.add_row(f"{name.split(' ')[0]}, {case['batch']} x {case['length']}", *summary(case[mode]))
        Console(width=100).print(table)
        for name, case in cases.items():
            for row, problem in case[mode]["problems"].items():
                if row.startswith(FUSED):
                    print(f"{name}, {row}: {problem}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", nargs="+", help="some of the models; all unless given")
    parser.add_argument("--compile", action="store_true", help="compile every row too; always done on a GPU")
    parser.add_argument("--rounds", type=int, default=7, help="timed calls of every row, which take turns")
    parser.add_argument("--quick", action="store_true", help="tiny models, few rounds: does it run?")
    parser.add_argument("--cpu", action="store_true", help="measure the CPU where there is a GPU")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    add_record_options(parser)
    options = parser.parse_args()
    machine = environment(dirty=options.dirty or options.quick, commit=options.commit)
    machine["transformers"] = transformers.__version__
    device = torch.device("cuda" if torch.cuda.is_available() and not options.cpu else "cpu")
    if options.quick:
        cases, rounds = cases_of(1, 32, QUICK), 2
    else:
        gpu = device.type == "cuda"
        cases, rounds = cases_of(12 if gpu else 2, None, ON_GPU if gpu else ON_CPU), options.rounds
    unknown = set(options.cases or cases) - set(cases)
    if unknown:
        parser.error(f"--cases: expected some of {', '.join(cases)}, got {', '.join(sorted(unknown))}")

    compiled = options.compile or (device.type == "cuda" and not options.quick)
    measured: dict[str, dict[str, Any]] = {}
    for name, case in cases.items():
        if options.cases is None or name in options.cases:
            print(f"{name}: {case.batch} x {case.length}", flush=True)
            measured[name] = measure(case, device, compiled, rounds)
    show(measured)
    print(f"wrote {save('fuse', {'environment': machine, 'cases': measured}, options.out)}")


if __name__ == "__main__":
    main()
