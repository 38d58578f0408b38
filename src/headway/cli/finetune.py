"""`headway finetune`: a pretrained encoder on GLUE, XTREME, question answering or the built-in language's tasks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.options import seed_option

if TYPE_CHECKING:
    from headway.bench.tasks.finetune import FinetuneConfig, Result


def finetune(
    tasks: Annotated[
        list[str],
        typer.Argument(
            metavar="TASK...",
            help="cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli, snli, xnli, pawsx, squad, tydiqa, or "
            "builtin:acceptability, builtin:roles, builtin:entailment, builtin:similarity, builtin:questions, "
            "builtin:role-questions; several share --jobs.",
        ),
    ],
    model: Annotated[str, typer.Option(help="Folder or Hub name of one of our encoders or any of transformers.")],
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME[@SPLIT[:LANGUAGES]]=]SOURCE",
            help="Folder, file, or hub[:NAME]; several are trained on together.",
        ),
    ] = None,
    dev: Annotated[
        list[str] | None,
        typer.Option(metavar="[NAME[@SPLIT]=]SOURCE", help="Chooses checkpoints; else the task's own dev split."),
    ] = None,
    transfer: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[@SPLIT[:LANGUAGES]]=SOURCE", help="Evaluated after training, in all its languages."),
    ] = None,
    predict: Annotated[
        list[str] | None, typer.Option(metavar="[NAME[@SPLIT]=]SOURCE", help="Write predictions, as GLUE takes them.")
    ] = None,
    languages: Annotated[str | None, typer.Option(help="Of --transfer and --predict, such as de,zh; else all.")] = None,
    recipe: Annotated[str, typer.Option(help="full (rates x 5 seeds, as the papers) or quick.")] = "full",
    learning_rate: Annotated[list[float] | None, typer.Option(help="May be given several times.")] = None,
    seeds: Annotated[int | None, typer.Option(help="How many.")] = None,
    seed: Annotated[int, seed_option("The first one.")] = 0,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training data.")] = None,
    batch: Annotated[int | None, typer.Option(help="Sequences of a step.")] = None,
    position_rate: Annotated[
        float | None,
        typer.Option(help="Times the learning rate, for positions and segments; those per head hardly move at 1."),
    ] = None,
    length: Annotated[int | None, typer.Option(help="Tokens of a sequence or window.")] = None,
    overlap: Annotated[int | None, typer.Option(help="Tokens that windows of a question's text share.")] = None,
    evaluate_every: Annotated[int | None, typer.Option(help="Steps between evaluations; else an epoch.")] = None,
    checkpoint_every: Annotated[int | None, typer.Option(help="Steps between checkpoints to resume from.")] = None,
    bf16: Annotated[bool | None, typer.Option("--bf16/--no-bf16", help="bfloat16; else on a GPU only.")] = None,
    segments: Annotated[str | None, typer.Option(help="Of pairs, for our encoders: input or per-head.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Folder or Hub name; else the model's own.")] = None,
    limit: Annotated[int | None, typer.Option(help="Examples to train on.")] = None,
    on_error: Annotated[str, typer.Option(help="raise stops at bad rows, skip leaves them out and counts.")] = "raise",
    baselines: Annotated[bool, typer.Option("--baselines", help="Also score simple classifiers.")] = False,
    jobs: Annotated[int, typer.Option(help="Runs at once, in processes that share the device.")] = 1,
    graphs: Annotated[bool, typer.Option("--graphs/--no-graphs", help="On a GPU, replay steps as CUDA graphs.")] = True,
    out: Annotated[
        str | None, typer.Option(help="Folder of all runs, with one a task where there are several; else runs/NAME.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the runs in the folder.")] = False,
    cpu: Annotated[bool, typer.Option("--cpu", help="Leave a GPU alone.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Fine-tune a pretrained encoder: learning rates x seeds, the best checkpoint of each run, the median over seeds.

    Sources are folders in the data set's own public format (GLUE's TSV, SQuAD's JSON, ...), hub for the Hub's copy, or
    nothing for the built-in language. Killed at any moment, it goes on with --resume.

    \b
    Examples:
      headway finetune rte --model runs/tisa/model --data glue
      headway finetune builtin:entailment --model runs/tisa/model --recipe quick --transfer builtin:entailment
      headway finetune rte mrpc stsb cola --model runs/tisa/model --data glue --jobs 6 --baselines
      headway finetune stsb --model bert-base-uncased --data hub --jobs 4 --predict hub
      headway finetune xnli --model xlm-roberta-base --data mnli=glue --dev xnli=xnli --transfer xnli=xnli
      headway finetune squad --model m --data squad --transfer xquad=xquad --transfer mlqa=mlqa
    """
    from headway.cli.failures import told

    with told():
        from headway.bench.tasks.finetune import Data, Grid, Start, run_all
        from headway.bench.tasks.finetune.recipes import recipe as named
        from headway.cli.options import given, tell_of_new

        def asked(task: str) -> FinetuneConfig:
            config = named(recipe)(
                task,
                Start(model=model, tokenizer=tokenizer, segments=segments),
                Data(
                    train=tuple(data or ()),
                    dev=tuple(dev or ()),
                    transfer=tuple(transfer or ()),
                    predict=tuple(predict or ()),
                    languages=tuple(languages.split(",")) if languages else (),
                    limit=limit,
                    on_error=on_error,
                ),
            )
            return replace(
                config,
                grid=Grid(
                    rates=tuple(learning_rate) if learning_rate else config.grid.rates,
                    seeds=tuple(range(seed, seed + (len(config.grid.seeds) if seeds is None else seeds))),
                ),
                protocol=given(
                    config.protocol,
                    epochs=epochs,
                    batch=batch,
                    position_rate=position_rate,
                    length=length,
                    evaluate=evaluate_every,
                    checkpoint=checkpoint_every,
                    bf16=bf16,
                ),
                spans=given(config.spans, overlap=overlap),
            )

        if len(set(tasks)) < len(tasks):
            raise ValueError(f"tasks: expected each once, got {' '.join(tasks)}.")
        configs = [asked(task) for task in tasks]
        sets = [config.task_set for config in configs]
        _check_used("overlap", overlap, "questions", any(each.kind == "spans" for each in sets), tasks)
        _check_used("segments", segments, "pairs", any(each.pair for each in sets), tasks)
        outs = [out if out is None or len(tasks) == 1 else f"{out}/{task.replace(':', '-')}" for task in tasks]
        for config, folder in zip(configs, outs, strict=True):
            tell_of_new(folder or config.default_folder, resume=resume)
        results = run_all(
            configs, outs, resume=resume, progress=not quiet, jobs=jobs, baselines=baselines, cpu=cpu, graphs=graphs
        )
        for result in results:
            if len(results) > 1:
                typer.echo(f"{result.task}:")
            tell(result)


def _check_used(name: str, value: object, wanted: str, there: bool, tasks: list[str]) -> None:
    if value is not None and not there:
        raise ValueError(f"{name}: expected a task of {wanted} beside it, got {' '.join(tasks)}. Leave --{name} out.")


def tell(result: Result) -> None:
    """The summary as a table, and what was written."""
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
