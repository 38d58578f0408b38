"""`headway analyze`: what a model's positions learned, measured, drawn and described."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

import headway.pretrained.conversion  # noqa: F401  registers converted models with transformers
from headway.bench.report import analysis_figures, analysis_page
from headway.cli.options import configured
from headway.cli.settings import Changes
from headway.pretrained.analysis.run import AnalyzeConfig, run

SHOWN = ("MODEL=model", "text", "texts", "text_length", "positions", "kernels", "stack", "formula", "revision", "seed")


@configured(AnalyzeConfig, SHOWN)
def analyze(
    out: Annotated[str, typer.Option(help="Folder for everything that is written.")],
    *,
    given: Changes,
    figures: Annotated[bool, typer.Option("--figures/--no-figures", help="Also write PNG and SVG files.")] = True,
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Measure what a model's positions learned: how far they depend on the offset alone, what heads attend to, ranks.

    Takes BERT, RoBERTa, XLM-R, CamemBERT, ALBERT, DistilBERT, ELECTRA, MPNet, MiniLM, GPT-2, T5's family, headway's
    encoders, what `headway convert` made of any of them, and the other models of text that `headway fuse` takes, such
    as DeBERTa, XLNet, BLOOM and ModernBERT. Writes report.html (one file, works offline), figures/,
    measures.json and arrays.npz. What a folder already holds of the same analysis is not measured again.

    \b
    Examples:
      headway analyze runs/diet-rel/model --out analysis/diet-rel
      headway analyze bert-base-uncased --text book.txt --out analysis/bert --open
      headway analyze microsoft/deberta-v3-base --positions 128 \\
        --out analysis/deberta
      headway analyze t5-small --stack decoder --positions 256 --kernels 1,2 \\
        --out analysis/t5
    """
    if "text" not in given:
        given.refuse(["texts", "text_length"], "without a text", advice="Give --text FILE too.")
    disable_progress_bar()  # one bar is enough
    set_verbosity_error()  # load_model itself says what is missing
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=quiet) as bar:
        task = bar.add_task("load", total=None)
        measured = run(
            given.build(AnalyzeConfig),
            out,
            progress=lambda done, total, what: bar.update(task, completed=done, total=total, description=what),
        )
    if not measured:
        typer.echo(f"{out} holds this analysis: nothing is measured again", err=True)
    page = analysis_page(out)
    drawn = [f"figures/ ({len(analysis_figures(out))})"] if figures else []
    written = ("config.json", "measures.json", "arrays.npz", page.name, *drawn)
    typer.echo(f"wrote {Path(out)}: {', '.join(written)}\nopen {page} in a browser")
    if show:
        typer.launch(page.resolve().as_uri())
