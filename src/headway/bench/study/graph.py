"""The jobs of a plan: text, then pretraining, then fine-tuning and analysis; translation; cost; parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from headway.bench.data.translation.parallel import split_names
from headway.bench.study.job import Job
from headway.bench.study.plan import VOCABULARIES, Plan, Row
from headway.bench.tasks.finetune import FinetuneConfig, Grid
from headway.bench.tasks.pretrain import EncoderChoice, Optimisation, PretrainConfig, Start, Text
from headway.bench.tasks.translate import Optimisation as TranslateOptimisation
from headway.bench.tasks.translate import TranslateConfig
from headway.storage import plain_settings

AnyOptimisation = TypeVar("AnyOptimisation", Optimisation, TranslateOptimisation)

ANALYSED_POSITIONS = 128
# Settings on which the prepared data do not depend, so that jobs which differ in these alone share their data.
IRRELEVANT_TO_TEXT = ("data", "evaluation_rows", "mask_probability")
IRRELEVANT_TO_PAIRS = ("data", "translated", "test")


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """A job and the cells of the table that it fills.

    Args:
        row: name of the row; None for jobs that serve all rows.
        task: task of fine-tuning or translation; empty for other kinds.
        seed: seed of pretraining or translation.
        part: name of the one of the plan's `parts` whose table it fills; empty for the plan itself.
    """

    job: Job
    row: str | None = None
    task: str = ""
    seed: int = 0
    part: str = ""


def jobs(plan: Plan) -> list[Planned]:
    """List the jobs of a plan, each after those it needs."""
    planned: list[Planned] = []
    planned += [
        Planned(job=_baseline_job(config), task=task) for task, config in plan.finetune.items() if config.has_baselines
    ]
    if plan.pretrain is not None:
        text = _text_job(plan.pretrain.text)
        planned.append(Planned(job=text))
        rates = {row.name: _rate_jobs(plan, row, text) for row in plan.rows if _is_pretrained(plan, row)}
        for row in plan.rows:
            for seed in () if row.model else plan.pretraining_seeds(row):
                own = _converted_row if plan.converted else _pretrained_row
                planned += own(plan, row, seed, text, rates)
    for row in plan.rows:
        planned += _given_model_row(plan, row) if row.model else []
    if plan.original is not None and not plan.converted:
        for row in plan.rows:
            converted = _conversion_job(plan.original, row, plan.start)
            planned += [Planned(job=converted, row=row.name), *_finetuned_row(plan, row, converted, plan.seeds[0])]
    for name, config in plan.translate.items():
        planned += _translations(plan, name, config)
    if any(column.source == "parameters" for column in plan.columns):
        planned += [Planned(job=_parameter_job(row), row=row.name) for row in plan.rows]
    if plan.cost is not None:
        planned.append(Planned(job=_cost_job(plan)))
    for name, part in plan.parts.items():
        planned += [replace(each, part=name) for each in jobs(part)]
    return planned


def _text_job(text: Text) -> Job:
    settings = {name: value for name, value in plain_settings(text).items() if name not in IRRELEVANT_TO_TEXT}
    return Job(kind="text", config=settings, label=f"text: {', '.join(text.corpus)}")


def _baseline_job(config: FinetuneConfig) -> Job:
    return Job(kind="simple", config=plain_settings(config), label=f"simple classifiers, {config.task}")


def _is_pretrained(plan: Plan, row: Row) -> bool:
    """Return whether a row has pretrained models of its own."""
    given = plan.converted and (plan.original is not None or row.name != plan.baseline)
    return not (row.model or row.pretrained_as or given)


def _pretrained_row(plan: Plan, row: Row, seed: int, text: Job, rates: Mapping[str, Sequence[Job]]) -> list[Planned]:
    """List the pretraining of a row with one seed, and the jobs that use its model.

    A seed that is not among the plan's `seeds` is there to show what seeds change, and is only pretrained.
    """
    assert plan.pretrain is not None
    suffix = f", seed {seed}" if len(plan.pretraining_seeds(row)) > 1 else ""
    if row.pretrained_as:
        pretrained = _pretraining(plan, plan.row(row.pretrained_as), seed, text, rates[row.pretrained_as])
        return _lengths(plan, row, pretrained, seed, text, suffix) if seed in plan.seeds else []
    pretrained = _pretraining(plan, row, seed, text, rates[row.name])
    planned = _rates_of(plan, row, seed, rates)
    planned.append(Planned(job=pretrained, row=row.name, seed=seed))
    if seed not in plan.seeds:
        return planned
    if row.step is not None:
        pretrained = Job(
            kind="checkpoint",
            config={"step": row.step},
            needs={"pretrain": pretrained.key},
            label=f"checkpoint of {row.name}{suffix}",
            weights=pretrained.weights,
        )
        planned.append(Planned(job=pretrained, row=row.name, seed=seed))
    planned += _finetuned_row(plan, row, pretrained, seed, suffix)
    planned += _lengths(plan, row, pretrained, seed, text, suffix)
    if plan.minimal_pairs:
        job = Job(
            kind="minimal-pairs",
            config={"source": plan.minimal_pairs},
            needs={"pretrain": pretrained.key},
            label=f"minimal pairs, {row.name}{suffix}",
        )
        planned.append(Planned(job=job, row=row.name, seed=seed))
    if plan.analyse and seed == plan.seeds[0] and row.changes.get("attention", "full") == "full":
        positions = min(ANALYSED_POSITIONS, plan.pretrain.text.length)
        job = Job(
            kind="analyse",
            config={"positions": positions, "kernels": [5]},
            needs={"pretrain": pretrained.key, "text": text.key},
            label=f"analyse {row.name}",
        )
        planned.append(Planned(job=job, row=row.name))
    return planned


def _converted_row(plan: Plan, row: Row, seed: int, text: Job, rates: Mapping[str, Sequence[Job]]) -> list[Planned]:
    """List the conversion of the baseline's model with one seed, and the trainings that go on from it."""
    assert plan.pretrain is not None
    suffix = f", seed {seed}" if len(plan.seeds) > 1 else ""
    planned = _rates_of(plan, row, seed, rates)
    if plan.original is None:
        model = _pretraining(plan, plan.row(plan.baseline), seed, text, rates[plan.baseline])
    else:
        headed, model = _given_masked_words(plan, plan.original, seed, text, suffix)
        if row.name == plan.baseline:
            planned.append(Planned(job=headed, row=row.name, seed=seed))
    if row.name != plan.baseline:
        model = _conversion_job("that of the baseline", row, plan.start, needs={"pretrain": model.key}, suffix=suffix)
    planned.append(Planned(job=model, row=row.name, seed=seed))
    config = replace(plan.pretrain, start=Start(model="the model of the row"), seed=seed)  # the job fills in the folder
    needs = {"pretrain": model.key, "text": text.key}
    held_out = Job(kind="held-out", config=plain_settings(config), needs=needs, label=f"loss of {row.name}{suffix}")
    planned.append(Planned(job=held_out, row=row.name, seed=seed))
    for name, optimisation in plan.further.items():
        every = optimisation.steps
        intervals = replace(config.intervals, evaluate=every, checkpoint=every, keep=1)
        further = Job(
            kind="further",
            config=plain_settings(replace(config, optimisation=optimisation, intervals=intervals)),
            needs=needs,
            label=f"{name} further, {row.name}{suffix}",
            weights=count_layer_weights(plan.pretrain.model.config())
            if plan.original is None
            else _weights_of_folder(plan.original),
        )
        planned.append(Planned(job=further, row=row.name, task=name, seed=seed))
    return planned


