"""Tokenise corpora once and write them as shards: streaming, in constant memory, and safe to interrupt.

A shard is written to a temporary folder and renamed when it is complete. Its content depends only on the documents
that it holds, so that a build that was killed continues after the last complete shard and ends with the same bytes.
The index, without which nothing opens the folder, is written last.
"""

from __future__ import annotations

import shutil
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headway.bench.data.language.language import require_int
from headway.bench.data.mlm.packing import WIDE_STOPS, FullRows, after_stops, sentences, whole_sentences
from headway.bench.data.mlm.shards import FORMAT, SPLITS, Shards, check_files, plain_backend, tokenizer_facts
from headway.bench.data.reading import file_checksum, hash_share
from headway.bench.data.text.corpora import Corpus, Document, Source, open_corpora
from headway.storage import atomic_path, exclusive, read_json, remove_leftovers, write_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SHARD_TOKENS = 1 << 24
REPORT_EVERY = 1 << 16  # tokens between reports of progress
BATCH = 1_000_000  # characters tokenised at once, by as many threads as there are cores
Tokenised = list[Sequence[int]]  # the sentences of a document


def build_shards(
    corpora: Source | Corpus | Sequence[Source | Corpus],
    tokenizer: PreTrainedTokenizerFast,
    out: Source,
    *,
    max_length: int = 512,
    packed: bool = False,
    validation: float = 0.0,
    shard_tokens: int = SHARD_TOKENS,
    progress: Callable[[int, int], None] | None = None,
) -> Shards:
    """Tokenise the corpora into rows of at most `max_length` tokens and return the training split.

    A row is a text, [CLS] tokens [SEP], of as many whole sentences of one document as fit (RoBERTa's DOC-SENTENCES).
    A folder that already holds the result is opened, and an interrupted build is continued. If several processes of one
    machine build the same folder, one builds and the others wait.

    Args:
        corpora: sources or corpora, with a language each where there are several.
        tokenizer: a fast tokenizer with pad, unk, cls, sep and mask tokens.
        out: the folder.
        max_length: tokens in a row, [CLS] and [SEP] included.
        packed: fill rows with several texts, so that nothing is padded; the last sentence of a row is cut.
        validation: share of documents for the validation split, chosen by a hash of their text.
        shard_tokens: number of tokens in a shard.
        progress: called now and then with the documents and tokens so far.
    """
    require_int("max_length", max_length, 3, 1 << 20)
    require_int("shard_tokens", shard_tokens, 1)
    if not 0.0 <= validation < 1.0:
        raise ValueError(f"validation: expected a share of at least 0 and below 1, got {validation}. Pass 0.01.")
    corpora, folder = open_corpora(corpora), Path(out)
    config = {
        "format": FORMAT,
        "max_length": max_length,
        "packed": packed,
        "validation": validation,
        "shard_tokens": shard_tokens,
        "tokenizer": tokenizer_facts(tokenizer),
        "corpora": [{"language": each.language or "", "fingerprint": each.fingerprint()} for each in corpora],
    }
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive(folder):
        _claim(folder, config)
        if not (folder / "index.json").exists():
            remove_leftovers(folder)
            _Build(folder, config, corpora, tokenizer, progress).run()
    return Shards(folder)


def _claim(folder: Path, config: dict[str, Any]) -> None:
    """Record the configuration of the build in its folder; raise if the folder holds another build."""
    path = folder / "build.json"
    if not path.exists():
        if any(not found.name.startswith(".") for found in folder.iterdir()):
            raise FileExistsError(f"out: expected a new folder or one of shards, got {folder}. Choose another.")
        write_json(path, config)
    there = read_json(path)
    differing = [key for key in config if there.get(key) != config[key]]
    if differing:
        short = "; ".join(f"{key} {there.get(key)!r:.60} there, {config[key]!r:.60} asked for" for key in differing)
        raise FileExistsError(
            f"out: expected {folder} to hold shards of the same build, got others ({short}). "
            f"Choose another folder, or remove this one."
        )


