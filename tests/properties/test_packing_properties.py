"""Packing, order and masking, whatever the text: nothing lost, nothing twice, nothing mixed."""

import json
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.bench.data import Shards, build_shards, open_corpus, train_tokenizer
from headway.bench.data.mlm.batches import IGNORED, WordMasking
from headway.bench.data.mlm.order import RowOrder, permute
from headway.bench.data.mlm.packing import SHORTEST_START, FullRows, sentences, whole_sentences
from headway.bench.data.text.sampling import quotas, smoothed_shares

LAWS = settings(max_examples=60)
DISK = settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
CLS, SEP = 2, 3

tokens = st.lists(st.integers(10, 99), min_size=1, max_size=30)
document = st.lists(tokens, min_size=1, max_size=8)
texts = st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=60)


@LAWS
@given(document, st.integers(1, 40))
def test_texts_are_whole_sentences_of_a_document_in_order(sentence_tokens, room):
    made = list(whole_sentences(sentence_tokens, room))
    flat = [token for sentence in sentence_tokens for token in sentence]
    assert [token for text in made for token in text] == flat
    assert all(0 < len(text) <= room for text in made)
    ends = set(np.cumsum([len(sentence) for sentence in sentence_tokens]).tolist())
    starts = np.cumsum([0, *map(len, made)]).tolist()
    longest = {}  # for each place, how long the sentence around it is
    for sentence, end in zip(sentence_tokens, sorted(ends), strict=True):
        longest |= dict.fromkeys(range(end - len(sentence), end), len(sentence))
    for start, end in pairwise(starts):
        if end != len(flat) and end not in ends:
            assert longest[end] > room, "only a sentence that fits into no text is cut"
            assert end - start == room, "and only where the text is full"
        if end in ends and end != len(flat) and longest[end] <= room:
            assert end - start + longest[end] > room, "a text ends only where the next sentence does not fit"


