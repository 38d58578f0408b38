"""`headway analyze`: what a model's positions learned, measured, drawn and told."""

from __future__ import annotations

import hashlib
import random
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.settings import MAX_SEED

if TYPE_CHECKING:
    from headway.pretrained.analysis import Measures

TEXTS = 8  # unless --texts says another number
LETTERS = 6  # of one token, about, with the space: a text is this many times --text-length long


def analyze(
    model: Annotated[str, typer.Argument(help="Folder with config.json and *.safetensors, or a name on the Hub.")],
    out: Annotated[str, typer.Option(help="Folder for everything that is written.")],
    text: Annotated[
        str | None, typer.Option(help="Plain text (UTF-8), for ranks and attention on real inputs.")
    ] = None,
    texts: Annotated[
        int | None, typer.Option(min=1, help="How many pieces of the text, drawn with --seed; else 8.")
    ] = None,
    text_length: Annotated[
        int | None, typer.Option(min=3, help="Tokens of each piece; else 128, or all that the model has room for.")
    ] = None,
    positions: Annotated[
        int | None, typer.Option(help="How many; else all that the model has, 512 where there is no limit.")
    ] = None,
    kernels: Annotated[str, typer.Option(help="Numbers of TISA kernels to fit, separated by commas.")] = "1,3,5",
    stack: Annotated[str, typer.Option(help="Of an encoder-decoder: encoder or decoder.")] = "encoder",
    figures: Annotated[bool, typer.Option("--figures/--no-figures", help="PNG and SVG files beside the page.")] = True,
    revision: Annotated[str | None, typer.Option(help="Of a model on the Hub: a branch, tag or commit.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of the fits and of the choice of texts.")] = 0,
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Say what a model's positions learned: how far they depend on the offset alone, what each head attends to, ranks.

    Takes BERT, RoBERTa, XLM-R, CamemBERT, ALBERT, DistilBERT, ELECTRA, MPNet, MiniLM, GPT-2, T5's family, headway's
    encoders, and what `headway convert` made of any of them. Writes report.html (one file, works offline), figures/,
    measures.json and arrays.npz. What a folder already holds of the same analysis is not measured again.

    \b
    Examples:
      headway analyze runs/diet-rel/model --out analysis/diet-rel
      headway analyze bert-base-uncased --text book.txt --out analysis/bert --open
      headway analyze t5-small --stack decoder --positions 256 --kernels 1,2 --out analysis/t5
    """
    from headway.cli.failures import told

    with told():
        from headway.bench.report import analysis_figures, analysis_page

        unread = [
            f"--{name}" for name, value in {"texts": texts, "text-length": text_length}.items() if value is not None
        ]
        if text is None and unread:
            raise ValueError(f"{', '.join(unread)}: expected --text beside, got no text. Give --text FILE.")
        config: dict[str, Any] = {
            "model": model,
            "revision": revision,
            "weights": fingerprint(model),
            "text": text,
            "text_hash": None if text is None else file_hash(Path(text)),
            "texts": None if text is None else texts or TEXTS,
            "text_length": text_length,
            "positions": positions,
            "kernels": numbers("kernels", kernels),
            "stack": stack,
            "seed": seed,
        }
        folder = Path(out)
        if measured_before(folder, config):
            typer.echo(f"{folder} holds this analysis: nothing is measured again", err=True)
        else:
            write(folder, config, measure(config, quiet=quiet))
        page = analysis_page(folder)
        drawn = analysis_figures(folder) if figures else []
        parts = [
            "config.json",
            "measures.json",
            "arrays.npz",
            page.name,
            *([f"figures/ ({len(drawn)})"] if drawn else []),
        ]
        typer.echo(f"wrote {folder}: {', '.join(parts)}\nopen {page} in a browser")
        if show:
            typer.launch(page.resolve().as_uri())


def measured_before(folder: Path, config: dict[str, Any]) -> bool:
    """Whether the folder holds the measures of this configuration; raise where it holds anything else."""
    from headway.storage import read_json

    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"out: expected a folder, got {folder}, which is a file. Name another one.")
    record, kept = folder / "config.json", {path.name for path in folder.glob("[!.]*")}
    if not kept:
        return False
    before = read_json(record).get("config") if record.is_file() else None
    if before is None:
        raise FileExistsError(
            f"out: expected a new folder or one of an analysis, got {folder}, which holds other files. "
            f"Name another folder."
        )
    told_by_hash = {"text", *(["model"] if config["weights"] else [])}  # a folder may have moved
    changed = [
        f"{name} was {before.get(name)} and is {config.get(name)}"
        for name in dict.fromkeys([*before, *config])
        if before.get(name) != config.get(name) and name not in told_by_hash
    ]
    if changed:
        raise FileExistsError(
            f"out: expected a new folder or one of this analysis, got {folder} of another: {'; '.join(changed)}. "
            f"Name another folder, or remove that one."
        )
    return {"measures.json", "arrays.npz"} <= kept


def measure(config: dict[str, Any], *, quiet: bool) -> Measures:
    """Load, measure, and show how far it is."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from transformers.utils.logging import disable_progress_bar, set_verbosity_error

    import headway.pretrained.conversion  # noqa: F401  converted models are then known to transformers
    from headway.pretrained.analysis import analyze, load_model, load_tokenizer
    from headway.pretrained.analysis.text_measures import USUAL

    disable_progress_bar()  # one bar is enough
    set_verbosity_error()  # load_model itself says what is missing
    texts = None
    if config["text"] is not None:
        texts = drawn_texts(
            Path(config["text"]), config["texts"], LETTERS * (config["text_length"] or USUAL), config["seed"]
        )
    model = load_model(config["model"], revision=config["revision"])
    tokenizer = None if texts is None else load_tokenizer(config["model"], revision=config["revision"])
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=quiet) as progress:
        task = progress.add_task("analyze", total=None)
        return analyze(
            model,
            tokenizer,
            texts,
            config["positions"],
            stack=config["stack"],
            kernels=config["kernels"],
            text_length=config["text_length"],
            seed=config["seed"],
            progress=lambda done, total, what: progress.update(task, completed=done, total=total, description=what),
        )


