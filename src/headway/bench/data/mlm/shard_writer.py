"""From documents to the files of one shard: tokenise, pack into rows, write."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headway.bench.data.mlm.packing import WIDE_STOPS, FullRows, after_stops, sentences, whole_sentences
from headway.bench.data.mlm.shard_index import SPLITS, checksum, plain_backend
from headway.bench.data.text.readers import Document

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

BATCH = 1_000_000  # characters tokenised at once, by as many threads as there are cores
Tokenised = list[Sequence[int]]  # the sentences of a document


def token_dtype(config: dict[str, Any]) -> np.dtype[Any]:
    return np.dtype("uint16" if config["tokenizer"]["vocab_size"] <= 1 << 16 else "uint32")


class Encoder:
    """Documents to the token ids of their sentences.

    The names of special tokens in a text are text: "[MASK]" becomes the pieces of that word, or unknown.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, facts: dict[str, Any]) -> None:
        self._backend = plain_backend(tokenizer)
        self._unknown = facts["specials"]["unk"]
        self._special = frozenset(facts["special_ids"]) - {self._unknown}
        self._stops = frozenset(id for token, id in tokenizer.get_vocab().items() if token[-1:] in WIDE_STOPS)

    def documents(self, documents: Iterable[Document]) -> Iterator[tuple[Document, Tokenised]]:
        """Each document with its tokens; several are tokenised at once."""
        batch: list[Document] = []
        size = 0
        for document in documents:
            batch.append(document)
            size += sum(map(len, document))
            if size >= BATCH:
                yield from self._encode(batch)
                batch, size = [], 0
        yield from self._encode(batch)

    def _encode(self, batch: list[Document]) -> Iterator[tuple[Document, Tokenised]]:
        texts = [[sentence for line in document for sentence in sentences(line)] for document in batch]
        flat = [sentence for document in texts for sentence in document]
        encoded = iter(self._backend.encode_batch_fast(flat, add_special_tokens=False))
        for document, cut in zip(batch, texts, strict=True):
            yield document, [part for _ in cut for part in self._parts(next(encoded).ids)]

    def _parts(self, ids: list[int]) -> Iterable[Sequence[int]]:
        if not self._special.isdisjoint(ids):
            ids = [self._unknown if token in self._special else token for token in ids]
        return (ids,) if self._stops.isdisjoint(ids) else after_stops(ids, self._stops)


class ShardWriter:
    """Packs tokenised documents into rows and writes them to a folder."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        folder.mkdir()
        specials = config["tokenizer"]["specials"]
        self._folder, self._config = folder, config
        self._cls, self._sep, self._dtype = specials["cls"], specials["sep"], token_dtype(config)
        splits = SPLITS if config["validation"] else SPLITS[:1]
        self._packed = {split: FullRows(config["max_length"], self._cls, self._sep) for split in splits}
        self._files = {split: (folder / f"{split}.tokens").open("wb") for split in splits}
        self._starts = {split: array("q", [0]) for split in splits}
        self.documents = 0

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, *error: object) -> None:
        for file in self._files.values():
            file.close()

    @property
    def num_tokens(self) -> int:
        return sum(starts[-1] for starts in self._starts.values())

    def add(self, document: Document, tokens: Tokenised) -> None:
        split = "validation" if _chance(document) < self._config["validation"] else "train"
        self.documents += 1
        if self._config["packed"]:
            self._write(split, self._packed[split].add(tokens))
        else:
            texts = whole_sentences(tokens, self._config["max_length"] - 2)
            self._write(split, ([self._cls, *text, self._sep] for text in texts))

    def finish(self) -> dict[str, Any]:
        """Write what is left; what to record of the files."""
        for split, file in self._files.items():
            self._write(split, self._packed[split].flush())
            file.close()
            (self._folder / f"{split}.starts").write_bytes(self._starts[split].tobytes())
        paths = sorted(self._folder.iterdir())
        return {
            "documents": self.documents,
            "rows": {split: len(starts) - 1 for split, starts in self._starts.items()},
            "tokens": {split: starts[-1] for split, starts in self._starts.items()},
            "files": {path.name: {"bytes": path.stat().st_size, "sha256": checksum(path)} for path in paths},
        }

    def _write(self, split: str, rows: Iterable[list[int]]) -> None:
        starts = self._starts[split]
        for row in rows:
            self._files[split].write(np.array(row, dtype=self._dtype).tobytes())
            starts.append(starts[-1] + len(row))


def _chance(document: Document) -> float:
    """A number from 0 to 1 that depends on the text alone."""
    digest = hashlib.blake2b("\n".join(document).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
