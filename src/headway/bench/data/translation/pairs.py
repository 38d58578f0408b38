"""Tokenised pairs on disk, memory-mapped; written atomically, and opened only with the tokenizer that made them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from headway.bench.data.text.tokenizers import highest_id
from headway.bench.data.translation.cleaning import Cleaner, Rules
from headway.bench.data.translation.parallel import Pair, ParallelText
from headway.bench.data.translation.vocabulary import Pieces
from headway.storage import atomic_path, config_hash, read_json, write_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

FORMAT = 1
SIDES = ("source", "target")
CHUNK = 8192  # pairs tokenised at once, by as many threads as there are cores
Tokens = npt.NDArray[Any]
Sides = tuple[list[int], list[int]]  # of a pair


class EncodedPairs:
    """Pairs of token sequences without special tokens.

    `pairs[i]` is (source, target). `lengths`, (2, pairs), has the number of tokens of each source and target, the end
    token included. `index` records what the pairs were made of, and how many were left out and why.

    Args:
        folder: the folder that `build_pairs` wrote.
        tokenizer: the tokenizer in use; raise if the pairs were made with another.
    """

    def __init__(self, folder: str | Path, tokenizer: PreTrainedTokenizerFast) -> None:
        self.folder = Path(folder)
        self.index = read_json(self.folder / "index.json")
        if self.index.get("format") != FORMAT:
            raise ValueError(f"{folder}: expected format {FORMAT}, got {self.index.get('format')}. Build it again.")
        if (used := _hash(tokenizer)) != self.index["tokenizer"]:
            raise ValueError(
                f"tokenizer: expected the one the pairs in {folder} were made with (hash {self.index['tokenizer']}), "
                f"got hash {used}. Load that one, or build pairs for this one."
            )
        self._starts = [self._map(side, "starts", np.int64) for side in SIDES]
        self._tokens = [self._map(side, "tokens", np.dtype(self.index["dtype"])) for side in SIDES]
        self.lengths: npt.NDArray[np.int64] = np.stack([np.diff(starts) for starts in self._starts]) + 1
        self.pad, self.bos, self.eos = tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id

    def __len__(self) -> int:
        return int(self.index["pairs"])

    def __getitem__(self, number: int) -> tuple[Tokens, Tokens]:
        source, target = (
            tokens[starts[number] : starts[number + 1]]
            for tokens, starts in zip(self._tokens, self._starts, strict=True)
        )
        return source, target

    def __repr__(self) -> str:
        source, target = self.lengths.sum(axis=1).tolist()
        return f"EncodedPairs({str(self.folder)!r}): {len(self):,} pairs, {source:,} and {target:,} tokens"

    def _map(self, side: str, part: str, dtype: Any) -> Tokens:
        path = self.folder / f"{side}.{part}"
        wanted = self.index["bytes"][path.name]
        if not path.is_file() or path.stat().st_size != wanted:
            raise ValueError(
                f"{path}: expected {wanted} bytes, got another file. Remove {self.folder}; build it again."
            )
        return np.asarray(np.memmap(path, dtype=dtype, mode="r"))  # a plain view; slicing np.memmap is slow


def build_pairs(
    text: ParallelText,
    tokenizer: PreTrainedTokenizerFast,
    out: str | Path,
    *,
    rules: Rules,
    progress: Callable[[int], None] | None = None,
) -> EncodedPairs:
    """Tokenise a text and return its pairs; open them if the folder already holds them.

    Args:
        progress: called now and then with the number of pairs kept.
    """
    made_of = {"text": text.fingerprint(), "rules": asdict(rules), "tokenizer": _hash(tokenizer), "format": FORMAT}
    folder = Path(out)
    if folder.exists():
        if read_json(folder / "index.json").get("made_of") != config_hash(made_of):
            raise FileExistsError(f"out: expected a new folder or one of the same pairs, got {folder}. Remove it.")
        return EncodedPairs(folder, tokenizer)
    cleaner, dtype = Cleaner(rules), np.dtype("uint16" if highest_id(tokenizer) < 1 << 16 else "uint32")
    with atomic_path(folder) as temporary:
        temporary.mkdir()
        kept = _write(temporary, _chunks(text, Pieces(tokenizer), cleaner), dtype, progress)
        if not kept:
            why = _reasons(cleaner)
            raise ValueError(f"source: no pair of {text.source} can be used: {why}.{_advice(text, cleaner)}")
        unreadable = {"not readable": text.problems.count} if text.problems.count else {}
        index = {
            "made_of": config_hash(made_of),
            **made_of,
            "dtype": dtype.name,
            "pairs": kept,
            "read": kept + cleaner.left_out.total() + text.problems.count,
            "left_out": {**cleaner.left_out, **unreadable},
            "problems": text.problems.first,
            "bytes": {path.name: path.stat().st_size for path in sorted(temporary.iterdir())},
        }
        write_json(temporary / "index.json", index)
    return EncodedPairs(folder, tokenizer)


def _write(
    folder: Path, chunks: Iterable[list[Sides]], dtype: np.dtype[Any], progress: Callable[[int], None] | None
) -> int:
    """Write the tokens of all pairs and the start of each; return the number of pairs."""
    starts = [array("q", [0]) for _ in SIDES]
    with ExitStack() as stack:
        files = [stack.enter_context((folder / f"{side}.tokens").open("wb")) for side in SIDES]
        for chunk in chunks:
            for file, start, side in zip(files, starts, zip(*chunk, strict=True), strict=False):
                for tokens in side:
                    file.write(np.array(tokens, dtype=dtype).tobytes())
                    start.append(start[-1] + len(tokens))
            if progress is not None:
                progress(len(starts[0]) - 1)
    for start, name in zip(starts, SIDES, strict=True):
        np.array(start, dtype=np.int64).tofile(folder / f"{name}.starts")
    return len(starts[0]) - 1


def _chunks(text: Iterable[Pair], pieces: Pieces, cleaner: Cleaner) -> Iterator[list[Sides]]:
    """Yield the tokens of the pairs that meet the rules, many pairs at a time."""
    fit = (pair for pair in text if cleaner.keeps_text(pair))
    while chunk := list(islice(fit, CHUNK)):
        sources, targets = (pieces.encode([pair[side] for pair in chunk]) for side in (0, 1))
        tokenised = zip(chunk, sources, targets, strict=True)
        yield [(one, other) for pair, one, other in tokenised if cleaner.keeps_tokens(pair, len(one), len(other))]


def _hash(tokenizer: PreTrainedTokenizerFast) -> str:
    return config_hash({"tokenizer": tokenizer.backend_tokenizer.to_str()})


def _advice(text: ParallelText, cleaner: Cleaner) -> str:
    if cleaner.left_out["too long"]:
        return f" Raise data.rules.max_tokens, which is {cleaner.rules.max_tokens}."
    few = text.split == "dev" and text.held_out > 0
    return f" A share of {text.held_out:g} is too small for dev: raise data.held_out, or name dev text." if few else ""


def _reasons(cleaner: Cleaner) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in cleaner.left_out.items()) or "no rows at all"
