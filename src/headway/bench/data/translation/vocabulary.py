"""One vocabulary for both languages, trained with the `tokenizers` library, in the format of transformers.

It is shared so that source and target can share their embeddings (Vaswani et al. 2017, Sec. 3.4). A text becomes its
pieces and an end token, [SEP]; the decoder begins with [CLS]. The same text gives the same vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from headway.bench.data.language.language import require_int
from headway.bench.data.mlm.shards import plain_backend
from headway.bench.data.text.corpora import Corpus, Document
from headway.bench.data.text.tokenizers import CLS, PAD, SEP, SPECIALS, UNK, train_tokenizer
from headway.bench.data.translation.cleaning import Cleaner, Rules
from headway.bench.data.translation.parallel import ParallelText
from headway.storage import atomic_path

KINDS = ("bpe", "unigram", "word")
VOCAB_SIZE = 32_768  # Shaw et al. (2018), Sec. 4.1


def train_vocabulary(
    text: ParallelText, kind: str = "bpe", vocab_size: int = VOCAB_SIZE, out: str | Path | None = None
) -> PreTrainedTokenizerFast:
    """Train a tokenizer on both sides of a text; `AutoTokenizer.from_pretrained(out)` loads it.

    Args:
        kind: "bpe", byte-pair encoding over bytes, which encodes any text and gives it back unchanged; "unigram", which
            normalises by NFKC; "word", all words between white space, for the built-in language.
        vocab_size: maximum number of tokens, special tokens included; fewer if the text gives fewer.
        out: a new folder to save it in.
    """
    if kind not in KINDS:
        raise ValueError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r}.")
    require_int("vocab_size", vocab_size, len(SPECIALS) + 2)
    if kind == "bpe":
        backend = _bpe(text, vocab_size)
    else:
        sides = [
            _Side(source=f"{text.source} ({side})", text=text, side=number)
            for number, side in enumerate(("source", "target"))
        ]
        backend = _of_corpora(sides, kind, vocab_size)
    tokenizer = _finished(backend)
    if out is not None:
        with atomic_path(out) as folder:
            tokenizer.save_pretrained(folder)
    return tokenizer


class Pieces:
    """Encodes text as token ids without special tokens, and decodes them.

    The names of special tokens in a text are ordinary text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        lacking = [name for name in ("pad", "bos", "eos") if getattr(tokenizer, f"{name}_token_id", None) is None]
        if lacking or not getattr(tokenizer, "is_fast", False):
            raise ValueError(
                f"tokenizer: expected a fast one with pad, bos and eos tokens, got "
                f"{'one without ' + ', '.join(lacking) if lacking else type(tokenizer).__name__}. "
                f"Train one with headway.bench.data.translation.vocabulary.train_vocabulary."
            )
        self._backend = plain_backend(tokenizer)
        self.pad, self.bos, self.eos = tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id
        self._unknown = tokenizer.unk_token_id
        self._special = frozenset(tokenizer.all_special_ids) - {self._unknown}

    def encode(self, texts: list[str]) -> list[list[int]]:
        return [self._plain(each.ids) for each in self._backend.encode_batch_fast(texts, add_special_tokens=False)]

    def decode(self, tokens: list[int]) -> str:
        """Return the text of tokens as one line."""
        return " ".join(self._backend.decode(tokens, skip_special_tokens=True).split())

    def _plain(self, ids: list[int]) -> list[int]:
        if self._special.isdisjoint(ids):
            return ids
        return [self._unknown if token in self._special else token for token in ids]


def _bpe(text: ParallelText, size: int) -> Tokenizer:
    """Train byte-pair encoding, Sennrich et al. (2016), over the bytes of words with the space before them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = _one_space()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),  # all bytes, in an order of ours
        show_progress=False,
    )
    least = len(SPECIALS) + len(pre_tokenizers.ByteLevel.alphabet())
    if size < least:
        raise ValueError(f"vocab_size: expected at least {least}, special tokens and all bytes, got {size}.")
    tokenizer.train_from_iterator((side for pair in _usable(text) for side in pair), trainer)
    return tokenizer


def _of_corpora(sides: list[_Side], kind: str, size: int) -> Tokenizer:
    """Train unigram or word as in pretraining, without smoothing: both languages have the same sentences."""
    try:
        trained = train_tokenizer(sides, kind, size, smoothing=1.0)
    except ValueError as error:
        most = re.match(r"vocab_size: expected at most (\d+)", str(error))
        if most is None:
            raise
        trained = train_tokenizer(sides, kind, int(most[1]), smoothing=1.0)
    backend: Tokenizer = trained.backend_tokenizer
    return backend


@dataclass(frozen=True, kw_only=True, eq=False)
class _Side(Corpus):
    """One language of a parallel text, as a corpus of one-line documents."""

    text: ParallelText
    side: int

    def __iter__(self) -> Iterator[Document]:
        return ([pair[self.side]] for pair in _usable(self.text))

    @property
    def vocabulary(self) -> tuple[str, ...]:
        return self.text.vocabularies[self.side]


def _usable(text: ParallelText) -> Iterator[tuple[str, str]]:
    """Return the pairs whose text meets the rules."""
    cleaner = Cleaner(Rules())
    return ((pair.source, pair.target) for pair in text if cleaner.keeps_text(pair))


def _one_space() -> normalizers.Normalizer:
    return normalizers.Sequence([normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()])


def _finished(backend: Tokenizer) -> PreTrainedTokenizerFast:
    end: list[Any] = [(SEP, backend.token_to_id(SEP))]
    backend.post_processor = processors.TemplateProcessing(single=f"$A {SEP}", special_tokens=end)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        unk_token=UNK,
        bos_token=CLS,
        eos_token=SEP,
        model_input_names=["input_ids", "attention_mask"],
    )
