"""`headway study` and `headway report`: many jobs to one table, and the table to a page."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from headway.bench.study.executors import Executor
    from headway.bench.study.study import Study

NAMES = (
    "quick, questions, encodings, glue, glue-segments, glue-sharing, xtreme, xtreme-ablation, long-range, translation, "
    "shaw-translation, shaw-clip, shaw-parts, tisa-beside, tisa-alone, cost, parameters"
)


def study(
    plan: Annotated[str, typer.Argument(help=f"{NAMES}; or a Python file of your own with a function plan.")],
    size: Annotated[
        str, typer.Option(help="quick (built-in language, minutes), gpu (under an hour on one), paper (as published).")
    ] = "quick",
    data: Annotated[
        str | None, typer.Option(help="Folder with corpus/, glue/, xtreme/, translation/, for sizes gpu and paper.")
    ] = None,
    out: Annotated[str | None, typer.Option(help="Folder of the study; else studies/PLAN-SIZE.")] = None,
    store: Annotated[
        str | None, typer.Option(help="Folder of jobs, which several studies may share; else jobs/ in --out.")
    ] = None,
    kept: Annotated[
        str | None,
        typer.Option(help="Folder that headway report --keep wrote, perhaps on another machine: its jobs are done."),
    ] = None,
    rows: Annotated[
        list[str] | None, typer.Option(help="Do the jobs of this row alone; may be given several times.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Jobs at once; else one a core, or one a GPU.")] = None,
    jobs_per_gpu: Annotated[int, typer.Option(help="Jobs that share a GPU.")] = 1,
    executor: Annotated[
        str, typer.Option(help="local, or ray: all machines of a Ray cluster that is running.")
    ] = "local",
    cpu: Annotated[bool, typer.Option("--cpu", help="Leave GPUs alone.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the jobs, their time and disk; do nothing.")
    ] = False,
) -> None:
    """Run a study: pretraining, fine-tuning, translation, analysis and cost of many encodings; then write its report.

    Every job is a folder named by a hash of its configuration. What is done is never done again: killed at any moment,
    or changed, the study goes on with the same command. A job that fails is reported and stops no other.

    \b
    Examples:
      headway study quick
      headway study glue --size gpu --data data --dry-run
      headway study encodings --size gpu --data data --rows learned --rows diet-rel
      headway study myplan.py --out studies/mine --store studies/jobs --jobs 4
    """
    from headway.cli.errors import exit_with_message

    with exit_with_message():
        from rich.console import Console

        from headway.bench.processes import available_cores
        from headway.bench.study.plans import find_plan
        from headway.bench.study.study import Study

        found = find_plan(plan, size, data)
        gpus = [] if cpu else _gpus()
        folder = Path(out or f"studies/{found.name}-{found.size}")
        elsewhere = dry_run and not cpu and not gpus and found.size != "quick"
        asked = Study(found, folder, store=_path(store), kept=_path(kept), gpu=bool(gpus) or elsewhere)
        slots = jobs if jobs is not None else (len(gpus) or int(elsewhere)) * jobs_per_gpu or available_cores()
        if slots < 1:
            raise ValueError(f"jobs: expected at least 1, got {slots}.")
        if dry_run:
            typer.echo("\n".join(asked.outline(slots, rows or ())))
            if elsewhere:
                typer.echo("This machine has no GPU: the times are those of one elsewhere. --cpu gives its own.")
            return
        with _executor(executor, slots, gpus, jobs_per_gpu) as where:
            results = _done(asked, where, Console(stderr=True), rows or ())
        _reported(asked.out)
        if any(job["state"] not in ("done", "left") for job in results["jobs"]):
            raise typer.Exit(1)


def report(
    study: Annotated[str, typer.Argument(help="Folder of a study, finished or not.")],
    keep: Annotated[
        str | None,
        typer.Option(
            help="Also copy its numbers there, without models: what is worth committing. headway claims reads it."
        ),
    ] = None,
) -> None:
    """Write the report of a study from its saved results: a page, CSV, Markdown and LaTeX tables; print the table.

    \b
    Examples:
      headway report studies/quick-quick
      headway report studies/glue-gpu --keep results/studies/glue
    """
    from headway.cli.errors import exit_with_message

    with exit_with_message():
        _reported(Path(study))
        if keep is not None:
            from headway.bench.study.kept import keep_study

            kept = keep_study(Path(study), Path(keep))
            typer.echo(f"kept {len(kept)} files in {keep}")


def _path(given: str | None) -> Path | None:
    return None if given is None else Path(given)


def _gpus() -> list[str]:
    """GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(number) for number in range(torch.cuda.device_count())]
    return names if given is None else given.split(",")[: len(names)]


def _executor(name: str, slots: int, gpus: list[str], jobs_per_gpu: int) -> Executor:
    from headway.bench.study.executors import LocalExecutor, RayExecutor

    if name == "local":
        return LocalExecutor(slots, gpus)
    if name == "ray":
        return RayExecutor(jobs_per_gpu=jobs_per_gpu)
    raise ValueError(f"executor: expected local or ray, got {name!r}.")


def _done(asked: Study, where: Executor, console: Any, rows: Collection[str]) -> dict[str, Any]:
    try:
        return asked.run(where, console=console, command=shlex.join(["headway", *sys.argv[1:]]), rows=rows)
    except KeyboardInterrupt:
        typer.echo(f"stopped; the same command goes on with what is in {asked.store.path}", err=True)
        raise typer.Exit(130) from None


def _reported(folder: Path) -> None:
    from rich.console import Console

    from headway.bench.report.study import report_study

    report_study(folder, Console())
