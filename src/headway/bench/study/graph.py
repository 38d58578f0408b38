"""From a plan to jobs: text, then pretraining, then fine-tuning and analysis; translation; cost; parameters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from headway.bench.data.translation.parallel import split_names
from headway.bench.study.job import Job
from headway.bench.study.plan import VOCABULARIES, Plan, Row
from headway.bench.tasks.finetune import FinetuneConfig, Grid
from headway.bench.tasks.pretrain import EncoderChoice, Optimisation, PretrainConfig
from headway.bench.tasks.translate import Optimisation as TranslateOptimisation
from headway.bench.tasks.translate import TranslateConfig
from headway.storage import plain_settings

Paced = TypeVar("Paced", Optimisation, TranslateOptimisation)

POSITIONS = 128  # that an analysis looks at
NOT_OF_TEXT = ("data", "evaluation_rows", "mask_probability")  # what tokenizer and shards do not depend on
NOT_OF_PAIRS = ("data", "translated", "test")


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """A job and the cells of the table that it fills.

    Args:
        row: None for jobs that serve all rows.
        task: of fine-tuning and translation.
        seed: of pretraining or translation.
        part: of the plan's `parts`, whose own table it fills; empty for the plan itself.
    """

    job: Job
    row: str | None = None
    task: str = ""
    seed: int = 0
    part: str = ""


def jobs(plan: Plan) -> list[Planned]:
    """All jobs of a plan, each after those it needs."""
    found: list[Planned] = []
    found += [Planned(job=_simple(config), task=task) for task, config in plan.finetune.items() if config.has_baselines]
    if plan.pretrain is not None:
        text = _text(plan.pretrain)
        found.append(Planned(job=text))
        for row in plan.rows:
            for seed in () if row.model else plan.pretrained(row):
                found += _of_row(plan, row, seed, text)
    for row in plan.rows:
        found += _of_model(plan, row) if row.model else []
    if plan.original is not None:
        for row in plan.rows:
            first = _conversion(plan.original, row, plan.start)
            found += [Planned(job=first, row=row.name), *_tuned(plan, row, first, plan.seeds[0], "")]
    for name, config in plan.translate.items():
        found += _translations(plan, name, config)
    if any(column.source == "parameters" for column in plan.columns):
        found += [Planned(job=_parameters(row), row=row.name) for row in plan.rows]
    if plan.cost is not None:
        found.append(Planned(job=_cost(plan)))
    for name, part in plan.parts.items():
        found += [replace(each, part=name) for each in jobs(part)]
    return found


def _text(config: PretrainConfig) -> Job:
    settings = {name: value for name, value in plain_settings(config.text).items() if name not in NOT_OF_TEXT}
    return Job(kind="text", config=settings, label=f"text: {', '.join(config.text.corpus)}")


def _simple(config: FinetuneConfig) -> Job:
    return Job(kind="simple", config=plain_settings(config), label=f"simple classifiers, {config.task}")


def _of_row(plan: Plan, row: Row, seed: int, text: Job) -> list[Planned]:
    """Pretraining, and all that begins with the pretrained model, unless it is only pretrained again."""
    assert plan.pretrain is not None
    config = replace(plan.pretrain, model=pretrained_model(plan, row), seed=seed)
    config = replace(config, optimisation=_paced(config.optimisation, row))
    several = f", seed {seed}" if len(plan.pretrained(row)) > 1 else ""
    first = Job(
        kind="pretrain",
        config=plain_settings(config),
        needs={"text": text.key},
        label=f"pretrain {row.name}{several}",
        weights=weights(config.model.config()),
    )
    found = [Planned(job=first, row=row.name, seed=seed)]
    if seed not in plan.seeds:
        return found
    if row.step is not None:
        first = Job(
            kind="checkpoint",
            config={"step": row.step},
            needs={"pretrain": first.key},
            label=f"checkpoint of {row.name}{several}",
            weights=first.weights,
        )
        found.append(Planned(job=first, row=row.name, seed=seed))
    found += _tuned(plan, row, first, seed, several)
    if plan.lengths:
        job = Job(
            kind="lengths",
            config={"lengths": list(plan.lengths)},
            needs={"pretrain": first.key, "text": text.key},
            label=f"lengths, {row.name}{several}",
        )
        found.append(Planned(job=job, row=row.name, seed=seed))
    if plan.analyse and seed == plan.seeds[0] and row.changes.get("attention", "full") == "full":
        positions = min(POSITIONS, plan.pretrain.text.length)
        job = Job(
            kind="analyse",
            config={"positions": positions, "kernels": [5]},
            needs={"pretrain": first.key, "text": text.key},
            label=f"analyse {row.name}",
        )
        found.append(Planned(job=job, row=row.name))
    return found


def _of_model(plan: Plan, row: Row) -> list[Planned]:
    """List the jobs of a row that is a pretrained model: copy it, fine-tune it, and analyse it at all its positions."""
    from headway.pretrained.analysis.run import weights_hash

    config: dict[str, Any] = {"model": row.model, "change": {}}
    if (found := weights_hash(row.model)) is not None:
        config["weights"] = found
    first = Job(kind="convert", config=config, label=f"read {row.name}", weights=_weights_of_folder(row.model))
    planned = [Planned(job=first, row=row.name), *_tuned(plan, row, first, plan.seeds[0], "")]
    if plan.analyse:
        analysis = Job(
            kind="analyse",
            config={"positions": None, "kernels": [5]},
            needs={"pretrain": first.key},
            label=f"analyse {row.name}",
        )
        planned.append(Planned(job=analysis, row=row.name))
    return planned


def _weights_of_folder(model: str) -> float:
    """Return the number of parameters in a folder; of a name on the Hub, which is not read yet, that of BERT-base."""
    sizes = [path.stat().st_size for path in Path(model).glob("model*.safetensors")]
    return sum(sizes) / 4 if sizes else 8.5e7


def _conversion(original: str, row: Row, start: str) -> Job:
    """Convert a pretrained model to a row's encoding.

    Kernels begin with a fit to the pretrained model's own F_P (Wennberg and Henter 2021, Sec. 5).
    """
    asked = row.position
    kept, *added = sorted(asked.names, key=lambda name: name != "learned")
    if kept == "learned" and not added:
        change: dict[str, Any] = {}
    elif kept == "none":
        change = {"to": "tisa:kernels=0", "mode": "replace", "start": "zero"}
    else:
        mode, name = ("supplement", added[0]) if kept == "learned" else ("replace", kept)
        change = {"to": str(replace(asked, name=name)), "mode": mode, "start": start}
    return Job(kind="convert", config={"model": original, "change": change}, label=f"convert {row.name}", weights=8.5e7)


def _tuned(plan: Plan, row: Row, first: Job, seed: int, several: str) -> list[Planned]:
    """All fine-tuning of a row that begins with a job's model."""
    found: list[Planned] = []
    tuned: dict[str, Job] = {}
    for task in plan.finetune:
        begin = tuned[plan.after[task]] if task in plan.after else first
        made = _finetuning(plan, row, task, begin, several)
        tuned[task] = made[0]
        found += [Planned(job=job, row=row.name, task=task, seed=seed) for job in made]
    return found


