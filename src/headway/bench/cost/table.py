"""The table of costs: seconds of every round, ratios, JSON, and the layout for the terminal."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from headway.bench.cost.config import CostConfig
from headway.bench.cost.contestant import Contestant, row_name
from headway.bench.cost.flops import utilization
from headway.bench.statistics import Spread, ratio

# Chen et al. (2021b), "A Simple and Effective Positional Encoding for Transformers", Table 1: time over BERT with
# learned positions in the input, on TPU v2; by model, mode and encoding. "Ke et al. (2020)" is TUPE with relative
# positions (Sec. 4: "combined absolute and relative positional encoding").
PUBLISHED_RATIOS: dict[str, dict[str, dict[str, float]]] = {
    "bert-base": {
        "training": {"shaw": 1.13, "tupe-rel": 1.01, "diet-abs": 1.00, "diet-rel": 1.00},
        "inference": {"shaw": 1.33, "tupe-rel": 1.19, "diet-abs": 1.00, "diet-rel": 1.00},
    },
    "bert-small": {
        "training": {"shaw": 1.24, "tupe-rel": 1.04, "diet-abs": 1.00, "diet-rel": 1.00},
        "inference": {"shaw": 1.65, "tupe-rel": 1.27, "diet-abs": 1.01, "diet-rel": 1.00},
    },
}
PEAK_MEMORY = {
    "cuda": "allocated on the GPU by torch",
    "cpu": "growth of the process's resident memory, including what the allocator keeps (Linux only)",
}
DERIVED = ("ratios", "steps_per_second")  # fields of a measurement in JSON that follow from its seconds
HOST_BOUND = 0.9  # share of a step's time; if launching takes more, the host limits it, not the GPU
WIDEST_BASELINE = 8  # longest name of a baseline that fits the table's header


def published_ratio(model: str, mode: str, encoding: str) -> float | None:
    """Return the paper's time over the baseline's, or None where it has none."""
    return PUBLISHED_RATIOS.get(model, {}).get(mode, {}).get(encoding)


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """One mode of one row."""

    seconds: tuple[float, ...]  # of a step, in each round
    launched: tuple[float, ...]  # until the host had launched it; if near `seconds` on a GPU, the host is the limit
    flops: int  # of a step
    peak_bytes: int | None  # of memory; None where it is unknown

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """One row in one model at one length. Where there is a `problem` there are no times."""

    row: str
    model: str
    length: int
    batch: int
    parameters: int | None = None
    parity: dict[str, float | None] | None = None  # error over the allowed error
    problem: str | None = None
    training: Timing | None = None
    inference: Timing | None = None

    def timing(self, mode: str) -> Timing | None:
        return self.training if mode == "training" else self.inference

    def steps_per_second(self, mode: str) -> float | None:
        """Return how many steps of a mode are done in a second."""
        timing = self.timing(mode)
        return None if timing is None else 1 / timing.median

    def tokens_per_second(self, mode: str) -> float | None:
        """Return how many tokens are read in a second."""
        timing = self.timing(mode)
        return None if timing is None else self.batch * self.length / timing.median


@dataclass(frozen=True, kw_only=True, slots=True)
class CostTable:
    """The measurements of all rows, with the configuration and the environment."""

    config: CostConfig  # resolved
    environment: dict[str, Any]
    measurements: tuple[Measurement, ...]

    def groups(self) -> dict[tuple[str, int], list[Measurement]]:
        """Return the rows of each model and length."""
        groups: dict[tuple[str, int], list[Measurement]] = {}
        for measurement in self.measurements:
            groups.setdefault((measurement.model, measurement.length), []).append(measurement)
        return groups

    def ratio(self, measurement: Measurement, mode: str, baseline: str | None = None) -> Spread | None:
        """Return a row's time over the baseline's; None where either has none."""
        wanted = self.config.baseline if baseline is None else baseline
        rows = self.groups()[measurement.model, measurement.length]
        other = next((row.timing(mode) for row in rows if row.row == wanted), None)
        own = measurement.timing(mode)
        return None if own is None or other is None else ratio(own.seconds, other.seconds)

    def fastest_transformers(self, measurement: Measurement, mode: str, *, same_work: bool = False) -> str | None:
        """Name the fastest row of transformers' BERT with the measurement's model and length; None if none has times.

        Args:
            same_work: choose among rows whose head computes scores at the masked positions alone, as ours does; by
                default, among those that do all that BertForMaskedLM does.
        """
        rows = self.groups()[measurement.model, measurement.length]
        medians = {
            row.row: timing.median
            for row in rows
            if (timing := row.timing(mode)) is not None
            and (contestant := Contestant(row.row)).theirs
            and contestant.at_masked_places is same_work
        }
        return min(medians, key=medians.__getitem__, default=None)

    def speed_over_transformers(self, measurement: Measurement, mode: str, *, same_work: bool = False) -> Spread | None:
        """Return a row's speed over that of `fastest_transformers` in the same rounds."""
        fastest = self.fastest_transformers(measurement, mode, same_work=same_work)
        over = None if fastest is None else self.ratio(measurement, mode, fastest)
        return None if over is None else Spread(median=1 / over.median, low=1 / over.high, high=1 / over.low)

    def mfu(self, measurement: Measurement, mode: str = "training") -> float | None:
        """Return the model FLOPs utilization: the share of the GPU's peak rate in bfloat16 that a step reaches.

        `Timing.flops` counts 6 operations for each token and each number of the body's matrices, attention's two
        products, those of the encoding, and the head at the positions where it is computed. Recomputation in kernels
        does not count. None where the peak rate is not known.
        """
        timing = measurement.timing(mode)
        if timing is None:
            return None
        return utilization(timing.flops, timing.median, self.environment.get("gpu"), bf16=bool(self.config.bf16))

    def to_json(self) -> dict[str, Any]:
        """Return the raw numbers as JSON holds them, with ratios for readers without headway."""
        value = asdict(self)
        for plain, measurement in zip(value["measurements"], self.measurements, strict=True):
            ratios = {mode: self.ratio(measurement, mode) for mode in self.config.modes}
            plain["ratios"] = {mode: None if r is None else asdict(r) for mode, r in ratios.items()}
            plain["steps_per_second"] = {mode: measurement.steps_per_second(mode) for mode in self.config.modes}
        return value

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        measurements = []
        for plain in value["measurements"]:
            kept = {name: part for name, part in plain.items() if name not in DERIVED}
            for mode in ("training", "inference"):
                kept[mode] = None if plain[mode] is None else Timing(**_tuples(plain[mode]))
            measurements.append(Measurement(**{**kept, "row": row_name(plain["row"])}))
        settings = _tuples(value["config"])
        settings |= {
            "encodings": tuple(map(row_name, settings["encodings"])),
            "baseline": row_name(settings["baseline"]),
        }
        config = CostConfig(**settings)
        return cls(config=config, environment=value["environment"], measurements=tuple(measurements))