def write(folder: Path, config: dict[str, Any], measures: Measures) -> None:
    """The configuration first: what lies beside it is then known to be of this analysis."""
    from headway.storage import environment, write_json

    folder.mkdir(parents=True, exist_ok=True)
    record = {"config": config, "command": command(config, folder), "environment": environment()}
    write_json(folder / "config.json", record)
    measures.save(folder)


def command(config: dict[str, Any], folder: Path) -> str:
    """What to type to do this again."""
    options = {
        "revision": config["revision"],
        "text": config["text"],
        "positions": config["positions"],
        "stack": config["stack"],
        "seed": config["seed"],
    }
    if config["text"] is not None:
        options |= {"texts": config["texts"], "text-length": config["text_length"]}
    options |= {"kernels": ",".join(map(str, config["kernels"])), "out": folder}
    given = [part for name, value in options.items() if value is not None for part in (f"--{name}", str(value))]
    return shlex.join(["headway", "analyze", config["model"], *given])


def drawn_texts(path: Path, number: int, letters: int, seed: int) -> list[str]:
    """Pieces of a text file, each at least so many letters long, drawn with equal chances in one pass over it."""
    draw, kept = random.Random(seed), list[str]()
    for n, piece in enumerate(pieces(path, letters)):
        if n < number:
            kept.append(piece)
        elif (place := draw.randrange(n + 1)) < number:
            kept[place] = piece
    if not kept:
        raise ValueError(f"text: expected a file with text, got {path}, which is empty. Give one with a few sentences.")
    return kept


def pieces(path: Path, letters: int) -> Iterator[str]:
    """Lines joined until they are long enough, and cut where they are much longer; what is left at the end counts only
    where it is all there is."""
    lines: list[str] = []
    short = True
    try:
        with path.open(encoding="utf-8-sig") as file:
            for line in filter(None, map(str.strip, file)):
                for part in _cut(line, letters):
                    lines.append(part)
                    if sum(map(len, lines)) >= letters:
                        yield " ".join(lines)
                        lines, short = [], False
    except UnicodeDecodeError as error:
        raise ValueError(f"text: expected UTF-8, got {path} with {error}. Convert it: iconv -t UTF-8.") from error
    if lines and short:
        yield " ".join(lines)


def _cut(line: str, letters: int) -> Iterator[str]:
    """At white space, where there is some soon enough."""
    start = 0
    while len(line) - start > 2 * letters:
        end = line.find(" ", start + letters, start + 2 * letters)
        end = start + letters if end < 0 else end
        yield line[start:end].strip()
        start = end
    yield line[start:].strip()


def fingerprint(model: str) -> str | None:
    """What tells a folder's weights from others; None for a name on the Hub."""
    if not Path(model).is_dir():
        return None
    found = sorted([*Path(model).glob("*.safetensors"), *Path(model).glob("config.json")])
    return hashlib.sha256("".join(map(file_hash, found)).encode()).hexdigest()[:12]


def file_hash(path: Path) -> str:
    if not path.is_file():
        raise FileNotFoundError(f"text: expected a file, got {path}. Check its name.")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]


def numbers(name: str, text: str) -> list[int]:
    """Whole numbers, separated by commas, each once and in order."""
    try:
        return sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise ValueError(f"--{name}: expected whole numbers, separated by commas, got {text!r}.") from None