@LAWS
@given(st.lists(document, min_size=1, max_size=6), st.integers(3, 40))
def test_full_rows_hold_every_token_once_and_never_mix_documents(documents, length):
    packer = FullRows(length, CLS, SEP)
    # Tokens that say which document they are from.
    labelled = [
        [[100 * number + token for token in sentence] for sentence in each]
        for number, each in enumerate(documents, start=1)
    ]
    rows = [row for each in labelled for row in packer.add(each)] + list(packer.flush())
    assert all(len(row) <= length for row in rows)
    assert all(length - len(row) < 2 + SHORTEST_START for row in rows[:-1]), "rows but the last are full"
    found = []
    for row in rows:
        assert row[0] == CLS and row[-1] == SEP
        begins = [place for place, token in enumerate(row) if token == CLS]
        for begin, end in pairwise([*begins, len(row)]):
            inner = row[begin + 1 : end - 1]
            assert row[end - 1] == SEP and inner and SEP not in inner
            assert len({token // 100 for token in inner}) == 1, "a text is of one document"
            found += inner
    assert found == [token for each in labelled for sentence in each for token in sentence]


@LAWS
@given(texts)
def test_sentences_keep_every_character_but_white_space(line):
    cut = list(sentences(line.strip()))
    assert "".join("".join(cut).split()) == "".join(line.split())
    assert all(cut)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer("builtin:50", "word")


words = st.sampled_from(["the", "cat", "dogs", ".", "unknown.", "Word!", "[CLS]", "[SEP]", "[MASK]", "[PAD]", "。"])
lines = st.lists(words, min_size=1, max_size=12).map(" ".join)


@DISK
@given(
    st.lists(st.lists(lines, min_size=1, max_size=4), min_size=1, max_size=5, unique_by="\n".join),
    st.integers(3, 30),
    st.booleans(),
    st.integers(30, 300),
    st.sampled_from([0.0, 0.4]),
)
def test_shards_hold_every_token_of_every_document_once(
    tokenizer, documents, max_length, packed, shard_tokens, validation
):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "text.jsonl"
        path.write_text("".join(json.dumps({"text": "\n".join(document)}) + "\n" for document in documents))
        # With eight more documents both splits can be opened.
        options = {"max_length": max_length, "packed": packed, "shard_tokens": shard_tokens, "validation": validation}
        build_shards([path, "builtin:40"], tokenizer, Path(folder) / "shards", **options)
        kept = {}
        for split in ("train", "validation") if validation else ("train",):
            shards = Shards(Path(folder) / "shards", split, tokenizer=tokenizer, verify=True)
            kept[split] = []
            for row, ids in (shards[number] for number in range(len(shards))):
                assert len(row) == len(ids) <= max_length
                assert packed or not ids.any(), "without packing a row is one text"
                assert ids[0] == 0 and (np.diff(ids) == (row[1:] == CLS)).all()
                kept[split] += [token for token in row.tolist() if token not in (CLS, SEP)]
    known = {**tokenizer.get_vocab(), **dict.fromkeys(["[PAD]", "[CLS]", "[SEP]", "[MASK]"], 1)}
    all_documents = [*documents, *open_corpus("builtin:40")]
    expected = [[known.get(word, 1) for line in each for word in line.split()] for each in all_documents]
    if validation:
        assert sorted(kept["train"] + kept["validation"]) == sorted(token for each in expected for token in each)
        assert _interleave(kept["train"], kept["validation"], expected)
    else:
        assert kept["train"] == [token for each in expected for token in each]


def _interleave(first, second, documents):
    """Whether two streams hold whole documents, in order."""
    states = {(0, 0)}
    for each in documents:
        after = set()
        for a, b in states:
            after |= {(a + len(each), b)} if first[a : a + len(each)] == each else set()
            after |= {(a, b + len(each))} if second[b : b + len(each)] == each else set()
        states = after
    return (len(first), len(second)) in states


@LAWS
@given(st.integers(1, 3000), st.integers(0, 2**64 - 1))
def test_a_permutation_is_one(size, key):
    index = np.arange(size, dtype=np.uint64)
    assert sorted(permute(index, size, np.full(size, key, dtype=np.uint64)).tolist()) == list(range(size))


@LAWS
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 40)), min_size=1, max_size=6),
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.3, 0.7, 1.0]),
)
def test_epochs_draw_each_language_its_share_and_each_row_in_turn(parts, seed, smoothing):
    ranges, start = {}, 0
    for name, size in parts:
        ranges.setdefault(name, []).append((start, start + size))
        start += size
    order = RowOrder(ranges, seed=seed, smoothing=smoothing)
    epochs = 4
    drawn = order[np.arange(epochs * start)]
    sizes = {name: sum(end - begin for begin, end in each) for name, each in ranges.items()}
    counts = quotas(smoothed_shares(sizes, smoothing), start)
    for name, each in ranges.items():
        rows = [row for begin, end in each for row in range(begin, end)]
        times = np.array([(drawn == row).sum() for row in rows])
        assert times.sum() == epochs * counts[name]
        assert times.max() - times.min() <= 1
    if len(ranges) == 1:
        assert sorted(drawn[:start].tolist()) == list(range(start))
    shuffled = np.random.default_rng(seed).permutation(epochs * start)
    assert (order[shuffled] == drawn[shuffled]).all(), "a place gives its row, whatever was asked before"


@LAWS
@given(
    st.lists(st.integers(1, 38), min_size=1, max_size=8),
    st.floats(0.01, 0.6),
    st.integers(0, 2**63),
    st.integers(0, 1000),
)
def test_masking_chooses_an_exact_share_and_never_specials(lengths, probability, seed, step):
    length = 40
    masking = WordMasking(length=length, probability=probability, vocab_size=60, special_ids=[0, 1, 2, 3, 4], mask_id=4)
    rows = np.zeros((len(lengths), length), dtype=np.int64)
    for row, inner in zip(rows, lengths, strict=True):
        row[0], row[1 : 1 + inner], row[1 + inner] = CLS, np.arange(5, 5 + inner), SEP
    before = rows.copy()
    masked, positions, labels = masking(rows, key=(seed, step), first=0)
    assert (rows == before).all()
    for row, seen, place, label, inner in zip(rows, masked, positions, labels, lengths, strict=True):
        used = label != IGNORED
        assert used.sum() == max(1, int(probability * inner + 0.5))
        chosen = place[used]
        assert len(set(chosen.tolist())) == used.sum()
        assert (row[chosen] == label[used]).all() and (row[chosen] >= 5).all()
        assert (place[~used] == 0).all()
        others = np.setdiff1d(np.arange(length), chosen)
        assert (seen[others] == row[others]).all()
        assert np.isin(seen[chosen], [0, 1, 2, 3], invert=True).all()
