"""What was measured: raw seconds of every round, from which ratios are worked out; to JSON and back."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import Any, Self

from headway.cost.config import CostConfig
from headway.cost.ratios import Ratio, ratio


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
