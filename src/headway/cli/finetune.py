"""`headway finetune`: a pretrained encoder on GLUE, XTREME, question answering or the built-in language's tasks."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from headway.bench.tasks.finetune import Data, FinetuneConfig, Result, Start, run, run_all
from headway.bench.tasks.finetune.recipes import RECIPES
from headway.bench.tasks.finetune.recipes import recipe as named
from headway.cli.options import configured, note_fresh_start
from headway.cli.settings import Changes

SHOWN = (
    *("data=data.train", "data.dev", "data.transfer", "data.predict", "data.languages"),
    *("learning-rate=grid.rates", "protocol.epochs", "protocol.batch", "protocol.length"),
)


@configured(FinetuneConfig, SHOWN, without=("task", "start.model"), run=run)
def finetune(
    tasks: Annotated[
        list[str],
        typer.Argument(
            metavar="TASK...",
            help="cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli, snli, xnli, pawsx, squad, tydiqa, or "
            "builtin:acceptability, builtin:roles, builtin:entailment, builtin:similarity, builtin:questions, "
            "builtin:role-questions, or probe:swap, probe:order, probe:distance; several share --jobs.",
        ),
    ],
    model: Annotated[str, typer.Option(help="Folder or Hub name of one of our encoders or any of transformers.")],
    recipe: Annotated[str, typer.Option(help=f"The grid of runs: {', '.join(RECIPES)}; full is the papers'.")] = "full",
    *,
    given: Changes,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds, from 0 on; else the recipe's.")] = None,
    options: dict[str, Any],
) -> None:
    """Fine-tune a pretrained encoder: learning rates x seeds, the best checkpoint of each run, the median over seeds.

    Sources are folders in the data set's own public format (GLUE's TSV, SQuAD's JSON, ...), hub for the Hub's copy,
    running text for probes, or nothing for the built-in language. A sweep that was killed continues with --resume.

    \b
    Examples:
      headway finetune rte --model runs/tisa/model --data glue
      headway finetune builtin:entailment --model runs/tisa/model \\
        --recipe quick --transfer builtin:entailment
      headway finetune rte mrpc stsb cola --model runs/tisa/model --data glue \\
        --jobs 6 --baselines
      headway finetune stsb --model bert-base-uncased --data hub --jobs 4 \\
        --predict hub
      headway finetune xnli --model xlm-roberta-base --data mnli=glue \\
        --dev xnli=xnli --transfer xnli=xnli
      headway finetune squad --model m --data squad --transfer xquad=xquad \\
        --transfer mlqa=mlqa
    """
    if len(set(tasks)) < len(tasks):
        raise ValueError(f"tasks: expected each once, got {' '.join(tasks)}.")
    configs = []
    for task in tasks:
        config = named(recipe)(task, given.build(Start, "start", model=model), given.build(Data, "data"))
        if seeds is not None:
            given.refuse(["grid.seeds"], "beside --seeds")
            config = replace(config, grid=replace(config.grid, seeds=tuple(range(seeds))))
        configs.append(given.apply(config))
    if not any(config.task_spec.kind == "spans" for config in configs):
        given.refuse([path for path in given if path.startswith("spans.")], "for tasks that are no questions")
    if not any(config.task_spec.pair for config in configs):
        given.refuse(["start.segments", "start.segment_sharing"], "for tasks of single texts")
    out = options.pop("out")
    outs = [out if out is None or len(tasks) == 1 else f"{out}/{task.replace(':', '-')}" for task in tasks]
    for config, folder in zip(configs, outs, strict=True):
        note_fresh_start(folder or config.default_folder, resume=options["resume"])
    results = run_all(configs, outs, **options)
    for result in results:
        if len(results) > 1:
            typer.echo(f"{result.task}:")
        show(result)


def show(result: Result) -> None:
    """Print the summary as a table, and name what was written."""
    for rate in result.rates:
        score = rate["score"]
        around = f" (from {100 * score['low']:.1f} to {100 * score['high']:.1f})" if score["runs"] > 1 else ""
        typer.echo(f"rate {rate['rate']:g}: median {100 * score['median']:.1f} of {score['runs']} runs{around}")
    for name, spread in (result.rates[0]["metrics"] | result.rates[0]["transfer"]).items():
        if not name.endswith(" score"):
            typer.echo(f"  {name.replace('_', ' ')}: {100 * spread['median']:.1f}")
    for name, metrics in result.baselines.items():
        typer.echo(f"  {name}: " + ", ".join(f"{metric} {100 * value:.1f}" for metric, value in metrics.items()))
    for split in result.data:
        if split["skipped"]:
            typer.echo(f"left out {split['skipped']} bad rows of {split['name']} {split['split']}")
        if split.get("cut"):
            among = split.get("taken", split["labelled"])
            typer.echo(f"cut {split['cut']:,} of {among:,} texts of {split['name']} {split['split']}, which are longer")
    others = f", {', '.join(result.predictions)}" if result.predictions else ""
    typer.echo(
        f"wrote {result.folder}: result.json, config.json, runs/ (a folder a run) and model/ (the best run's, for "
        f"transformers){others}"
    )
