"""A shared vocabulary, tokenised pairs on disk, and batches made of them."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from transformers import AutoTokenizer

from headway.bench.data.translation.batches import DevBatches, TranslationBatches, cut_batches, padded_widths
from headway.bench.data.translation.cleaning import Rules
from headway.bench.data.translation.pairs import EncodedPairs, build_pairs
from headway.bench.data.translation.parallel import open_parallel
from headway.bench.data.translation.vocabulary import Pieces, train_vocabulary

TEXT = [
    ("The übergroße  dog's name is [SEP] 3.14 ☃", "Der Name des Hundes ist [PAD] …"),
    ("Two dogs run.", "Zwei Hunde laufen."),
    ("Two dogs run and run and run.", "Zwei Hunde laufen und laufen."),
] * 8


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "pairs.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in TEXT))
    return str(path)


@pytest.fixture(scope="module")
def language():
    return open_parallel("builtin:400", split="train")


@pytest.fixture(scope="module")
def words(language):
    return train_vocabulary(language, "word")


@pytest.fixture(scope="module")
def pairs(language, words, tmp_path_factory):
    return build_pairs(language, words, tmp_path_factory.mktemp("pairs") / "train", rules=Rules())


# The vocabulary.


@pytest.mark.parametrize(("kind", "size"), [("bpe", 300), ("unigram", 60), ("word", 1000)])
def test_saved_and_loaded_by_transformers_and_text_comes_back(table, tmp_path, kind, size):
    made = train_vocabulary(open_parallel(table), kind, size, tmp_path / "tokenizer")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    assert len(loaded) <= size
    assert (loaded.pad_token, loaded.unk_token, loaded.bos_token, loaded.eos_token) == (
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
    )
    assert loaded("Two dogs")["input_ids"] == made("Two dogs")["input_ids"]
    assert loaded("Two dogs")["input_ids"][-1] == loaded.eos_token_id
    assert "token_type_ids" not in loaded("Two dogs")
    pieces = Pieces(loaded)
    tokens = pieces.encode(["Two  dogs run."])[0]
    assert pieces.decode(tokens) == "Two dogs run."


def test_bytes_leave_nothing_unknown_and_special_names_in_a_text_are_text(table):
    pieces = Pieces(train_vocabulary(open_parallel(table), "bpe", 300))
    for text in (TEXT[0][0], "漢字 \u00a0 наш [CLS] text", "a\tb"):
        tokens = pieces.encode([text])[0]
        assert pieces.decode(tokens) == " ".join(text.split())
        assert not {0, 1, 2, 3, 4} & set(tokens)


def test_a_word_vocabulary_holds_all_words_of_the_builtin_language(language, words):
    both = set(language.vocabularies[0]) | set(language.vocabularies[1])
    assert both == set(words.get_vocab()) - {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}


def test_the_same_text_gives_the_same_vocabulary_in_every_process(table, tmp_path):
    code = (
        "import sys; from headway.bench.data.translation.parallel import open_parallel\n"
        "from headway.bench.data.translation.vocabulary import train_vocabulary\n"
        "for kind, size in (('bpe', 290), ('unigram', 60)):\n"
        "    train_vocabulary(open_parallel(sys.argv[1]), kind, size, f'{sys.argv[2]}/{kind}')"
    )
    for name in ("one", "two"):
        subprocess.run([sys.executable, "-c", code, table, tmp_path / name], check=True)
    for kind in ("bpe", "unigram"):
        one, two = ((tmp_path / name / kind / "tokenizer.json").read_text() for name in ("one", "two"))
        assert one == two


@pytest.mark.parametrize(
    ("kind", "size", "message"),
    [
        ("wordpiece", 100, "kind: expected one of bpe, unigram, word, got 'wordpiece'"),
        ("bpe", 100, "vocab_size: expected at least 261, special tokens and all bytes, got 100"),
    ],
)
def test_bad_vocabularies(table, kind, size, message):
    with pytest.raises(ValueError, match=message):
        train_vocabulary(open_parallel(table), kind, size)


# Pairs on disk.


def test_pairs_are_the_tokens_of_the_text(language, words, pairs):
    pieces = Pieces(words)
    text = list(language)
    assert len(pairs) == len(text) == 400
    for number in (0, 7, 399):
        source, target = pairs[number]
        assert pieces.decode(source.tolist()) == text[number].source
        assert pieces.decode(target.tolist()) == text[number].target
        assert pairs.lengths[:, number].tolist() == [len(source) + 1, len(target) + 1]


def test_what_is_left_out_is_counted_in_the_index(table, tmp_path):
    path = tmp_path / "bad.tsv"
    path.write_text(
        "".join(f"{a}\t{b}\n" for a, b in TEXT) + "no pair\n\tleer\nlost \ufffd\tverloren\n" + "long " * 90 + "\tlang\n"
    )
    text = open_parallel(str(path), on_error="skip")
    tokenizer = train_vocabulary(open_parallel(table), "bpe", 300)
    made = build_pairs(text, tokenizer, tmp_path / "pairs", rules=Rules(max_tokens=80))
    assert made.index["left_out"] == {"empty": 1, "lost characters": 1, "too long": 1, "not readable": 1}
    assert made.index["read"] == len(TEXT) + 4
    assert len(made) == len(TEXT)
    assert "line 25: expected 2 columns with tabs" in made.index["problems"][0]
    with pytest.raises(ValueError, match=r"line 26: .*empty source"):
        build_pairs(text, tokenizer, tmp_path / "strict", rules=Rules(strict=True))
    assert not (tmp_path / "strict").exists(), "whole or not at all"
    assert not list(tmp_path.glob(".*"))


def test_a_text_without_a_usable_pair(tmp_path, words):
    (tmp_path / "a.tsv").write_text("\tb\n" * 3)
    with pytest.raises(ValueError, match=r"source: no pair of .*a\.tsv can be used: 3 empty"):
        build_pairs(open_parallel(str(tmp_path / "a.tsv")), words, tmp_path / "pairs", rules=Rules())


def test_opened_again_only_for_the_same_text_rules_and_tokenizer(language, words, pairs, table, tmp_path):
    before = (pairs.folder / "index.json").stat().st_mtime_ns
    assert len(build_pairs(language, words, pairs.folder, rules=Rules())) == 400
    assert (pairs.folder / "index.json").stat().st_mtime_ns == before
    with pytest.raises(FileExistsError, match="expected a new folder or one of the same pairs"):
        build_pairs(language, words, pairs.folder, rules=Rules(max_tokens=99))
    other = train_vocabulary(open_parallel(table), "word")
    with pytest.raises(ValueError, match=r"tokenizer: expected the one the pairs in .* were made with"):
        EncodedPairs(pairs.folder, other)


def test_a_file_that_was_cut_off_is_named(language, words, tmp_path):
    build_pairs(language, words, tmp_path / "pairs", rules=Rules())
    tokens = tmp_path / "pairs" / "source.tokens"
    tokens.write_bytes(tokens.read_bytes()[:-2])
    with pytest.raises(ValueError, match=r"source\.tokens: expected \d+ bytes, got another file"):
        EncodedPairs(tmp_path / "pairs", words)
    index = json.loads((tmp_path / "pairs" / "index.json").read_text())
    (tmp_path / "pairs" / "index.json").write_text(json.dumps({**index, "format": 99}))
    with pytest.raises(ValueError, match="expected format 1, got 99"):
        EncodedPairs(tmp_path / "pairs", words)


# Batches.


def test_a_batch_is_its_pairs_with_begin_end_and_padding(pairs):
    batches = TranslationBatches(pairs, tokens=256, step_tokens=500, seed=0)
    batch, rows = batches.batch(3), batches.rows(3)
    assert batch["input_ids"].shape[0] == len(rows) > 1
    for row, number in enumerate(rows):
        source, target = (side.tolist() for side in pairs[int(number)])
        used = int(batch["attention_mask"][row].sum())
        assert batch["input_ids"][row].tolist() == [*source, 3] + [0] * (batch["input_ids"].shape[1] - len(source) - 1)
        assert used == len(source) + 1
        assert batch["decoder_input_ids"][row, : len(target) + 1].tolist() == [2, *target]
        labels = batch["labels"][row].tolist()
        assert labels == [*target, 3] + [-100] * (len(labels) - len(target) - 1)


def test_a_step_has_about_the_tokens_that_were_asked_for(pairs):
    batches = TranslationBatches(pairs, tokens=256, step_tokens=700, seed=0)
    steps = [sum(int((part["labels"] != -100).sum()) for part in batches.parts(step)) for step in range(40)]
    assert np.mean(steps) == pytest.approx(700, rel=0.25)
    both = [sum(int(p["attention_mask"].sum()) for p in batches.parts(step)) for step in range(40)]
    assert np.mean(steps) + np.mean(both) == pytest.approx(batches.tokens_per_step, rel=0.05)


def test_another_seed_or_epoch_is_another_order(pairs):
    one, same, other = (TranslationBatches(pairs, tokens=256, step_tokens=1, seed=seed) for seed in (0, 0, 1))
    assert [one.rows(n).tolist() for n in range(9)] == [same.rows(n).tolist() for n in range(9)]
    assert [one.rows(n).tolist() for n in range(9)] != [other.rows(n).tolist() for n in range(9)]
    epochs = [{tuple(sorted(one.rows(n + e * one.batches).tolist())) for n in range(one.batches)} for e in (0, 1)]
    assert len(epochs[0] & epochs[1]) < one.batches / 2, "most batches have other pairs in another epoch"
    assert one.rows(2).tolist() == same.rows(2).tolist(), "going back an epoch gives the same"


def test_dev_batches_have_each_pair_once(pairs):
    whole = [batch["labels"] for batch in DevBatches(pairs, tokens=512).parts()]
    assert sum(int((labels != -100).sum()) for labels in whole) == pairs.lengths[1].sum()
    shared = [DevBatches(pairs, tokens=512).parts(rank, 3) for rank in range(3)]
    assert len({len(parts) for parts in shared}) == 1
    assert sum(int((b["labels"] != -100).sum()) for parts in shared for b in parts) == pairs.lengths[1].sum()


def test_padding_is_small_and_shapes_are_few():
    assert padded_widths(np.array([1, 8, 9, 64, 65, 80, 81, 128, 129, 256])).tolist() == [
        8,
        8,
        16,
        64,
        80,
        80,
        96,
        128,
        160,
        256,
    ]
    assert len(set(padded_widths(np.arange(1, 257)).tolist())) == 16


def test_a_budget_below_the_longest_sequence():
    with pytest.raises(ValueError, match=r"tokens: expected at least 112, .*got 100\. Raise --tokens"):
        cut_batches(np.array([[3, 101], [4, 5]]), 100)