def _given_masked_words(plan: Plan, original: str, seed: int, text: Job, suffix: str) -> tuple[Job, Job]:
    """Return the job that gives a pretrained encoder a head for masked words, and its training by the plan's recipe."""
    assert plan.pretrain is not None
    config = {"model": original, "seed": seed, **_weights(original)}
    headed = Job(kind="masked-words", config=config, label=f"head for masked words{suffix}")
    trained = Job(
        kind="further",
        config=plain_settings(replace(plan.pretrain, start=Start(model="the model with its head"), seed=seed)),
        needs={"pretrain": headed.key, "text": text.key},
        label=f"train the given model on masked words{suffix}",
        weights=_weights_of_folder(original),
    )
    return headed, trained


def _weights(model: str) -> dict[str, str]:
    """Return a checksum of a folder's weights, as settings of a job; nothing for a model on the Hub."""
    from headway.pretrained.analysis.run import weights_hash

    checksum = weights_hash(model)
    return {} if checksum is None else {"weights": checksum}


def _rates_of(plan: Plan, row: Row, seed: int, rates: Mapping[str, Sequence[Job]]) -> list[Planned]:
    """List the jobs that choose the rates of a row, once for all of its seeds."""
    if plan.rates is None or seed != plan.seeds[0]:
        return []
    return [Planned(job=job, row=row.name, seed=plan.rates.seed) for job in rates.get(row.name, ())]