def _tuples(value: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(part) if isinstance(part, list) else part for name, part in value.items()}


def print_table(table: CostTable, console: Console) -> None:
    """Print a table for each model, length and mode, then notes about all of them."""
    for (model, length), rows in table.groups().items():
        for mode in table.config.modes:
            title = f"{mode.capitalize()} step, {model}, n = {length}, {rows[0].batch} sequences"
            console.print(_terminal_table(table, rows, mode, title))
        for row in rows:
            if row.problem is not None:
                console.print(f"{row.row}, n = {length}: {row.problem}", markup=False)
    for line in _notes(table):
        console.print(line, markup=False)


def _terminal_table(table: CostTable, rows: Sequence[Measurement], mode: str, title: str) -> Table:
    """Lay out a table that fits 80 columns, with headers of two lines and names of rows folded."""
    baseline = table.config.baseline
    papers = [published_ratio(row.model, mode, Contestant(row.row).name) for row in rows]
    drawn = Table(title=title, box=SIMPLE_HEAD, padding=(0, 0, 0, 1))
    drawn.add_column("encoding", overflow="fold")
    over = f"over\n{baseline if len(baseline) <= WIDEST_BASELINE else 'baseline'}"
    names = ["ms\nsteps/s", over, "20-80 %", "tokens/s", "MiB", "GFLOP", "params"]
    for name in [*names, "paper"] if any(papers) else names:
        drawn.add_column(name, justify="right", no_wrap=True)
    for row, paper in zip(rows, papers, strict=True):
        last = [] if not any(papers) else ["" if paper is None else f"{paper:.2f}"]
        drawn.add_row(row.row, *_cells(table, row, mode), *last)
    return drawn


def _cells(table: CostTable, row: Measurement, mode: str) -> list[str]:
    timing, speed, ratio = row.timing(mode), row.tokens_per_second(mode), table.ratio(row, mode)
    steps = row.steps_per_second(mode)
    parameters = "-" if row.parameters is None else f"{row.parameters / 1e6:.1f}M"
    if timing is None or speed is None or steps is None:
        return ["-"] * 6 + [parameters]
    return [
        f"{1e3 * timing.median:.1f}\n{steps:.1f}",
        "-" if ratio is None else f"{ratio.median:.3f}",
        "-" if ratio is None else f"{ratio.low:.2f}-{ratio.high:.2f}",
        f"{speed:,.0f}",
        "-" if timing.peak_bytes is None else f"{timing.peak_bytes / 2**20:,.0f}",
        f"{timing.flops / 1e9:,.1f}",
        parameters,
    ]


def _notes(table: CostTable) -> list[str]:
    config = table.config
    kind = torch.device(config.device).type
    where = table.environment["gpu"] if kind == "cuda" else f"a CPU with {table.environment['threads']} threads"
    lines = [
        f"{'bfloat16' if config.bf16 else 'float32'}, {'compiled' if config.compile else 'not compiled'}"
        f"{', replayed as CUDA graphs' if config.graphs else ''}, on {where}; dropout {config.dropout} in training. "
        f"Medians of up to {config.rounds} rounds. Times over {config.baseline} are ratios within a round, with their "
        f"20 and 80 % quantiles.",
        f"MiB: peak memory of a step, {PEAK_MEMORY[kind]}. GFLOP: products of matrices, by the formulas as written.",
    ]
    if any(
        published_ratio(row.model, mode, Contestant(row.row).name)
        for row in table.measurements
        for mode in config.modes
    ):
        lines.append(
            "paper: Chen et al. (2021b), Table 1, time over BERT with learned positions at the input, on TPU v2."
        )
    slow = [row.row for row in table.measurements for mode in config.modes if _is_host_bound(row, mode)]
    if kind == "cuda" and slow:
        lines.append(
            f"Limited by the host, which launches kernels too slowly for the GPU: {', '.join(dict.fromkeys(slow))}. "
            f"Use a larger batch."
        )
    return lines


def _is_host_bound(row: Measurement, mode: str) -> bool:
    timing = row.timing(mode)
    return timing is not None and sum(timing.launched) > HOST_BOUND * sum(timing.seconds)
