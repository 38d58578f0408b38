"""`headway convert`: a pretrained encoder's positions supplemented or replaced by a bias on its scores."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from headway.cli.options import configured
from headway.cli.settings import Changes
from headway.pretrained.conversion.run import ConvertConfig, Result, run

SHOWN = ("MODEL=model", "to", "mode", "max_length", "start", "text", "lengths", "revision", "seed")


@configured(ConvertConfig, SHOWN)
def convert(
    out: Annotated[str, typer.Option(help="A new folder for the converted model.")],
    *,
    given: Changes,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Give a pretrained encoder a position bias, beside its position embeddings or in their place.

    Replacing, the bias is fitted to what the model's own positions do, so that it starts close to the original;
    supplementing, it starts at zero and the model is the one it was. The folder has the model, its tokenizer and
    conversion.json; after `import headway.pretrained.conversion`, transformers' Auto classes load it. A model of
    `headway pretrain` becomes another of its kind: "learned" supplemented by TISA is "learned+tisa".

    \b
    Examples:
      headway convert bert-base-uncased --to tisa:kernels=5 --out bert-tisa
      headway convert roberta-base --to diet-rel --mode replace \\
        --max-length 2048 --text books.txt --out roberta-long
      headway convert runs/learned/model --to tisa --mode replace \\
        --text books.txt --lengths 128,512 --out runs/tisa
      headway convert albert-base-v2 --to tisa --mode replace --text books.txt \\
        --lengths 128,512,1024 --out albert-tisa
    """
    config = given.build(ConvertConfig)
    with Console(stderr=True, quiet=quiet).status("") as status:
        result = run(config, out, progress=status.update)
    show(config, result)


def show(config: ConvertConfig, result: Result) -> None:
    """Say how close the converted model is to the original, and what was written."""
    changed = f", {result.removed:,} of the old positions gone" if result.removed else ""
    typer.echo(f"{result.kind}: {result.parameters:,} parameters of the bias{changed}")
    close = result.closeness
    if close is not None:
        table = Table(box=SIMPLE_HEAD, title=f"against the original, {close.rows} x {close.length} tokens")
        table.add_column("measure")
        table.add_column("value", justify="right")
        table.add_row("relative error of hidden states", f"{close.relative_error:.4f}")
        table.add_row("cosine of tokens", f"{close.cosine:.4f}")
        table.add_row("cosine of texts (mean of tokens)", f"{close.text_cosine:.4f}")
        if close.loss_before is not None and close.loss_after is not None:
            table.add_row("loss of masked words, before", f"{close.loss_before:.4f}")
            table.add_row("loss of masked words, after", f"{close.loss_after:.4f}")
        for layer, error in enumerate(close.score_errors):
            table.add_row(f"error of average scores, layer {layer}", f"{error:.4f}")
        Console().print(table)
    if result.losses:
        table = Table(box=SIMPLE_HEAD, title="loss of masked words by length")
        table.add_column("tokens", justify="right")
        for name in result.losses:
            table.add_column(name, justify="right")
        for length in config.lengths:
            losses = [result.losses[name][length] for name in result.losses]
            table.add_row(str(length), *("-" if loss is None else f"{loss:.4f}" for loss in losses))
        Console().print(table)
    figure = ", losses.png, losses.svg" if result.losses else ""
    typer.echo(f"wrote {result.folder}: the model, its tokenizer, conversion.json{figure}")
    typer.echo(
        f'load it with transformers.AutoModel.from_pretrained("{result.folder}") after import {result.registered_by}'
    )
