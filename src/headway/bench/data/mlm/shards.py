"""Tokenised rows on disk, memory-mapped: what `build_shards` made.

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

from headway.bench.data.mlm.shard_index import SPLITS, check_files, check_tokenizer, read_index, tokenizer_facts
from headway.storage import config_hash

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class Shards:
    """Rows of tokens, one split of a folder.

    `len(shards)` rows; `shards[i]` is (tokens, documents): token ids, and for each token which of the row's texts it
    is in, 0, 1, ... A text is [CLS] tokens [SEP]; rows that are not packed hold one.

    Args:
        folder: where `build_shards` wrote them.
        split: "train" or "validation".
        tokenizer: the one that is in use, to check that the shards were made with it.
        verify: whether to read every file and compare it with its checksum.
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
        """The tokens of several rows, (B, max_length), padded."""
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
        """What tells the rows of the folder, of all splits, from others: by the tokenizer and the files' checksums."""
        files = [[facts["sha256"] for facts in shard["files"].values()] for shard in self.index["shards"]]
        return config_hash({"tokenizer": self.index["tokenizer"]["hash"], "files": files})

    @property
    def max_length(self) -> int:
        return int(self.index["max_length"])

    @property
    def packed(self) -> bool:
        """Whether a row may hold several texts."""
        return bool(self.index["packed"])

    @property
    def vocab_size(self) -> int:
        return int(self.index["tokenizer"]["vocab_size"])

    @property
    def specials(self) -> dict[str, int]:
        """Ids of pad, unk, cls, sep and mask."""
        return dict(self.index["tokenizer"]["specials"])

    @property
    def special_ids(self) -> list[int]:
        """All ids that are no part of a text."""
        return list(self.index["tokenizer"]["special_ids"])

    @property
    def num_tokens(self) -> int:
        """[CLS] and [SEP] counted, padding not."""
        return sum(len(tokens) for tokens in self._tokens)

    @property
    def tokens_per_row(self) -> dict[str, float]:
        """For each language, on average; counted as in `num_tokens`."""
        tokens, rows = Counter[str](), Counter[str]()
        for language, own, starts in zip(self._languages, self._tokens, self._starts, strict=True):
            tokens[language] += len(own)
            rows[language] += len(starts) - 1
        return {language: tokens[language] / rows[language] for language in tokens}

    @property
    def languages(self) -> dict[str, list[tuple[int, int]]]:
        """For each language the ranges of its rows, (first, one past the last)."""
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
