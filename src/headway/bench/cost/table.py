"""What was measured: raw seconds of every round, from which ratios are worked out; to JSON and back."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import Any, Self

from headway.bench.cost.config import CostConfig
from headway.bench.cost.contestant import Contestant
from headway.bench.cost.peak import utilization
from headway.bench.cost.ratios import Ratio, ratio


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """One mode of one row."""

    seconds: tuple[float, ...]  # of a step, in each round
    launched: tuple[
        float, ...
    ]  # the same until the host had launched it; near `seconds` on a GPU, the host is too slow
    flops: int  # of a step
    peak_bytes: int | None  # of memory; None where it cannot be known

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
    parity: dict[str, float | None] | None = None  # error over what is allowed
    problem: str | None = None
    training: Timing | None = None
    inference: Timing | None = None

    def timing(self, mode: str) -> Timing | None:
        return self.training if mode == "training" else self.inference

    def tokens_per_second(self, mode: str) -> float | None:
        timing = self.timing(mode)
        return None if timing is None else self.batch * self.length / timing.median


@dataclass(frozen=True, kw_only=True, slots=True)
class CostTable:
    """All rows, how they were measured, and where."""

    config: CostConfig  # with nothing left open
    environment: dict[str, Any]
    measurements: tuple[Measurement, ...]

    def groups(self) -> dict[tuple[str, int], list[Measurement]]:
        """The rows of each model and length."""
        found: dict[tuple[str, int], list[Measurement]] = {}
        for measurement in self.measurements:
            found.setdefault((measurement.model, measurement.length), []).append(measurement)
        return found

    def ratio(self, measurement: Measurement, mode: str, baseline: str | None = None) -> Ratio | None:
        """A row's time over the baseline's; None where either has none."""
        wanted = self.config.baseline if baseline is None else baseline
        rows = self.groups()[measurement.model, measurement.length]
        other = next((row.timing(mode) for row in rows if row.row == wanted), None)
        own = measurement.timing(mode)
        return None if own is None or other is None else ratio(own.seconds, other.seconds)

    def fastest_transformers(self, measurement: Measurement, mode: str, *, same_work: bool = False) -> str | None:
        """The row of transformers' BERT that is fastest beside a measurement; None where there is none with times.

        Args:
            same_work: only rows whose head sees the masked places alone, as ours does; else only those that do all that
                BertForMaskedLM does.
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

    def times_transformers(self, measurement: Measurement, mode: str, *, same_work: bool = False) -> Ratio | None:
        """A row's speed over that of transformers' fastest setting in the same rounds; see `fastest_transformers`."""
        fastest = self.fastest_transformers(measurement, mode, same_work=same_work)
        over = None if fastest is None else self.ratio(measurement, mode, fastest)
        return None if over is None else Ratio(median=1 / over.median, low=1 / over.high, high=1 / over.low)

    def mfu(self, measurement: Measurement, mode: str = "training") -> float | None:
        """The share of the GPU's peak rate in bfloat16 that the products of a step's formulas make up.

        These are `Timing.flops`: 6 operations for each token and each number of the body's matrices, attention's two
        products, those of the encoding, and the head at the places where it is computed. What kernels work out twice
        does not count. None where the peak rate is not known.
        """
        timing = measurement.timing(mode)
        if timing is None:
            return None
        return utilization(timing.flops, timing.median, self.environment.get("gpu"), bf16=bool(self.config.bf16))

    def to_json(self) -> dict[str, Any]:
        """Raw numbers, and the ratios beside them for readers who have no headway."""
        value = asdict(self)
        for plain, measurement in zip(value["measurements"], self.measurements, strict=True):
            found = {mode: self.ratio(measurement, mode) for mode in self.config.modes}
            plain["ratios"] = {mode: None if r is None else asdict(r) for mode, r in found.items()}
        return value

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        measurements = []
        for plain in value["measurements"]:
            kept = {name: part for name, part in plain.items() if name != "ratios"}
            for mode in ("training", "inference"):
                kept[mode] = None if plain[mode] is None else Timing(**_tuples(plain[mode]))
            measurements.append(Measurement(**kept))
        config = CostConfig(**_tuples(value["config"]))
        return cls(config=config, environment=value["environment"], measurements=tuple(measurements))


def _tuples(value: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(part) if isinstance(part, list) else part for name, part in value.items()}
