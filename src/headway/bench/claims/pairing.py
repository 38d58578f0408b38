"""Find the pairs of numbers that a comparison compares: from one group, each side at its best rate, seed by seed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from headway.bench.claims.claim import Contrast
from headway.bench.claims.samples import Results, Sample
from headway.bench.claims.settings import Setting
from headway.bench.statistics import pooled_deviation

TRAINED = ("loss", "bleu")  # measures, beside those of fine-tuning, of how well a model was trained
SEGMENTS = ("per-head", "input", "none", None)  # preferred first, where a claim does not say


@dataclass(frozen=True, kw_only=True, slots=True)
class Paired:
    """The numbers of both sides, and how much of a difference chance alone makes.

    Args:
        pairs: unit, better side, other side, difference.
        repeated: what a unit is: seed, round, head or row.
        between_seeds: the most that two seeds of any one encoding differ by; 0 if none was repeated.
        deviation: of models of one encoding that differ in their seed, pooled, with its degrees of freedom; None for
            what no model was trained for, such as times, and where none was trained again.
        models: number of models that were trained with each side, the fewer of both.
        rates: of the parameters of both sides' encodings, where they differ and were not chosen from one grid.
        bootstrap: half the width of the interval over test sentences; 0 without one.
        losses: of pretraining, means of both sides; None where nothing was fine-tuned.
    """

    pairs: tuple[tuple[str, float, float, float], ...]
    repeated: str
    blocks: tuple[str, ...]
    scale: str
    sources: tuple[str, ...]
    between_seeds: float
    bootstrap: float
    deviation: tuple[float, int] | None = None
    models: int = 1
    rates: tuple[float, float] | None = None
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
    of_models = _repeated(units[0]) == "seed" and not contrast.by.relative
    trained = [{side[key].merit for keys in cells.values() for key in keys} for side in (better, than)]
    return Paired(
        pairs=tuple(pairs),
        repeated=_repeated(units[0]),
        blocks=blocks,
        scale=_scale(used),
        sources=tuple(dict.fromkeys(sample.source for sample in used)),
        between_seeds=_between_seeds(contrast, results),
        bootstrap=_bootstrap(better, than, cells, results),
        deviation=_deviation(contrast, blocks, results) if of_models else None,
        models=min(map(len, trained)) if contrast.by.tuned else len(pairs),
        rates=_unequal_rates(better, than) if contrast.by.tuned or contrast.measure in TRAINED else None,
        losses=_losses(better, than, cells) if contrast.by.tuned else None,
    )


def _unequal_rates(better: Numbers, than: Numbers) -> tuple[float, float] | None:
    """Return the rates of both sides' encodings, where both have parameters and did not choose from one grid."""
    first, second = (next(iter(side.values())) for side in (better, than))
    if first.rate is None or second.rate is None or first.rate == second.rate:
        return None
    return None if first.rate_chosen and second.rate_chosen else (first.rate, second.rate)


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


def _deviation(contrast: Contrast, blocks: Sequence[str], results: Results) -> tuple[float, int] | None:
    """Return by how much models of one encoding deviate that differ in their seed alone, and its degrees of freedom.

    Fine-tuned models are compared by the seed of their pretraining; runs from one pretrained model are averaged. The
    deviation of a mean over blocks follows from those of the blocks in which a model was trained again; others count
    as 0. Losses on longer texts are taken to deviate as the loss of pretraining does.
    """
    measure, tuned = contrast.measure, contrast.by.tuned
    if measure.startswith("loss at "):
        measure, blocks = "loss", ("",)
    values: dict[str, dict[object, dict[object, list[float]]]] = {block: {} for block in blocks}
    for sample in results.samples:
        if sample.measure == measure and sample.block in values:
            same = (sample.setting, sample.recipe or sample.group, sample.rate, sample.segments)
            model = sample.merit if tuned else sample.unit
            values[sample.block].setdefault(same, {}).setdefault(model, []).append(sample.value)
    found = []
    for settings in values.values():
        groups = [[fmean(each) for each in models.values()] for models in settings.values()]
        if any(len(group) > 1 for group in groups):
            found.append(pooled_deviation(groups))
    if not found:
        return None
    return math.hypot(*(deviation for deviation, _ in found)) / len(blocks), min(degrees for _, degrees in found)


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