def _paced(optimisation: Paced, row: Row) -> Paced:
    return replace(optimisation, position_rate=row.position_rate * optimisation.position_rate)


def weights(model: Any) -> float:
    """Parameters of the matrices of all layers, which time goes by; words are looked up, and few are predicted."""
    width, inner = model.hidden_size, model.intermediate_size
    return float(model.num_hidden_layers * (4 * width * width + 2 * width * inner))


def pretrained_model(plan: Plan, row: Row) -> EncoderChoice:
    """Combine the recipe's model with the row's encoding; segments are the recipe's.

    Linformer's projections are made for the length of the texts.
    """
    assert plan.pretrain is not None
    model = plan.pretrain.model
    encoding = row.position.with_segments(model.choice.segments, model.choice.segment_sharing)
    changes = {**model.changes, **row.changes}
    if changes.get("attention") == "linformer":
        changes.setdefault("max_position_embeddings", plan.pretrain.text.length)
    return replace(model, encoding=str(encoding), changes=changes)


def _finetuning(plan: Plan, row: Row, task: str, first: Job, several: str) -> list[Job]:
    """One sweep, or each of its runs as a job."""
    config = plan.finetune[task]
    if config.task_spec.pair and plan.original is None and not row.model:
        segments, sharing = row.choice.segments, row.choice.segment_sharing
        if segments == "per-head" and row.choice.sharing in ("head", "layer"):
            # Written out, because in older results segments shared as positions did.
            sharing = "positions" if sharing == row.choice.sharing else sharing or "none"
        config = replace(config, start=replace(config.start, segments=segments, segment_sharing=sharing))
    grids = [Grid(rates=(rate,), seeds=(seed,)) for rate, seed in config.grid.runs] if plan.split else [config.grid]
    return [
        Job(
            kind="finetune",
            config=plain_settings(replace(config, grid=grid)),
            needs={"pretrain": first.key},
            weights=first.weights,
            label=f"{task}, {row.name}{several}"
            + (f", rate {grid.rates[0]:g}, run {grid.seeds[0]}" if plan.split else ""),
        )
        for grid in grids
    ]


def _translations(plan: Plan, name: str, config: TranslateConfig) -> list[Planned]:
    """Plan the jobs of a recipe, TASK or TASK/RECIPE: parallel text once, and each of its rows with every seed."""
    task, _, recipe = name.partition("/")
    settings = {name: value for name, value in plain_settings(config.data).items() if name not in NOT_OF_PAIRS}
    files = ", ".join(Path(file).name for file in split_names(config.data.source))
    text = Job(kind="pairs", config=settings, label=f"parallel text: {files}")
    found = [Planned(job=text)]
    for row in (row for row in plan.rows if row.recipe == recipe):
        for seed in plan.seeds:
            changes = {**config.model.changes, **row.changes}
            model = replace(config.model, encoding=str(row.position), changes=changes)
            job = Job(
                kind="translate",
                config=plain_settings(
                    replace(config, model=model, optimisation=_paced(config.optimisation, row), seed=seed)
                ),
                needs={"pairs": text.key},
                label=f"{task}, {row.name}" + (f", seed {seed}" if len(plan.seeds) > 1 else ""),
                weights=2 * weights(model.config()),
            )
            found.append(Planned(job=job, row=row.name, task=task, seed=seed))
    return found


def _parameters(row: Row) -> Job:
    model = {"encoding": row.encoding, **row.changes}
    config = {"preset": "bert-base", "model": model, "vocabularies": VOCABULARIES}
    return Job(kind="parameters", config=config, label=f"parameters of {row.name}")


def _cost(plan: Plan) -> Job:
    assert plan.cost is not None
    rows = tuple(str(row.position) for row in plan.rows if not row.changes)
    baseline = str(plan.row(plan.baseline).position)
    config = replace(plan.cost, encodings=rows, baseline=baseline)
    return Job(kind="cost", config=plain_settings(config), label="cost of all rows", alone=True)
