"""What `headway convert` does: load a model, convert it, compare it with its original, and write it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers import AutoModel

from headway.models.pretrained import quiet_transformers
from headway.pretrained.analysis.loading import (
    check_supported,
    load_checked,
    load_tokenizer,
    named_class,
    revision_of,
)
from headway.pretrained.conversion.comparison import (
    Closeness,
    compare,
    length_figure,
    loss_by_length,
    predicts_words,
    save_figure,
)
from headway.pretrained.conversion.conversion import check_family
from headway.pretrained.conversion.converted import MODELS, Converted, encoding_of, max_length_of
from headway.pretrained.conversion.surgery import convert, surgeon_for
from headway.pretrained.model_types import OWN
from headway.storage import atomic_path, environment, text_lines, write_json


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvertConfig:
    """What to convert, and how; see `headway.pretrained.conversion.convert`.

    Args:
        model: folder or Hub name of a BERT, RoBERTa, ... or headway model.
        to: the bias: tisa, diet-rel, diet-abs, t5 or alibi, with options as in tisa:kernels=5.
        mode: what happens to the position embeddings: supplement keeps them, replace takes them out.
        max_length: tokens of the longest text that the model is for; as in the original unless given. A larger number
            needs mode replace.
        start: start of the bias: fit (to what positions do to the scores, measured), equation (the same by Eq. 2 of the
            TISA paper), zero or random; unless given, fit in mode replace and zero in mode supplement.
        text: a file of text such as the model reads: its first half to fit on, its second to compare on.
        lengths: numbers of tokens, such as 128,512,1024, at which the loss of masked words is measured; needs text.
        revision: branch, tag or commit of a model on the Hub.
        seed: seed of words, masks and a random start.
    """

    model: str
    to: str
    mode: str = "supplement"
    max_length: int | None = None
    start: str | None = None
    text: str | None = None
    lengths: tuple[int, ...] = ()
    revision: str | None = None
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Result:
    """What was done; also conversion.json of the folder."""

    folder: str
    kind: str  # class of the converted model
    parameters: int  # of the bias
    removed: int  # of the old positions
    registered_by: str  # the module to import before transformers' Auto classes load it
    revision: str | None  # the commit on the Hub that the original was loaded from, where it was
    closeness: Closeness | None  # None without text
    losses: dict[str, dict[int, float | None]]  # of "original" and "converted", by length


def run(config: ConvertConfig, out: str | Path, *, progress: Callable[[str], None] = lambda message: None) -> Result:
    """Convert a model and write it, its tokenizer, conversion.json and, for lengths, losses.png and losses.svg.

    Args:
        out: a new folder for all of that.
        progress: called with what is done next.
    """
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FileExistsError(f"out: expected a new folder, got {out}, which is there already. Name another one.")
    to_fit, to_compare = (None, None) if config.text is None else split_in_half(read_text(config.text))
    if config.lengths and to_compare is None:
        raise ValueError("lengths: expected a text to measure the loss on, got none. Give --text FILE.")
    progress("loading")
    original = load_original(config.model, revision=config.revision)
    tokenizer = load_tokenizer(config.model, revision=config.revision)
    if config.lengths and not predicts_words(original):
        raise ValueError(
            f"lengths: expected a model that predicts masked words (ForMaskedLM), got {type(original).__name__}. "
            f"Leave --lengths out."
        )
    progress(f"converting to {config.to}")
    converted = convert(
        original,
        config.to,
        mode=config.mode,
        max_length=config.max_length,
        start=config.start,
        tokenizer=tokenizer,
        texts=to_fit,
        seed=config.seed,
    )
    _check_lengths(config.lengths, max_length_of(original), max_length_of(converted))
    closeness, losses = None, {}
    if to_compare is not None:
        progress("comparing")
        closeness = compare(original, converted, tokenizer, to_compare, seed=config.seed)
    if config.lengths and to_compare is not None:
        for name, model in (("original", original), ("converted", converted)):
            progress(f"loss by length, {name}")
            losses[name] = loss_by_length(model, tokenizer, to_compare, config.lengths, seed=config.seed)
    surgeon = surgeon_for(original)
    result = Result(
        folder=str(out),
        kind=type(converted).__name__,
        parameters=sum(parameter.numel() for parameter in encoding_of(converted).parameters()),
        removed=surgeon.count_removed(original) if config.mode == "replace" else 0,
        registered_by="headway.pretrained.conversion" if isinstance(converted, Converted) else "headway.models",
        revision=revision_of(original),
        closeness=closeness,
        losses=losses,
    )
    tokenizer.model_max_length = surgeon.count_positions(original) if config.max_length is None else config.max_length
    progress("writing")
    with atomic_path(out) as folder, quiet_transformers():
        converted.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        if losses:
            save_figure(length_figure(losses, positions=max_length_of(original)), folder / "losses")
        write_json(folder / "conversion.json", {"config": asdict(config), **asdict(result), "versions": environment()})
    return result


def load_original(source: str, *, revision: str | None = None, converts: bool = True) -> Any:
    """Load a model in the class that its configuration names, else without a head.

    Args:
        converts: raise for a model that cannot be converted; otherwise for one that cannot be analysed.
    """
    return load_checked(source, check_family if converts else check_supported, _named_or_base, revision=revision)


def _named_or_base(config: Any) -> Any:
    """Return the first class that the configuration names and that can be converted, else the model without a head."""

    def converts(kind: Any) -> bool:
        return kind in MODELS or (config.model_type == OWN and getattr(kind, "config_class", None) is type(config))

    named = [named_class(name) for name in config.architectures or []]
    return next((kind for kind in named if converts(kind)), AutoModel)


def _check_lengths(lengths: Sequence[int], *limits: int | None) -> None:
    """Raise for lengths that neither model takes: nothing could be measured there."""
    known = [limit for limit in limits if limit is not None]
    beyond = [length for length in lengths if len(known) == len(limits) and length > max(known)]
    if beyond:
        raise ValueError(
            f"lengths: expected at most {max(known)}, all that the original or the converted model has positions for, "
            f"got {', '.join(map(str, beyond))}. For longer texts use --mode replace with --max-length."
        )


def split_in_half(text: str) -> tuple[list[str], list[str]]:
    """Cut a text in two, between words."""
    middle = len(text) // 2
    cut = next((n for n in range(middle, len(text)) if text[n].isspace()), middle)
    return [text[:cut]], [text[cut:]]


def read_text(name: str) -> str:
    """Read a file's text, and raise if it is empty."""
    path = Path(name)
    if not path.is_file():
        raise FileNotFoundError(f"text: expected a file, got {name!r}, which does not exist or is a folder.")
    text = "\n".join(text_lines(path))
    if not text.strip():
        raise ValueError(f"text: expected some text in {name}, got an empty file.")
    return text