class _Build:
    """One build, which continues with what its folder already holds."""

    def __init__(
        self,
        folder: Path,
        config: dict[str, Any],
        corpora: list[Corpus],
        tokenizer: PreTrainedTokenizerFast,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.folder, self.config, self.corpora = folder, config, corpora
        self.encoder = DocumentTokenizer(tokenizer, config["tokenizer"])
        self.progress = progress
        self.shards = _finished_shards(folder)

    def run(self) -> None:
        for number, corpus in enumerate(self.corpora):
            own = [shard for shard in self.shards if shard["corpus"] == number]
            if not own or not own[-1]["last"]:
                self._add_corpus(number, corpus, done=sum(shard["documents"] for shard in own))
        if not any(sum(shard["rows"].values()) for shard in self.shards):
            raise ValueError("corpora: expected text, got none. Check what the files hold.")
        write_json(self.folder / "index.json", self._index())

    def _add_corpus(self, number: int, corpus: Corpus, done: int) -> None:
        documents = self.encoder.documents(islice(corpus, done, None))
        last = False
        while not last:
            name = f"shard-{len(self.shards):05d}"
            with atomic_path(self.folder / name) as temporary, ShardWriter(temporary, self.config) as shard:
                last = self._fill(shard, documents)
                facts = {"name": name, "corpus": number, "language": corpus.language or "", "last": last}
                facts |= shard.finish()
                if last:  # each pass reads the corpus from its beginning, so these are all of them
                    facts |= {"skipped": corpus.problems.count, "problems": corpus.problems.first}
                write_json(temporary / "shard.json", facts)
            self.shards.append(facts)
            self._report()

    def _fill(self, shard: ShardWriter, documents: Iterator[tuple[Document, Tokenised]]) -> bool:
        """Add documents until the shard is full; return whether there are no more of them."""
        reported = 0
        for document, tokens in documents:
            shard.add(document, tokens)
            if shard.num_tokens >= reported + REPORT_EVERY:
                reported = shard.num_tokens
                self._report(shard.documents, shard.num_tokens)
            if shard.num_tokens >= self.config["shard_tokens"]:
                return False
        return True

    def _report(self, documents: int = 0, tokens: int = 0) -> None:
        """Report the documents and tokens of all finished shards and of the current one."""
        if self.progress is not None:
            documents += sum(shard["documents"] for shard in self.shards)
            tokens += sum(sum(shard["tokens"].values()) for shard in self.shards)
            self.progress(documents, tokens)

    def _index(self) -> dict[str, Any]:
        languages: dict[str, dict[str, int]] = {}
        for shard in self.shards:
            totals = languages.setdefault(shard["language"], {"documents": 0, "rows": 0, "tokens": 0})
            totals["documents"] += shard["documents"]
            totals["rows"] += sum(shard["rows"].values())
            totals["tokens"] += sum(shard["tokens"].values())
        skipped = sum(shard.get("skipped", 0) for shard in self.shards)
        dtype = token_dtype(self.config).name
        return {**self.config, "dtype": dtype, "languages": languages, "skipped": skipped, "shards": self.shards}


def _finished_shards(folder: Path) -> list[dict[str, Any]]:
    """Return the finished shards; remove those after one that is missing, to write them again."""
    there = sorted(folder.glob("shard-*"))
    whole = [path for number, path in enumerate(there) if path.name == f"shard-{number:05d}"]
    for path in there[len(whole) :]:
        shutil.rmtree(path)
    shards = [read_json(path / "shard.json") for path in whole]
    for shard in shards:
        check_files(folder, shard, verify=False)
    return shards


def token_dtype(config: dict[str, Any]) -> np.dtype[Any]:
    return np.dtype("uint16" if config["tokenizer"]["vocab_size"] <= 1 << 16 else "uint32")


class DocumentTokenizer:
    """Turns documents into token ids, sentence by sentence.

    The names of special tokens in a text are ordinary text: "[MASK]" becomes the pieces of that word, or unknown.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, facts: dict[str, Any]) -> None:
        self._backend = plain_backend(tokenizer)
        self._unknown = facts["specials"]["unk"]
        self._special = frozenset(facts["special_ids"]) - {self._unknown}
        self._stops = frozenset(id for token, id in tokenizer.get_vocab().items() if token[-1:] in WIDE_STOPS)

    def documents(self, documents: Iterable[Document]) -> Iterator[tuple[Document, Tokenised]]:
        """Yield each document with its tokens; many are tokenised at once."""
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
        split = "validation" if hash_share("\n".join(document)) < self._config["validation"] else "train"
        self.documents += 1
        if self._config["packed"]:
            self._write(split, self._packed[split].add(tokens))
        else:
            texts = whole_sentences(tokens, self._config["max_length"] - 2)
            self._write(split, ([self._cls, *text, self._sep] for text in texts))

    def finish(self) -> dict[str, Any]:
        """Write the remaining rows; return the record of the shard and its files."""
        for split, file in self._files.items():
            self._write(split, self._packed[split].flush())
            file.close()
            (self._folder / f"{split}.starts").write_bytes(self._starts[split].tobytes())
        paths = sorted(self._folder.iterdir())
        return {
            "documents": self.documents,
            "rows": {split: len(starts) - 1 for split, starts in self._starts.items()},
            "tokens": {split: starts[-1] for split, starts in self._starts.items()},
            "files": {path.name: {"bytes": path.stat().st_size, "sha256": file_checksum(path)} for path in paths},
        }

    def _write(self, split: str, rows: Iterable[list[int]]) -> None:
        starts = self._starts[split]
        for row in rows:
            self._files[split].write(np.array(row, dtype=self._dtype).tobytes())
            starts.append(starts[-1] + len(row))
