"""The whole job of `headway analyze` but its page: read the text, load the model, measure, write."""

from __future__ import annotations

import hashlib
import random
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.pretrained.analysis.loading import load_model, load_tokenizer
from headway.pretrained.analysis.measures import Progress, analyze
from headway.pretrained.analysis.scores import FORMULAS
from headway.pretrained.analysis.text_measures import SHORTEST, USUAL
from headway.storage import OMIT_DEFAULT, environment, plain_settings, read_json, text_lines, write_json

LETTERS = 6  # of one token, about, with the space: a text is this many times text_length long


@dataclass(frozen=True, kw_only=True, slots=True)
class AnalyzeConfig:
    """What to analyse, and how; see `headway.pretrained.analysis.analyze`.

    Args:
        model: folder with config.json and *.safetensors, or a name on the Hub.
        text: a file of plain text (UTF-8), for ranks and attention on real inputs.
        texts: number of pieces of the text that are drawn.
        text_length: tokens of each piece; 128, or as many as the model has room for, unless given.
        positions: number of positions; all that the model has, or 512 where it has no limit, unless given.
        kernels: numbers of TISA kernels to fit.
        stack: part of an encoder-decoder: encoder or decoder.
        formula: formula of the position scores F_P: model, with its norms and biases, or equation, Eq. (2) of
            TISA as written.
        revision: branch, tag or commit of a model on the Hub.
        seed: seed of the fits and of the choice of pieces.
    """

    model: str
    text: str | None = None
    texts: int = 8
    text_length: int | None = None
    positions: int | None = None
    kernels: tuple[int, ...] = (1, 3, 5)
    stack: str = "encoder"
    formula: str = field(default="model", metadata=OMIT_DEFAULT)
    revision: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.kernels:
            raise ValueError("kernels: expected at least one number, got none.")
        if self.formula not in FORMULAS:
            raise ValueError(f"formula: expected one of {', '.join(FORMULAS)}, got {self.formula!r}.")
        if self.texts < 1:
            raise ValueError(f"texts: expected at least 1, got {self.texts}.")
        if self.text_length is not None and self.text_length < SHORTEST:
            raise ValueError(f"text_length: expected at least {SHORTEST}, got {self.text_length}.")

    def record(self) -> dict[str, Any]:
        """Return what config.json says: the settings, and hashes of the files they name."""
        weights = weights_hash(self.model)
        text_hash = None if self.text is None else file_hash(Path(self.text))
        texts = None if self.text is None else self.texts
        kernels = sorted(set(self.kernels))
        return {**plain_settings(self), "weights": weights, "text_hash": text_hash, "texts": texts, "kernels": kernels}

    def command(self, out: Path) -> str:
        """Return what to type to do this again."""
        options: dict[str, Any] = {"text": self.text, "stack": self.stack}
        options |= {"formula": None if self.formula == "model" else self.formula, "seed": self.seed}
        if self.text is not None:
            options |= {"texts": self.texts, "text-length": self.text_length}
        options |= {"positions": self.positions, "kernels": ",".join(map(str, sorted(set(self.kernels))))}
        options |= {"revision": self.revision, "out": out}
        given = [part for name, value in options.items() if value is not None for part in (f"--{name}", str(value))]
        return shlex.join(["headway", "analyze", self.model, *given])


def run(config: AnalyzeConfig, out: str | Path, *, progress: Progress = lambda done, total, what: None) -> bool:
    """Measure a model and write config.json, measures.json and arrays.npz; return False if they are there already.

    Args:
        out: a new folder, or one of the same analysis, of which nothing is measured again.
        progress: called with the steps done, the steps in all, and what was done.
    """
    folder, record = Path(out), config.record()
    if is_measured(folder, record):
        return False
    texts = None
    if config.text is not None:
        letters = LETTERS * (config.text_length or USUAL)
        texts = draw_texts(Path(config.text), config.texts, letters, config.seed)
    model = load_model(config.model, revision=config.revision)
    tokenizer = None if texts is None else load_tokenizer(config.model, revision=config.revision)
    measures = analyze(
        model,
        tokenizer,
        texts,
        config.positions,
        stack=config.stack,
        formula=config.formula,
        kernels=record["kernels"],
        text_length=config.text_length,
        seed=config.seed,
        progress=progress,
    )
    folder.mkdir(parents=True, exist_ok=True)
    # The configuration first: what lies beside it is then known to be of this analysis.
    write_json(
        folder / "config.json",
        {"config": record, "command": config.command(folder), "environment": environment()},
    )
    measures.save(folder)
    return True


def is_measured(folder: Path, record: dict[str, Any]) -> bool:
    """Return whether a folder holds the measures of this configuration; raise if it holds anything else."""
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"out: expected a folder, got {folder}, which is a file. Name another one.")
    names = {path.name for path in folder.glob("[!.]*")}
    if not names:
        return False
    path = folder / "config.json"
    before = read_json(path).get("config") if path.is_file() else None
    if before is None:
        raise FileExistsError(
            f"out: expected a new folder or one of an analysis, got {folder}, which holds other files. "
            f"Name another folder."
        )
    known_by_hash = {"text", *(["model"] if record["weights"] else [])}  # a folder may have moved
    changed = [
        f"{name} was {before.get(name)} and is {record.get(name)}"
        for name in dict.fromkeys([*before, *record])
        if before.get(name) != record.get(name) and name not in known_by_hash
    ]
    if changed:
        raise FileExistsError(
            f"out: expected a new folder or one of this analysis, got {folder} of another: {'; '.join(changed)}. "
            f"Name another folder, or remove that one."
        )
    return {"measures.json", "arrays.npz"} <= names


def draw_texts(path: Path, number: int, letters: int, seed: int) -> list[str]:
    """Draw pieces of a text file, each at least so many letters long, with equal chances in one pass over it."""
    draw, kept = random.Random(seed), list[str]()
    for n, piece in enumerate(_pieces(path, letters)):
        if n < number:
            kept.append(piece)
        elif (place := draw.randrange(n + 1)) < number:
            kept[place] = piece
    if not kept:
        raise ValueError(f"text: expected a file with text, got {path}, which is empty. Give one with a few sentences.")
    return kept


def _pieces(path: Path, letters: int) -> Iterator[str]:
    """Join lines until they are long enough, and cut those that are much longer.

    What is left at the end counts only where it is all there is.
    """
    lines: list[str] = []
    short = True
    for line in filter(None, map(str.strip, text_lines(path))):
        for part in _cut(line, letters):
            lines.append(part)
            if sum(map(len, lines)) >= letters:
                yield " ".join(lines)
                lines, short = [], False
    if lines and short:
        yield " ".join(lines)


def _cut(line: str, letters: int) -> Iterator[str]:
    """Cut a long line at white space, where there is some soon enough."""
    start = 0
    while len(line) - start > 2 * letters:
        end = line.find(" ", start + letters, start + 2 * letters)
        end = start + letters if end < 0 else end
        yield line[start:end].strip()
        start = end
    yield line[start:].strip()


def weights_hash(model: str) -> str | None:
    """Return a hash of a folder's weights and configuration; None for a name on the Hub."""
    if not Path(model).is_dir():
        return None
    found = sorted([*Path(model).glob("*.safetensors"), *Path(model).glob("config.json")])
    return hashlib.sha256("".join(map(file_hash, found)).encode()).hexdigest()[:12]


def file_hash(path: Path) -> str:
    """Return a short hash of a file."""
    if not path.is_file():
        raise FileNotFoundError(f"text: expected a file, got {path}. Check its name.")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]