def _pretraining(plan: Plan, row: Row, seed: int, text: Job, rates: Sequence[Job]) -> Job:
    """Return the pretraining of a row with one seed, at the rates that the last of the jobs `rates` chooses."""
    assert plan.pretrain is not None
    config = replace(plan.pretrain, model=pretrained_model(plan, row), seed=seed)
    config = replace(config, optimisation=_with_position_rate(config.optimisation, row))
    suffix = f", seed {seed}" if len(plan.pretraining_seeds(row)) > 1 else ""
    return Job(
        kind="pretrain",
        config=plain_settings(config),
        needs={"text": text.key},
        reads={"rates": rates[-1].key} if rates else {},
        label=f"pretrain {row.name}{suffix}",
        weights=count_layer_weights(config.model.config()),
    )


def _lengths(plan: Plan, row: Row, pretrained: Job, seed: int, text: Job, suffix: str) -> list[Planned]:
    """List the losses by length of a row's model and, where the plan says so, its training on longer texts."""
    if not plan.lengths:
        return []
    encoding = {"encoding": str(row.position)} if row.pretrained_as else {}
    before = Job(
        kind="lengths",
        config={"lengths": list(plan.lengths), **encoding},
        needs={"pretrain": pretrained.key, "text": text.key},
        label=f"lengths, {row.name}{suffix}",
    )
    planned = [Planned(job=before, row=row.name, seed=seed)]
    if plan.longer is None:
        return planned
    assert plan.pretrain is not None
    recipe, times = plan.pretrain, plan.longer.times
    optimisation = replace(
        recipe.optimisation,
        steps=max(1, round(plan.longer.share * recipe.optimisation.steps)),
        batch=max(1, recipe.optimisation.batch // times),
    )
    longer = replace(recipe.text, length=times * recipe.text.length)
    config = replace(
        recipe,
        start=Start(model="the pretrained encoder of the row", **encoding),  # the job fills in the folder
        model=pretrained_model(plan, row),
        text=longer,
        optimisation=optimisation,
        intervals=replace(recipe.intervals, evaluate=optimisation.steps, checkpoint=optimisation.steps, keep=1),
        seed=seed,
    )
    long_text = replace(_text_job(longer), needs={"tokenizer": text.key}, label=f"text of {longer.length} tokens")
    trained = Job(
        kind="further",
        config={**plain_settings(config), "rate": plan.longer.rate},
        needs={"pretrain": pretrained.key, "text": long_text.key},
        label=f"longer texts, {row.name}{suffix}",
        weights=pretrained.weights,
    )
    after = Job(
        kind="lengths",
        config={"lengths": list(plan.lengths)},
        needs={"pretrain": trained.key, "text": text.key},
        label=f"lengths after longer texts, {row.name}{suffix}",
    )
    planned.append(Planned(job=long_text))
    return planned + [Planned(job=job, row=row.name, seed=seed, task="longer") for job in (trained, after)]


def _rate_jobs(plan: Plan, row: Row, text: Job) -> list[Job]:
    """List a short pretraining for each pair of rates, and last the job that chooses among them.

    There are none in a plan without a grid of rates.
    """
    if plan.rates is None:
        return []
    assert plan.pretrain is not None
    grid, recipe = plan.rates, plan.pretrain
    if grid.model is not None:
        recipe = replace(recipe, model=grid.model)
    config = replace(recipe, model=_with_row(recipe, row))
    encoding, _ = config.model.config(length=config.text.length).build()
    position_rates = grid.position_rates if any(True for _ in encoding.parameters()) else (1.0,)
    pairs = [(rate, position_rate) for rate in grid.rates for position_rate in position_rates]
    tried = [
        Job(
            kind="trial",
            config=plain_settings(
                replace(
                    config,
                    optimisation=replace(
                        config.optimisation, steps=grid.steps, learning_rate=rate, position_rate=position_rate
                    ),
                    intervals=replace(config.intervals, evaluate=grid.steps, checkpoint=grid.steps, keep=1),
                    seed=grid.seed,
                )
            ),
            needs={"text": text.key},
            label=f"rates {rate:g} and {position_rate:g} times that, {row.name}",
            weights=count_layer_weights(config.model.config()),
        )
        for rate, position_rate in pairs
    ]
    choice = Job(
        kind="rates",
        config={"pairs": [list(pair) for pair in pairs], **({} if grid.share == 1.0 else {"share": grid.share})},
        reads={str(number): job.key for number, job in enumerate(tried)},
        label=f"choose the rates of {row.name}",
    )
    return [*tried, choice]


def _given_model_row(plan: Plan, row: Row) -> list[Planned]:
    """List the jobs of a row that is a pretrained model: copy it, fine-tune it, and analyse it at all its positions."""
    config: dict[str, Any] = {"model": row.model, "change": {}, **_weights(row.model)}
    copied = Job(kind="convert", config=config, label=f"read {row.name}", weights=_weights_of_folder(row.model))
    planned = [Planned(job=copied, row=row.name), *_finetuned_row(plan, row, copied, plan.seeds[0])]
    if plan.analyse:
        analysis = Job(
            kind="analyse",
            config={"positions": None, "kernels": [5]},
            needs={"pretrain": copied.key},
            label=f"analyse {row.name}",
        )
        planned.append(Planned(job=analysis, row=row.name))
    return planned


def _weights_of_folder(model: str) -> float:
    """Return the number of parameters in a folder; for a name on the Hub, which is not read yet, assume BERT-base."""
    sizes = [path.stat().st_size for path in Path(model).glob("model*.safetensors")]
    return sum(sizes) / 4 if sizes else 8.5e7


def _conversion_job(
    original: str, row: Row, start: str, *, needs: Mapping[str, str] | None = None, suffix: str = ""
) -> Job:
    """Convert a pretrained model, by its folder or name, or that of the job `pretrain` in `needs`, to a row's encoding.

    Kernels begin with a fit to the pretrained model's own F_P (Wennberg and Henter 2021, Sec. 5).
    """
    choice = row.position
    kept, *added = sorted(choice.names, key=lambda name: name != "learned")
    if kept == "learned" and not added:
        change: dict[str, Any] = {}
    elif kept == "none":
        change = {"to": "tisa:kernels=0", "mode": "replace", "start": "zero"}
    else:
        mode, name = ("supplement", added[0]) if kept == "learned" else ("replace", kept)
        change = {"to": str(replace(choice, name=name)), "mode": mode}
        if name != "alibi":  # which has nothing to fit
            change["start"] = start
    return Job(
        kind="convert",
        config={"model": original, "change": change},
        needs=needs or {},
        label=f"convert {row.name}{suffix}",
        weights=8.5e7,
    )


def _finetuned_row(plan: Plan, row: Row, model: Job, seed: int, suffix: str = "") -> list[Planned]:
    """List the fine-tuning of a row on all tasks, which begins with the model that a job made.

    Args:
        seed: seed of the model's pretraining.
        suffix: end of the jobs' labels.
    """
    planned: list[Planned] = []
    finetuned: dict[str, Job] = {}
    for task in plan.finetune:
        start = finetuned[plan.after[task]] if task in plan.after else model
        task_jobs = _finetuning_jobs(plan, row, task, start, suffix)
        finetuned[task] = task_jobs[0]
        planned += [Planned(job=job, row=row.name, task=task, seed=seed) for job in task_jobs]
    return planned


def _with_position_rate(optimisation: AnyOptimisation, row: Row) -> AnyOptimisation:
    return replace(optimisation, position_rate=row.position_rate * optimisation.position_rate)


def count_layer_weights(model: Any) -> float:
    """Count the parameters of the layers' matrices, which determine the time of a step.

    Embeddings are left out, because they are looked up, and so is the output layer, because few words are predicted.
    """
    width, inner = model.hidden_size, model.intermediate_size
    return float(model.num_hidden_layers * (4 * width * width + 2 * width * inner))


def pretrained_model(plan: Plan, row: Row) -> EncoderChoice:
    """Return the model of the plan's recipe with a row's encoding of positions."""
    assert plan.pretrain is not None
    return _with_row(plan.pretrain, row)


def _with_row(recipe: PretrainConfig, row: Row) -> EncoderChoice:
    """Return a recipe's model, and the recipe's segments, with a row's encoding of positions.

    Linformer's projections are made for the length of the texts.
    """
    model = recipe.model
    encoding = row.position.with_segments(model.choice.segments, model.choice.segment_sharing)
    changes = {**model.changes, **row.changes}
    if changes.get("attention") == "linformer":
        changes.setdefault("max_position_embeddings", recipe.text.length)
    return replace(model, encoding=str(encoding), changes=changes)


def _finetuning_jobs(plan: Plan, row: Row, task: str, model: Job, suffix: str) -> list[Job]:
    """Return the sweep of a task as one job or, if the plan splits sweeps, each of its runs as a job."""
    config = plan.finetune[task]
    if config.task_spec.pair and plan.original is None and not row.model:
        segments, sharing = row.choice.segments, row.choice.segment_sharing
        if segments == "per-head" and row.choice.sharing in ("head", "layer"):
            # Written out, so that the hash is that of older results, in which segments were shared as positions were.
            sharing = "positions" if sharing == row.choice.sharing else sharing or "none"
        config = replace(config, start=replace(config.start, segments=segments, segment_sharing=sharing))
    grids = [Grid(rates=(rate,), seeds=(seed,)) for rate, seed in config.grid.runs] if plan.split else [config.grid]
    return [
        Job(
            kind="finetune",
            config=plain_settings(replace(config, grid=grid)),
            needs={"pretrain": model.key},
            weights=model.weights,
            label=f"{task}, {row.name}{suffix}"
            + (f", rate {grid.rates[0]:g}, run {grid.seeds[0]}" if plan.split else ""),
        )
        for grid in grids
    ]


def _translations(plan: Plan, name: str, config: TranslateConfig) -> list[Planned]:
    """List the jobs of a recipe, TASK or TASK/RECIPE: one for the parallel text, and one for each row and seed."""
    task, _, recipe = name.partition("/")
    settings = {name: value for name, value in plain_settings(config.data).items() if name not in IRRELEVANT_TO_PAIRS}
    files = ", ".join(Path(file).name for file in split_names(config.data.source))
    text = Job(kind="pairs", config=settings, label=f"parallel text: {files}")
    planned = [Planned(job=text)]
    for row in (row for row in plan.rows if row.recipe == recipe):
        for seed in plan.seeds:
            changes = {**config.model.changes, **row.changes}
            model = replace(config.model, encoding=str(row.position), changes=changes)
            job = Job(
                kind="translate",
                config=plain_settings(
                    replace(config, model=model, optimisation=_with_position_rate(config.optimisation, row), seed=seed)
                ),
                needs={"pairs": text.key},
                label=f"{task}, {row.name}" + (f", seed {seed}" if len(plan.seeds) > 1 else ""),
                weights=2 * count_layer_weights(model.config()),
            )
            planned.append(Planned(job=job, row=row.name, task=task, seed=seed))
    return planned


def _parameter_job(row: Row) -> Job:
    model = {"encoding": row.encoding, **row.changes}
    config = {"preset": "bert-base", "model": model, "vocabularies": VOCABULARIES}
    return Job(kind="parameters", config=config, label=f"parameters of {row.name}")


def _cost_job(plan: Plan) -> Job:
    assert plan.cost is not None
    rows = tuple(str(row.position) for row in plan.rows if not row.changes)
    baseline = str(plan.row(plan.baseline).position)
    config = replace(plan.cost, encodings=rows, baseline=baseline)
    return Job(kind="cost", config=plain_settings(config), label="cost of all rows", alone=True)
