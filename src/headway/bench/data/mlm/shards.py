"""Tokenised rows on disk, memory-mapped, as `build_shards` writes them.

A folder holds `index.json`, written last, and the shards it lists; a shard is a folder with, for each split, the tokens
of all rows one after another and where each row starts. Opening checks that nothing is missing, cut off or made with
another tokenizer.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from headway.bench.data.reading import file_checksum
from headway.bench.data.text.tokenizers import highest_id
from headway.storage import config_hash, read_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

FORMAT = 1
SPLITS = ("train", "validation")
PADDING = -1  # document id of padding
# Tells tokenizers of one vocabulary apart: case, accents, white space, punctuation, numbers, scripts, marks.
PROBE = (
    "The Übergröße of naïve  I'M (U.S.A.), 3.14 & 1,000! don't… "
    "東京都の天気は。 Ελλάδα русский हिन्दी العربية ไทย 한국어 ﬁ ½ ☃"
)


class Shards:
    """Rows of tokens, one split of a folder.

    `len(shards)` rows; `shards[i]` is (tokens, documents): token ids, and for each token which of the row's texts it
    is in, 0, 1, ... A text is [CLS] tokens [SEP]; rows that are not packed hold one.

    Args:
        folder: the folder that `build_shards` wrote.
        split: "train" or "validation".
        tokenizer: the tokenizer in use; raise if the shards were made with another.
        verify: read every file and compare it with its checksum.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        split: str = "train",
        *,
        tokenizer: PreTrainedTokenizerFast | None = None,
        verify: bool = False,
    ) -> None:
        self.folder, self.split = Path(folder), split
        self.index = read_index(self.folder)
        if split not in SPLITS:
            raise ValueError(f"split: expected one of {', '.join(SPLITS)}, got {split!r}. Use one of those.")
        if tokenizer is not None:
            check_tokenizer(self.index["tokenizer"], tokenizer_facts(tokenizer), self.folder)
        for shard in self.index["shards"]:
            check_files(self.folder, shard, verify=verify)
        used = [shard for shard in self.index["shards"] if shard["rows"].get(split)]
        if not used:
            count = sum(shard["documents"] for shard in self.index["shards"])
            raise ValueError(
                f"split: expected rows for {split!r} in {self.folder}, got none: whole documents are held out, and "
                f"there {'is 1' if count == 1 else f'are {count}'}. Build them from more; in a text file a blank line "
                f"stands between two."
            )
        self._tokens = [self._map(shard, "tokens") for shard in used]
        self._starts = [self._map(shard, "starts") for shard in used]
        self._ends = np.cumsum([shard["rows"][split] for shard in used])  # one past each shard's last row
        self._languages = [shard["language"] for shard in used]

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, row: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row: expected -{len(self)} to {len(self) - 1}, got {row}.")
        tokens = self._row(row % len(self))
        return tokens, np.cumsum(tokens == self.specials["cls"]) - 1

    def batch(self, rows: Sequence[int] | npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return the tokens of several rows, (B, max_length), padded."""
        tokens = np.full((len(rows), self.max_length), self.specials["pad"], dtype=np.int64)
        for place, row in zip(tokens, rows, strict=True):
            found = self._row(int(row))
            place[: len(found)] = found
        return tokens

    def __repr__(self) -> str:
        return f"Shards({str(self.folder)!r}, {self.split!r}): {len(self):,} rows, {self.num_tokens:,} tokens"

    def __reduce__(self) -> tuple[Any, ...]:
        return Shards, (self.folder, self.split)  # open again rather than copy what is mapped

    @property
    def fingerprint(self) -> str:
        """Return a hash of all rows of the folder: of the tokenizer and the checksums of the files."""
        files = [[facts["sha256"] for facts in shard["files"].values()] for shard in self.index["shards"]]
        return config_hash({"tokenizer": self.index["tokenizer"]["hash"], "files": files})

    @property
    def max_length(self) -> int:
        return int(self.index["max_length"])

    @property
    def packed(self) -> bool:
        """Return whether a row may hold several texts."""
        return bool(self.index["packed"])

    @property
    def vocab_size(self) -> int:
        return int(self.index["tokenizer"]["vocab_size"])

    @property
    def specials(self) -> dict[str, int]:
        """Return the ids of pad, unk, cls, sep and mask."""
        return dict(self.index["tokenizer"]["specials"])

    @property
    def special_ids(self) -> list[int]:
        """Return all ids that are not part of a text."""
        return list(self.index["tokenizer"]["special_ids"])

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens, including [CLS] and [SEP] and without padding."""
        return sum(len(tokens) for tokens in self._tokens)

    @property
    def tokens_per_row(self) -> dict[str, float]:
        """Return the mean number of tokens in a row of each language, counted as in `num_tokens`."""
        tokens, rows = Counter[str](), Counter[str]()
        for language, own, starts in zip(self._languages, self._tokens, self._starts, strict=True):
            tokens[language] += len(own)
            rows[language] += len(starts) - 1
        return {language: tokens[language] / rows[language] for language in tokens}

    @property
    def languages(self) -> dict[str, list[tuple[int, int]]]:
        """Return the ranges of rows of each language, (first, one past the last)."""
        ranges: dict[str, list[tuple[int, int]]] = {}
        start = 0
        for language, end in zip(self._languages, self._ends.tolist(), strict=True):
            ranges.setdefault(language, []).append((start, end))
            start = end
        return ranges

    def _row(self, row: int) -> npt.NDArray[Any]:
        shard = int(np.searchsorted(self._ends, row, side="right"))
        starts = self._starts[shard]
        local = row - int(self._ends[shard]) + len(starts) - 1
        return self._tokens[shard][starts[local] : starts[local + 1]]

    def _map(self, shard: dict[str, Any], part: str) -> npt.NDArray[Any]:
        # A plain view of the mapping: slicing np.memmap itself costs several times as much.
        dtype = self.index["dtype"] if part == "tokens" else "int64"
        return np.asarray(np.memmap(self.folder / shard["name"] / f"{self.split}.{part}", dtype=dtype, mode="r"))


def read_index(folder: Path) -> dict[str, Any]:
    """Return the index of finished shards."""
    if not (folder / "index.json").exists():
        built = folder.exists() and any(folder.glob("shard-*"))
        raise FileNotFoundError(
            f"{folder}: expected index.json, got "
            + ("a build that did not finish. Run it again." if built else "none. Run build_shards first.")
        )
    index = read_json(folder / "index.json")
    if index.get("format") != FORMAT:
        raise ValueError(f"{folder}/index.json: expected format {FORMAT}, got {index.get('format')}. Build them again.")
    return dict(index)


def check_files(folder: Path, shard: dict[str, Any], *, verify: bool) -> None:
    """Raise unless the files of a shard have the sizes, and with `verify` the checksums, that were recorded."""
    for name, facts in shard["files"].items():
        path = folder / shard["name"] / name
        again = f"Remove {folder} and build the shards again."
        if not path.exists():
            raise FileNotFoundError(f"{path}: expected {facts['bytes']} bytes, got no such file. {again}")
        if path.stat().st_size != facts["bytes"]:
            raise ValueError(f"{path}: expected {facts['bytes']} bytes, got {path.stat().st_size}. {again}")
        if verify and (found := file_checksum(path)) != facts["sha256"]:
            raise ValueError(f"{path}: expected SHA-256 {facts['sha256']}, got {found}. It has changed. {again}")


def tokenizer_facts(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Return what shards depend on, to record it with them: special ids, and a hash of vocabulary and tokenisation.

    Ids below the highest that no token has, as in some vocabularies, count as special: they are not part of a text.
    """
    specials = {name: getattr(tokenizer, f"{name}_token_id", None) for name in ("pad", "unk", "cls", "sep", "mask")}
    missing = [name for name, value in specials.items() if value is None]
    if missing or not getattr(tokenizer, "is_fast", False):
        wanted = "a fast tokenizer with pad, unk, cls, sep and mask tokens"
        got = f"one without {', '.join(missing)}" if missing else type(tokenizer).__name__
        raise ValueError(f"tokenizer: expected {wanted}, got {got}. Train one with headway.bench.data.train_tokenizer.")
    if len(set(specials.values())) < len(specials):
        raise ValueError(
            f"tokenizer: expected five tokens for pad, unk, cls, sep and mask, got one for several: {specials}. "
            f"Give each its own, with tokenizer.add_special_tokens."
        )
    cut = plain_backend(tokenizer).encode(PROBE, add_special_tokens=False).ids
    vocabulary = tokenizer.get_vocab()
    vocab_size = highest_id(tokenizer) + 1
    return {
        "hash": config_hash({"vocabulary": vocabulary, "specials": specials, "probe": cut}),
        "vocab_size": vocab_size,
        "specials": specials,
        "special_ids": sorted({*tokenizer.all_special_ids, *(set(range(vocab_size)) - set(vocabulary.values()))}),
    }


def plain_backend(tokenizer: PreTrainedTokenizerFast) -> Tokenizer:
    """Return a copy that neither truncates nor pads, and treats names of special tokens in a text as text."""
    from tokenizers import Tokenizer

    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True
    return backend


def check_tokenizer(recorded: dict[str, Any], asked: dict[str, Any], folder: Path) -> None:
    if recorded["hash"] != asked["hash"]:
        raise ValueError(
            f"tokenizer: expected the one the shards in {folder} were made with (hash {recorded['hash']}, "
            f"{recorded['vocab_size']} tokens), got hash {asked['hash']}, {asked['vocab_size']} tokens. "
            f"Load that one, or build shards for this one."
        )
