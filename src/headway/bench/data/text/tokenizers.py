"""Tokenizers trained on corpora with the `tokenizers` library, in the format of transformers.

The same text gives the same tokenizer. The library alone does not promise this: it breaks ties in the order of a hash
table that differs from run to run, so what could depend on it is fixed before training (WordPiece's single characters)
or put in order after it (Unigram's scores).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from headway.bench.data.language.language import require_int
from headway.bench.data.text.corpora import Corpus, Source, open_corpora
from headway.bench.data.text.sampling import ALPHA, Census, take_census
from headway.storage import atomic_path

PAD, UNK, CLS, SEP, MASK = SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
EVERY_WORD = 1 << 62
VOCAB_SIZES = {"wordpiece": 30_522, "unigram": 120_000, "word": EVERY_WORD}
# Training keeps every distinct word in memory; Unigram needs some 300 bytes for each character of Chinese.
MAX_CHARACTERS = {"wordpiece": 1_000_000_000, "unigram": 50_000_000, "word": 1_000_000_000}
WORDPIECE_ALPHABET = 1000  # characters, about as many as BERT's uncased vocabulary has
UNIGRAM_COVERAGE = 0.9995  # of the text; the rare other characters are unknown, as in SentencePiece
SCORE_DIGITS = 4  # of Unigram's log probabilities; the eleventh differs from run to run
TAIL = "\uffff"  # no character
SCORE_STEP = 1e-4  # between the characters that Unigram's trainer adds last, in a hash table's order


def train_tokenizer(
    corpora: Source | Corpus | Sequence[Source | Corpus],
    kind: str = "wordpiece",
    vocab_size: int | None = None,
    out: Source | None = None,
    *,
    lowercase: bool | None = None,
    smoothing: float = ALPHA,
    max_characters: int | None = None,
) -> PreTrainedTokenizerFast:
    """Train a tokenizer on the corpora; `AutoTokenizer.from_pretrained(out)` loads it.

    [PAD] [UNK] [CLS] [SEP] [MASK] have the ids 0 to 4. A text becomes [CLS] a [SEP] and a pair [CLS] a [SEP] b [SEP],
    with token types 0 and, for b [SEP], 1.

    Args:
        corpora: sources or corpora; where they have several languages, these are drawn from with smoothing.
        kind: "wordpiece" as BERT's, "unigram" as SentencePiece's, or "word": all words between white space, for a
            small language such as the built-in one.
        vocab_size: special tokens included; 30,522 for wordpiece, 120,000 for unigram and every word for word.
        out: a new folder to save it in.
        lowercase: whether case is dropped, and by wordpiece accents too; True for wordpiece and False for the others.
        smoothing: exponent of the languages' sizes, see `headway.bench.data.text.sampling`.
        max_characters: of text to learn from, evenly thinned; 1e9, and 5e7 for unigram, which needs far more memory.
    """
    corpora = open_corpora(corpora)
    if kind not in VOCAB_SIZES:
        raise ValueError(f"kind: expected one of {', '.join(VOCAB_SIZES)}, got {kind!r}. Use one of those.")
    size = VOCAB_SIZES[kind] if vocab_size is None else vocab_size
    require_int("vocab_size", size, len(SPECIALS) + 2)
    if out is not None and Path(out).exists() and (Path(out).is_file() or any(Path(out).iterdir())):
        raise FileExistsError(f"out: expected a new folder, got {out}, which exists. Remove it or choose another.")
    most = MAX_CHARACTERS[kind] if max_characters is None else max_characters
    require_int("max_characters", most, 1)
    normalizer = _normalizer(kind, kind == "wordpiece" if lowercase is None else lowercase)
    census = take_census(corpora, normalizer, smoothing, most)
    train = {"wordpiece": _wordpiece, "unigram": _unigram, "word": _word}[kind]
    backend = train(corpora, normalizer, census, size)
    if size != EVERY_WORD and backend.get_vocab_size() < size:
        raise ValueError(
            f"vocab_size: expected at most {backend.get_vocab_size()}, all that this text gives, got {size}. "
            f"Lower it, or give more text."
        )
    tokenizer = _finished(backend, normalizer)
    if out is not None:
        with atomic_path(out) as folder:
            tokenizer.save_pretrained(folder)
    return tokenizer


def highest_id(tokenizer: Any) -> int:
    """Return the highest token id. A model needs one embedding more; some ids below it may have no token."""
    return int(max(tokenizer.get_vocab().values()))


def _normalizer(kind: str, lowercase: bool) -> normalizers.Normalizer:
    if kind == "wordpiece":
        return normalizers.BertNormalizer(lowercase=lowercase)
    lower = [normalizers.Lowercase()] if lowercase else []
    if kind == "word":
        return normalizers.Sequence(lower)
    one_space = normalizers.Replace(Regex(r"\s+"), " ")
    no_last_space = normalizers.Strip(left=False)  # before [MASK] too; a space after it says that a word begins
    return normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), *lower, one_space, no_last_space])


def _wordpiece(corpora: list[Corpus], normalizer: normalizers.Normalizer, census: Census, size: int) -> Tokenizer:
    """Train WordPiece, Wu et al. (2016) Sec. 4.1; the library joins the most frequent pair first."""
    tokenizer = Tokenizer(models.WordPiece(unk_token=UNK))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()
    alphabet, inner = _alphabet(census, tokenizer, size - len(SPECIALS))
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=[*SPECIALS, *inner],  # so their ids, by which ties are broken, come in our order
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(census.lines(corpora), trainer)
    finished = Tokenizer(models.WordPiece(tokenizer.get_vocab(), unk_token=UNK))
    finished.pre_tokenizer, finished.decoder = tokenizer.pre_tokenizer, decoders.WordPiece()
    return finished


def _alphabet(census: Census, tokenizer: Tokenizer, room: int) -> tuple[list[str], list[str]]:
    """Return the most frequent characters, and the pieces of those that can stand inside a word."""
    alphabet, inner = [], []
    for character in census.most_frequent(WORDPIECE_ALPHABET):
        word = tokenizer.normalizer.normalize_str(f"a{character}")
        stands_inside = len(tokenizer.pre_tokenizer.pre_tokenize_str(word)) == 1
        room -= 1 + stands_inside
        if room < 0:
            break
        alphabet.append(character)
        inner += [f"##{character}"] if stands_inside else []
    return sorted(alphabet), sorted(inner)


def _unigram(corpora: list[Corpus], normalizer: normalizers.Normalizer, census: Census, size: int) -> Tokenizer:
    """Train the unigram language model of Kudo (2018), Sec. 3.2; no piece crosses white space or punctuation."""
    alphabet = census.covering(UNIGRAM_COVERAGE)
    least = len(SPECIALS) + len(alphabet) + 1  # and the mark of white space
    if size < least:
        raise ValueError(
            f"vocab_size: expected at least {least}, to hold the {len(alphabet)} characters that make up "
            f"{UNIGRAM_COVERAGE:.2%} of the text, got {size}. Raise it."
        )
    rare = dict.fromkeys(map(ord, census.characters.keys() - set(alphabet)), " ")
    lines = (" ".join(normalizer.normalize_str(line).translate(rare).split()) for line in census.lines(corpora))
    metaspace = pre_tokenizers.Metaspace(prepend_scheme="first")
    words = pre_tokenizers.Sequence([metaspace, pre_tokenizers.Split(Regex(r"▁?\p{P}"), "isolated")])
    trainer = trainers.UnigramTrainer(
        vocab_size=size + len(TAIL), special_tokens=list(SPECIALS), unk_token=UNK, show_progress=False
    )
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.CharDelimiterSplit("\n")
    tokenizer.train_from_iterator(_with_tails(lines, words), trainer)
    scores = {piece: score for piece, score in json.loads(tokenizer.to_str())["model"]["vocab"]}
    finished = Tokenizer(models.Unigram(_in_order(scores)[:size], unk_id=SPECIALS.index(UNK)))
    finished.pre_tokenizer, finished.decoder = words, decoders.Metaspace(prepend_scheme="first")
    return finished


def _with_tails(lines: Iterable[str], words: pre_tokenizers.PreTokenizer) -> Iterator[str]:
    """Yield the words of each line; a word met for the first time comes once more, with a tail.

    The trainer's candidates for pieces are the strings that different characters follow, the end of a word being one.
    So a word of which no longer word exists would be no candidate. With the tail it is; strings that end in the tail
    are not, because only the end follows them.
    """
    known: set[str] = set()
    for line in lines:
        found = [word for word, _ in words.pre_tokenize_str(line)]
        new = set(found) - known
        known |= new
        yield "\n".join([*found, *(word + TAIL for word in sorted(new))])


def _in_order(scores: dict[str, float]) -> list[tuple[str, float]]:
    """Return the pieces with scores and in an order that do not depend on a hash table.

    Characters that no piece of the trained model contains come last in training and share out the lowest scores as they
    come; they share them out by code point here.
    """
    scores = {piece: score for piece, score in scores.items() if piece not in SPECIALS and TAIL[0] not in piece}
    single = [piece for piece in scores if len(piece) == 1]
    bound = min(scores.values()) + SCORE_STEP * len(single)
    lowest = sorted(piece for piece in single if scores[piece] < bound)
    scores |= dict(zip(lowest, sorted((scores[piece] for piece in lowest), reverse=True), strict=True))
    rounded = [(piece, round(score, SCORE_DIGITS)) for piece, score in scores.items()]
    return [*((special, 0.0) for special in SPECIALS), *sorted(rounded, key=lambda pair: (-pair[1], pair[0]))]


def _word(corpora: list[Corpus], normalizer: normalizers.Normalizer, census: Census, size: int) -> Tokenizer:
    counts = Counter(word for line in census.lines(corpora) for word in normalizer.normalize_str(line).split())
    counts.update(dict.fromkeys((word for corpus in corpora for word in corpus.vocabulary), 0))
    words = sorted(counts.keys() - set(SPECIALS), key=lambda word: (-counts[word], word))
    kept = [*SPECIALS, *words][:size]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(kept)}, unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def _finished(backend: Tokenizer, normalizer: normalizers.Normalizer) -> PreTrainedTokenizerFast:
    backend.normalizer = normalizer
    ids = [(special, backend.token_to_id(special)) for special in (CLS, SEP)]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{CLS}:0 $A:0 {SEP}:0", pair=f"{CLS}:0 $A:0 {SEP}:0 $B:1 {SEP}:1", special_tokens=ids
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        unk_token=UNK,
        cls_token=CLS,
        sep_token=SEP,
        mask_token=MASK,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )
