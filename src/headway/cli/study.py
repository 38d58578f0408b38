"""`headway study` and `headway report`: from a plan to a table of many jobs, and from the table to a page."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from headway.cli.errors import exit_with_message
from headway.cli.options import configured
from headway.cli.settings import Changes

if TYPE_CHECKING:
    from headway.bench.study.executors import Executor

SHOWN = ("PLAN=plan", "size", "data", "models", "rows", "store", "kept", "jobs", "jobs_per_gpu", "executor", "cpu")
NO_GPU_HERE = "This machine has no GPU: the times are those of one elsewhere. --cpu gives its own."


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyConfig:
    """A plan, the data it reads, and the machines that do its jobs.

    Args:
        plan: name of a plan (--list shows them), or a Python file of your own with a function plan.
        size: one of quick (built-in language, minutes), gpu (under an hour on one GPU), paper (as published).
        data: folder with corpus/, glue/, xtreme/ and translation/, for the sizes gpu and paper.
        models: pretrained model, folder or Hub name, of the plan tisa-models, its later versions after commas, which
            may be given several times; or the one that the plan league-conversion converts in place of headway's own.
        rows: row whose jobs are done now; may be given several times. All rows unless given.
        store: folder of jobs, which several studies may share; jobs/ in the study's folder unless given.
        kept: folder that headway report --keep wrote, perhaps on another machine; its jobs count as done.
        jobs: number of jobs at once; one a GPU, or one a core where there is none, unless given.
        jobs_per_gpu: number of jobs that share a GPU.
        executor: where jobs run: local, or ray for all machines of a Ray cluster that is running.
        cpu: do not use GPUs.
    """

    plan: str
    size: str = "quick"
    data: str | None = None
    models: tuple[str, ...] = field(default=(), metadata={"commas": False})
    rows: tuple[str, ...] = field(default=(), metadata={"commas": False})
    store: Path | None = None
    kept: Path | None = None
    jobs: int | None = None
    jobs_per_gpu: int = 1
    executor: str = "local"
    cpu: bool = False

    def __post_init__(self) -> None:
        if self.executor not in ("local", "ray"):
            raise ValueError(f"executor: expected local or ray, got {self.executor!r}.")
        if self.jobs is not None and self.jobs < 1:
            raise ValueError(f"jobs: expected at least 1, got {self.jobs}.")


def _list_plans(asked: bool) -> None:
    if not asked:
        return
    from headway.bench.study.plans import PLANS

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("plan", "of", "what it compares"):
        table.add_column(heading, no_wrap=heading == "plan")
    for name, plan in PLANS.items():
        made = plan("quick", None)
        table.add_row(name, made.paper.partition(", ")[0] or "headway", made.title)
    Console().print(table)
    raise typer.Exit


@configured(StudyConfig, SHOWN)
def study(
    given: Changes,
    out: Annotated[str | None, typer.Option(help="Folder of the study; studies/PLAN-SIZE unless given.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the jobs, their time and disk; do nothing.")
    ] = False,
    list_: Annotated[
        bool, typer.Option("--list", is_eager=True, callback=_list_plans, help="List the plans, and exit.")
    ] = False,
) -> None:
    """Run a study: pretraining, fine-tuning, translation, analysis and cost of many encodings; then write its report.

    Every job is a folder named by a hash of its configuration, and is never done twice. A study that was killed, or
    whose plan has changed, continues with the same command. A job that fails is reported and stops no other.

    \b
    Examples:
      headway study quick
      headway study glue --size gpu --data data --dry-run
      headway study encodings --size gpu --data data --rows learned \\
        --rows diet-rel
      headway study myplan.py --out studies/mine --store studies/jobs --jobs 4
    """
    from headway.bench.processes import available_cores
    from headway.bench.report.study import report_study
    from headway.bench.study.plans import find_plan
    from headway.bench.study.study import Study

    config = given.build(StudyConfig)
    plan = find_plan(config.plan, config.size, config.data, config.models)
    gpus = [] if config.cpu else _visible_gpus()
    elsewhere = dry_run and not config.cpu and not gpus and plan.size != "quick"
    folder = Path(out or f"studies/{plan.name}-{plan.size}")
    asked = Study(plan, folder, store=config.store, kept=config.kept, gpu=bool(gpus) or elsewhere)
    slots = config.jobs or (len(gpus) or int(elsewhere)) * config.jobs_per_gpu or available_cores()
    if dry_run:
        typer.echo("\n".join(asked.outline(slots, config.rows)))
        if elsewhere:
            typer.echo(NO_GPU_HERE)
        return
    command = shlex.join(["headway", *sys.argv[1:]])
    with (
        exit_with_message(when_stopped=f"stopped; the same command continues with what is in {asked.store.path}"),
        _executor(config, slots, gpus) as executor,
    ):
        results = asked.run(executor, console=Console(stderr=True), command=command, rows=config.rows)
    report_study(asked.out, Console())
    if any(job["state"] not in ("done", "left") for job in results["jobs"]):
        raise typer.Exit(1)


@exit_with_message()
def report(
    study: Annotated[str, typer.Argument(metavar="STUDY", help="Folder of a study, finished or not.")],
    keep: Annotated[
        str | None,
        typer.Option(
            help="Also copy its numbers to this folder, without models: what is worth committing. headway claims "
            "reads it."
        ),
    ] = None,
) -> None:
    """Write the report of a study from its saved results: a page, CSV, Markdown and LaTeX tables; print the table.

    \b
    Examples:
      headway report studies/quick-quick
      headway report studies/glue-gpu --keep results/studies/glue
    """
    from headway.bench.report.study import report_study

    report_study(Path(study), Console())
    if keep is not None:
        from headway.bench.study.store import export_study

        kept = export_study(Path(study), Path(keep))
        typer.echo(f"kept {len(kept)} files in {keep}")


def _visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(number) for number in range(torch.cuda.device_count())]
    return names if given is None else given.split(",")[: len(names)]


def _executor(config: StudyConfig, slots: int, gpus: list[str]) -> Executor:
    from headway.bench.study.executors import LocalExecutor, RayExecutor

    if config.executor == "ray":
        return RayExecutor(jobs_per_gpu=config.jobs_per_gpu)
    return LocalExecutor(slots, gpus)
