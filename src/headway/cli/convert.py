"""`headway convert`: a pretrained encoder's positions supplemented or replaced by a bias on its scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.settings import MAX_SEED

if TYPE_CHECKING:
    from headway.pretrained.conversion.run import ConvertConfig, Result


def convert(
    model: Annotated[str, typer.Argument(help="Folder or Hub name of a BERT, RoBERTa, ... or headway model.")],
    to: Annotated[str, typer.Option(help="tisa, diet-rel, diet-abs, t5 or alibi; options as in tisa:kernels=5.")],
    out: Annotated[str, typer.Option(help="A new folder for the converted model.")],
    mode: Annotated[
        str, typer.Option(help="supplement keeps the position embeddings; replace takes them out.")
    ] = "supplement",
    max_length: Annotated[
        int | None, typer.Option(help="Tokens of the longest text it is for; else as it was. More: --mode replace.")
    ] = None,
    start: Annotated[
        str | None, typer.Option(help="fit (to the model's own scores), zero or random; else fit to replace, or zero.")
    ] = None,
    text: Annotated[
        str | None, typer.Option(help="File of text such as the model reads: half to fit on, half to compare on.")
    ] = None,
    lengths: Annotated[
        str | None, typer.Option(help="Loss of masked words at these lengths, such as 128,512,1024; needs --text.")
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Of a model on the Hub: a branch, tag or commit.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of words, masks and a random start.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Give a pretrained encoder a position bias, beside its position embeddings or in their place.

    Replacing, the bias is fitted to what the model's own positions do, so that it starts close to the original;
    supplementing, it starts at zero and the model is the one it was. The folder has the model, its tokenizer and
    conversion.json; after `import headway.pretrained.conversion`, transformers' Auto classes load it. A model of
    `headway pretrain` becomes another of its kind: "learned" supplemented by TISA is "learned+tisa".

    \b
    Examples:
      headway convert bert-base-uncased --to tisa:kernels=5 --out bert-tisa
      headway convert roberta-base --to diet-rel --mode replace --max-length 2048 --text books.txt --out roberta-long
      headway convert runs/learned/model --to tisa --mode replace --text books.txt --lengths 128,512 --out runs/tisa
      headway convert albert-base-v2 --to tisa --mode replace --text books.txt --lengths 128,512,1024 --out albert-tisa
    """
    from headway.cli.failures import told

    with told():
        from headway.pretrained.conversion.run import ConvertConfig

        config = ConvertConfig(
            model=model,
            to=to,
            revision=revision,
            mode=mode,
            max_length=max_length,
            start=start,
            text=text,
            lengths=_lengths(lengths),
            seed=seed,
        )
        _tell(config, _run(config, out, quiet))


def _run(config: ConvertConfig, out: str, quiet: bool) -> Result:
    from rich.console import Console

    from headway.pretrained.conversion.run import run

    console = Console(stderr=True, quiet=quiet)
    with console.status("") as status:
        return run(config, out, progress=status.update)


def _lengths(text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise ValueError(f"lengths: expected whole numbers, separated by commas, got {text!r}.") from None


def _tell(config: ConvertConfig, result: Result) -> None:
    """How close, and what was written."""
    from rich.console import Console
    from rich.table import Table

    changed = f", {result.removed:,} of the old positions gone" if result.removed else ""
    typer.echo(f"{result.kind}: {result.parameters:,} parameters of the bias{changed}")
    close = result.closeness
    if close is not None:
        table = Table(title=f"against the original, {close.rows} x {close.length} tokens")
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
        table = Table(title="loss of masked words by length")
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
