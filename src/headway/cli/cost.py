"""`headway cost`: what position costs, measured on this machine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.options import seed_option

if TYPE_CHECKING:
    from headway.bench.cost.config import CostConfig


def cost(
    encodings: Annotated[
        str | None,
        typer.Option(
            help="Rows, separated by commas: names of `headway list` with options, such as "
            "diet-abs:rank=64:sharing=layer, or transformers, which is transformers' own BERT; transformers:mask=false "
            "leaves out the attention mask that it makes when compiled."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Presets, separated by commas; else bert-base on a GPU, tiny on a CPU.")
    ] = None,
    length: Annotated[str, typer.Option(help="Tokens of a sequence; several, separated by commas.")] = "128",
    batch: Annotated[
        int | None, typer.Option(help="Sequences of a step; else 32,768 tokens on a GPU, 1,024 on a CPU.")
    ] = None,
    mode: Annotated[str, typer.Option(help="training, inference, or both.")] = "training,inference",
    baseline: Annotated[str, typer.Option(help="The row that ratios are to.")] = "none",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    rounds: Annotated[int, typer.Option(help="How often each row is timed.")] = 7,
    segments: Annotated[str, typer.Option(help="none, input or per-head, where a row does not say.")] = "input",
    dropout: Annotated[float, typer.Option(help="In training.")] = 0.1,
    bf16: Annotated[bool | None, typer.Option("--bf16/--no-bf16", help="bfloat16; else on a GPU only.")] = None,
    compiled: Annotated[
        bool | None, typer.Option("--compile/--no-compile", help="torch.compile; else on a GPU only.")
    ] = None,
    graphs: Annotated[
        bool | None,
        typer.Option("--graphs/--no-graphs", help="Replay steps as CUDA graphs, as training does; else on a GPU only."),
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="After these, no further round begins.")] = None,
    seed: Annotated[int, seed_option("Of weights and words.")] = 0,
    out: Annotated[str | None, typer.Option(help="File for the raw numbers, JSON.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the raw numbers in place of the table.")] = False,
) -> None:
    """Measure what position costs: time, memory, parameters and FLOPs of whole models, training and inference.

    Rows take turns, each in its own process, and ratios are taken within a round, so that a busy machine favours none.
    A row whose output or gradients differ from the formula in float64 is reported and not timed. Beside it stands what
    Chen et al. (2021b), Table 1, measured. The default takes about a minute on a CPU.

    \b
    Examples:
      headway cost
      headway cost --model bert-small --length 128,512 --encodings none,shaw,diet-rel,diet-abs:rank=128:sharing=layer
      headway cost --model bert-base --baseline learned --encodings transformers,diet-rel --out cost.json
    """
    from headway.cli.failures import told

    with told():
        from headway.bench.cost.config import ENCODINGS, CostConfig

        config = CostConfig(
            encodings=_parts(encodings) if encodings else ENCODINGS,
            models=_parts(model) if model else None,
            lengths=tuple(_whole("length", part) for part in _parts(length)),
            batch=batch,
            modes=_parts(mode),
            baseline=baseline,
            device=device,
            bf16=bf16,
            compile=compiled,
            graphs=graphs,
            dropout=dropout,
            segments=segments,
            rounds=rounds,
            minutes=minutes,
            seed=seed,
        )
        _run(config, out, as_json)


def _run(config: CostConfig, out: str | None, as_json: bool) -> None:
    from rich.console import Console

    from headway.bench.cost.measure import measure
    from headway.bench.cost.show import show
    from headway.storage import check_file, write_json

    if out is not None:
        check_file(out)
    with Console(stderr=True).status("") as status:
        table = measure(config, tell=status.update)
    if as_json:
        typer.echo(json.dumps(table.to_json(), indent=2))
    else:
        show(table, Console())
    if out is not None:
        write_json(out, table.to_json())
        typer.echo(f"wrote {out}", err=as_json)
    if all(row.problem is not None for row in table.measurements):
        raise typer.Exit(1)


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"--{name}: expected whole numbers, separated by commas, got {text!r}.") from None
