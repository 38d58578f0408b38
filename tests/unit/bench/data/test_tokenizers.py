"""Tokenizers: trained from a stream, the same each time, loaded by transformers."""

import json
import resource
import subprocess
import sys
from random import Random

import pytest
from transformers import AutoTokenizer

from headway.bench.data import Language, open_corpus, train_tokenizer
from headway.bench.data.mlm.packing import sentences
from headway.bench.data.text.sampling import quotas, repeated, smoothed_shares, take_census

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SOUNDS = [a + b for a in "bdfgklmnprst" for b in "aeiou"]


RNG = Random(0)
WORDS = ["".join(RNG.choices(SOUNDS, k=RNG.randint(2, 4))) for _ in range(900)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    lines = [" ".join(RNG.choices(WORDS, k=9)).capitalize() + ", (no) Ünd." for _ in range(600)]
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize(("kind", "size"), [("wordpiece", 300), ("unigram", 300), ("word", None)])
def test_saved_and_loaded_by_transformers(corpus, tmp_path, kind, size):
    made = train_tokenizer(corpus, kind, size, tmp_path / "tokenizer")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    assert len(loaded) == len(made) == (size or len(made))
    assert loaded.convert_ids_to_tokens(range(5)) == SPECIALS
    assert [loaded.pad_token, loaded.unk_token, loaded.cls_token, loaded.sep_token, loaded.mask_token] == SPECIALS
    text = " ".join(WORDS[:6])
    pair = loaded(text, WORDS[6])
    assert pair == made(text, WORDS[6])
    first = len(loaded(text)["input_ids"])
    assert pair["token_type_ids"] == [0] * first + [1] * (len(pair["input_ids"]) - first)
    assert loaded.decode(loaded(text)["input_ids"], skip_special_tokens=True) == text
    assert loaded.unk_token_id not in pair["input_ids"]
    with pytest.raises(FileExistsError, match="out: expected a new folder"):
        train_tokenizer(corpus, kind, size, tmp_path / "tokenizer")


def test_a_full_disk_is_an_error_of_the_disk(corpus, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # bytes; Python ignores the signal
    try:
        with pytest.raises(OSError, match=r"File too large: .*tokenizer"):
            train_tokenizer(corpus, "wordpiece", 300, tmp_path / "tokenizer")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


def test_wordpiece_cuts_as_bert_does(corpus):
    lower = train_tokenizer(corpus, vocab_size=300)
    assert lower.tokenize("BABASA") == lower.tokenize("babasa")
    assert all(token.startswith("##") for token in lower.tokenize("babasazulu")[1:])
    assert lower.tokenize("Ünd, (no)") == [*lower.tokenize("und"), ",", "(", *lower.tokenize("no"), ")"]
    assert lower.tokenize("☃") == ["[UNK]"]
    cased = train_tokenizer(corpus, vocab_size=300, lowercase=False)
    assert cased.tokenize("Ünd") != cased.tokenize("und")
    letters = {token.removeprefix("##") for token in lower.get_vocab()} - set(SPECIALS)
    assert not any(token != token.lower() for token in letters)
    assert not {"##,", "##("} & set(lower.get_vocab()), "punctuation stands alone, so it is never inside a word"


def test_unigram_marks_where_words_begin(corpus):
    tokenizer = train_tokenizer(corpus, "unigram", 300)
    assert "".join(tokenizer.tokenize("  bababa   didi, (no) ")) == "▁bababa▁didi,▁(no)"
    pieces = tokenizer.tokenize("ba[MASK], [MASK] no")
    assert "".join(pieces) == "▁ba[MASK],[MASK]▁no"
    assert tokenizer.tokenize("ﬁ") == tokenizer.tokenize("fi"), "NFKC"
    assert not any("▁" in piece[1:] for piece in tokenizer.get_vocab())
    # Frequent words are pieces, also those that no longer word begins with, and nothing is left of how that is done.
    assert {"▁Ünd", "▁(", "no"} <= set(tokenizer.get_vocab())
    assert "\uffff" not in "".join(tokenizer.get_vocab())


def test_the_same_text_gives_the_same_tokenizer_in_every_process(corpus):
    # Hash tables of the library are seeded anew in each process, so one process would prove nothing.
    code = """
import sys
from headway.bench.data import train_tokenizer
for kind, size in (("wordpiece", 280), ("unigram", 260)):
    print(train_tokenizer(sys.argv[1], kind, size).backend_tokenizer.to_str())
"""
    command = [sys.executable, "-c", code, str(corpus)]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(3)]
    assert runs[0] == runs[1] == runs[2]


def test_the_word_tokenizer_knows_the_whole_built_in_language():
    tokenizer = train_tokenizer("builtin:10", "word")
    assert set(tokenizer.get_vocab()) == {*SPECIALS, *Language().vocabulary}
    sentence = next(Language().sentences(1))
    assert tokenizer.tokenize(sentence.text) == list(sentence.words)
    assert len(train_tokenizer("builtin:100", "word", 20)) == 20


def test_what_the_text_does_not_allow_is_refused(tmp_path, corpus):
    for kind in ("wordpiece", "unigram", "word"):
        with pytest.raises(ValueError, match=r"vocab_size: expected at most \d+, all that this text gives, got 50000"):
            train_tokenizer(corpus, kind, 50_000)
    with pytest.raises(ValueError, match=r"vocab_size: expected at least 40, to hold the 34 characters .* got 12"):
        train_tokenizer(corpus, "unigram", 12)
    with pytest.raises(ValueError, match="vocab_size: expected an integer of at least 7, got 3"):
        train_tokenizer(corpus, "wordpiece", 3)
    with pytest.raises(ValueError, match="kind: expected one of wordpiece, unigram, word, got 'bpe'"):
        train_tokenizer(corpus, "bpe")
    with pytest.raises(ValueError, match="smoothing: expected an exponent from 0"):
        train_tokenizer(corpus, "wordpiece", 100, smoothing=2.0)
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    with pytest.raises(ValueError, match=r"empty\.txt: expected text, got an empty file"):
        train_tokenizer(empty, "wordpiece", 100)
    with pytest.raises(ValueError, match="corpora: there is no text in"):
        train_tokenizer(open_corpus(empty, on_error="skip"), "wordpiece", 100)


def test_shares_of_languages():
    sizes = {"en": 1_000_000, "sw": 10_000}
    assert smoothed_shares(sizes, 1.0) == pytest.approx({"en": 100 / 101, "sw": 1 / 101})
    assert smoothed_shares(sizes, 0.0) == pytest.approx({"en": 0.5, "sw": 0.5})
    assert smoothed_shares(sizes, 0.5) == pytest.approx({"en": 10 / 11, "sw": 1 / 11})
    assert quotas({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}, 10) == {"a": 4, "b": 3, "c": 3}
    assert quotas({"a": 0.999, "b": 0.001}, 7) == {"a": 7, "b": 0}


@pytest.mark.parametrize(
    ("rate", "taken"), [(1, "abcdef"), (2, "aabbccddeeff"), (0.5, "bdf"), (1.5, "abbcddeff"), (0, "")]
)
def test_items_are_taken_at_a_rate(rate, taken):
    assert "".join(repeated("abcdef", rate)) == taken


@pytest.mark.parametrize("between", ["\n\n", "\n"])  # many documents, or one
def test_small_languages_are_drawn_more_often_and_all_text_is_bounded(tmp_path, between):
    (tmp_path / "large.txt").write_text(between.join(["aaaa"] * 10_000))
    (tmp_path / "small.txt").write_text(between.join(["bbbb"] * 100))
    corpora = [open_corpus(tmp_path / f"{name}.txt", language=name) for name in ("large", "small")]
    normalizer = train_tokenizer("builtin:5", "word").backend_tokenizer.normalizer
    census = take_census(corpora, normalizer, 0.5, 10**9)
    lines = list(census.lines(corpora))
    assert lines.count("bbbb") / len(lines) == pytest.approx(1 / 11, rel=1e-3)
    assert len(lines) == pytest.approx(10_100, abs=2)
    assert census.characters == pytest.approx({"a": 40_400 * 10 / 11, "b": 40_400 / 11})
    thin = list(take_census(corpora, normalizer, 0.5, 4_040).lines(corpora))
    assert len(thin) == pytest.approx(1_010, abs=2)
    assert thin.count("bbbb") / len(thin) == pytest.approx(1 / 11, rel=0.02)


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_sentences_alone_are_cut_as_in_their_line(corpus, kind):
    tokenizer = train_tokenizer(corpus, kind, 300)
    line = 'Ba da. "Di do!"  Du e.g. no? (Ka. Ki.) La… Li'
    cut = list(sentences(line))
    assert cut == ["Ba da.", '"Di do!"', "Du e.g. no?", "(Ka.", "Ki.)", "La…", "Li"]
    assert [token for sentence in cut for token in tokenizer.tokenize(sentence)] == tokenizer.tokenize(line)


def test_unigram_scores_are_log_probabilities_in_order(corpus):
    model = json.loads(train_tokenizer(corpus, "unigram", 300).backend_tokenizer.to_str())["model"]
    scores = [score for _, score in model["vocab"][5:]]
    assert scores == sorted(scores, reverse=True)
    assert all(score < 0 and round(score, 4) == score for score in scores)
    assert model["vocab"][model["unk_id"]][0] == "[UNK]"
