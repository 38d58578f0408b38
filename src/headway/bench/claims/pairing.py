"""Find the pairs of numbers that a comparison compares: from one group, each side at its best rate, seed by seed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from headway.bench.claims.claim import Contrast
from headway.bench.claims.samples import Results, Sample
from headway.bench.claims.settings import Setting

SEGMENTS = ("per-head", "input", "none", None)  # preferred first, where a claim does not say


@dataclass(frozen=True, kw_only=True, slots=True)
class Paired:
    """The numbers of both sides, and how much of a difference chance alone makes.

    Args:
        pairs: unit, better side, other side, difference.
        repeated: what a unit is: seed, round, head or row.
        between_seeds: the most that two seeds of any one encoding differ by; 0 if none was repeated.
        between_pretrainings: the most that two pretrainings of one encoding differ by after fine-tuning, where the
            two sides come from different pretrained models; 0 if none was repeated.
        bootstrap: half the width of the interval over test sentences; 0 without one.
        losses: of pretraining, means of both sides; None where nothing was fine-tuned.
    """

    pairs: tuple[tuple[str, float, float, float], ...]
    repeated: str
    blocks: tuple[str, ...]
    scale: str
    sources: tuple[str, ...]
    between_seeds: float
    between_pretrainings: float
    bootstrap: float
    losses: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Missing:
    """What a comparison lacks: the reason, if both sides have results, and the commands that would supply it."""

    commands: tuple[str, ...]
    why: str = ""


Numbers = dict[tuple[str, str], Sample]  # by block and unit


def find_pairs(contrast: Contrast, results: Results) -> Paired | Missing:
    """Find the pairs of a comparison, or say what is missing."""
    asked, other = contrast.sides
    samples = [each for each in results.samples if contrast.length is None or each.length == contrast.length]
    better = _fitting(asked, contrast.measure, samples)
    if other is None:
        assert isinstance(contrast.than, float)
        return _pairs_with_bound(contrast, asked, better, contrast.than)
    than = _fitting(other, contrast.than_measure or contrast.measure, samples)
    lacking = [setting for setting, found in ((asked, better), (other, than)) if not found]
    numbers = _in_largest_groups((asked, better), (other, than))
    shared = [key for key in numbers[0] if key in numbers[1]]
    if not shared:
        commands = [command for setting in lacking or (asked, other) for command in contrast.by.commands(setting)]
        why = "" if lacking else "both sides were measured, but not in one configuration with the same seeds"
        return Missing(commands=tuple(dict.fromkeys(commands)), why=why)
    return _pairs(contrast, *numbers, shared, results)


def _fitting(setting: Setting, measure: str, samples: Iterable[Sample]) -> list[Sample]:
    """Return the samples of a setting; those of the encoding's other name only where there are none of its own."""
    segments = setting.encoding.segments
    found = [
        sample for sample in samples if sample.measure == measure and (segments is None or segments == sample.segments)
    ]
    fitting = {key for key, other in {id(each.setting): each.setting for each in found}.items() if setting.fits(other)}
    found = [sample for sample in found if id(sample.setting) in fitting]
    return [sample for sample in found if sample.setting.encoding.name == setting.encoding.name] or found


def _in_largest_groups(
    first: tuple[Setting, list[Sample]], second: tuple[Setting, list[Sample]]
) -> tuple[Numbers, Numbers]:
    """Choose both sides' numbers in each block, from the largest group that both sides have."""
    (asked, better), (other, than) = first, second
    of_better: Numbers = {}
    of_than: Numbers = {}
    for block in dict.fromkeys(sample.block for sample in better):
        sizes = {s.group: s.size for s in better if s.block == block}
        common = {s.group for s in than if s.block == block} & set(sizes)
        if not common:
            continue
        group = max(sorted(common), key=lambda each: sizes[each])
        sides = [[s for s in side if (s.block, s.group) == (block, group)] for side in (better, than)]
        of_better |= _one_per_unit(sides[0], asked)
        of_than |= _one_per_unit(sides[1], other)
    return of_better, of_than


def _one_per_unit(side: list[Sample], asked: Setting) -> Numbers:
    """Choose one number for each unit: preferred setting and segments, and the learning rate that trained best."""
    setting = min({sample.setting for sample in side}, key=asked.preference)
    side = [sample for sample in side if sample.setting == setting]
    segments = min({sample.segments for sample in side}, key=SEGMENTS.index)
    side = [sample for sample in side if sample.segments == segments]
    merits: dict[float | None, list[float]] = {}
    for sample in side:
        merits.setdefault(sample.rate, []).append(sample.merit)
    best = max(merits, key=lambda rate: fmean(merits[rate]))
    return {(sample.block, sample.unit): sample for sample in side if sample.rate == best}


def _pairs(
    contrast: Contrast, better: Numbers, than: Numbers, shared: Sequence[tuple[str, str]], results: Results
) -> Paired:
    blocks = tuple(dict.fromkeys(block for block, _ in shared))
    units = list(dict.fromkeys(unit for _, unit in shared))
    complete = [unit for unit in units if all((block, unit) in shared for block in blocks)]
    cells = {unit: [(block, unit) for block in blocks] for unit in complete}
    if not complete:  # no unit has every block: one pair, of the means over all numbers
        cells = {"all": list(shared)}
    pairs = []
    for unit, keys in cells.items():
        a, b = ([side[key].value for key in keys] for side in (better, than))
        each = [100 * (x / y - 1) if contrast.by.relative else x - y for x, y in zip(a, b, strict=True)]
        pairs.append((unit, fmean(a), fmean(b), fmean(each)))
    used = [side[key] for keys in cells.values() for key in keys for side in (better, than)]
    from_two = any(better[key].merit != than[key].merit for keys in cells.values() for key in keys)
    return Paired(
        pairs=tuple(pairs),
        repeated=_repeated(units[0]),
        blocks=blocks,
        scale=_scale(used),
        sources=tuple(dict.fromkeys(sample.source for sample in used)),
        between_seeds=_between_seeds(contrast, results),
        between_pretrainings=(
            _between_pretrainings(contrast, blocks, results) if contrast.by.tuned and from_two else 0.0
        ),
        bootstrap=_bootstrap(better, than, cells, results),
        losses=_losses(better, than, cells) if contrast.by.tuned else None,
    )


def _losses(better: Numbers, than: Numbers, cells: dict[str, list[tuple[str, str]]]) -> tuple[float, float]:
    """Return the mean losses of the pretrained models that were fine-tuned, of both sides."""
    first, second = (fmean(-side[key].merit for keys in cells.values() for key in keys) for side in (better, than))
    return first, second


def _pairs_with_bound(contrast: Contrast, asked: Setting, better: list[Sample], bound: float) -> Paired | Missing:
    """Pair the numbers of the largest group with a fixed one."""
    if not better:
        return Missing(commands=contrast.by.commands(asked))
    largest = max(better, key=lambda sample: (sample.size, sample.group)).group
    side = [sample for sample in better if sample.group == largest]
    found = list(_one_per_unit(side, asked).values())
    return Paired(
        pairs=tuple((sample.unit, sample.value, bound, sample.value - bound) for sample in found),
        repeated=_repeated(found[0].unit),
        blocks=(found[0].block,),
        scale=_scale(found),
        sources=tuple(dict.fromkeys(sample.source for sample in found)),
        between_seeds=0.0,
        between_pretrainings=0.0,
        bootstrap=0.0,
    )


def _scale(used: Sequence[Sample]) -> str:
    """Say what was measured on, and the learning rates where encodings were trained at different ones."""
    words = list(dict.fromkeys(sample.scale for sample in used if sample.scale))
    rates = sorted({sample.rate for sample in used if sample.rate is not None})
    if len(rates) > 1:
        words.append(f"parameters of encodings at {' and '.join(f'{rate:g}' for rate in rates)} times the rate")
    return "; ".join(words)


def _repeated(unit: str) -> str:
    return "head" if ", head" in unit else unit.split()[0] if unit.split()[0] in ("seed", "round") else "row"


def _between_seeds(contrast: Contrast, results: Results) -> float:
    """Return the most that two seeds of one encoding, all else equal, differ by, over all encodings of the measure."""
    values: dict[object, list[float]] = {}
    for sample in results.samples:
        if sample.measure == contrast.measure and sample.unit.startswith("seed") and ", head" not in sample.unit:
            same = (sample.setting, sample.group, sample.block, sample.rate, sample.segments)
            values.setdefault(same, []).append(sample.value)
    return max((max(each) - min(each) for each in values.values()), default=0.0)


def _between_pretrainings(contrast: Contrast, blocks: Sequence[str], results: Results) -> float:
    """Return by how much the mean over blocks may differ between two pretrainings of one encoding, all else equal.

    In each block it is the most that was seen. A block for which nothing was pretrained again counts as 0.
    """
    most = dict.fromkeys(blocks, 0.0)
    values: dict[tuple[object, ...], dict[float, list[float]]] = {}
    for sample in results.samples:
        if sample.measure == contrast.measure and sample.block in most:
            same = (sample.block, sample.setting, sample.recipe or sample.group, sample.rate, sample.segments)
            values.setdefault(same, {}).setdefault(sample.merit, []).append(sample.value)
    for (block, *_), of_pretrainings in values.items():
        means = [fmean(each) for each in of_pretrainings.values()]
        most[str(block)] = max(most[str(block)], max(means) - min(means))
    return math.hypot(*most.values()) / len(blocks)


def _bootstrap(better: Numbers, than: Numbers, cells: dict[str, list[tuple[str, str]]], results: Results) -> float:
    """Return half the width of the interval of the mean over all cells; 0 unless every cell has one."""
    halves = []
    for keys in cells.values():
        for key in keys:
            names = [side[key].source.rsplit(": ", 1)[-1] for side in (better, than)]
            half = results.errors.get((names[0], names[1], key[0]))
            if half is None:
                return 0.0
            halves.append(half)
    return math.hypot(*halves) / len(halves)
