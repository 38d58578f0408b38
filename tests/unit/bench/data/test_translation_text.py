"""Parallel text: every format as the same pairs, splits that share nothing, and errors that name file and line."""

from __future__ import annotations

import gzip
import json
import lzma

import pytest

from headway.bench.data import Language
from headway.bench.data.translation.cleaning import Cleaner, Rules
from headway.bench.data.translation.parallel import Pair, open_parallel

PAIRS = [("A dog runs.", "Ein Hund läuft."), ("Two cats\u2028sleep.", "Zwei Katzen schlafen."), ("Yes", "Ja")]


def texts(parallel):
    return [(pair.source, pair.target) for pair in parallel]


@pytest.fixture
def files(tmp_path):
    """The pairs in every format."""
    for side, name in enumerate(("a.en", "a.de")):
        lines = "".join(pair[side] + "\n" for pair in PAIRS).encode()
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + lines)
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(lines))
        (tmp_path / f"{name}.xz").write_bytes(lzma.compress(lines))
    (tmp_path / "a.tsv").write_text("".join(f"{source}\t{target}\r\n" for source, target in PAIRS))
    rows = [{"translation": {"de": target, "en": source}} for source, target in PAIRS]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "flat.jsonl").write_text("\n".join(json.dumps(row["translation"]) for row in rows))
    return tmp_path


@pytest.mark.parametrize(
    ("source", "target"),
    [("a.en", "a.de"), ("a.en.gz", "a.de.xz"), ("a.tsv", None), ("a.jsonl", None), ("flat.jsonl", None)],
)
def test_every_format_gives_the_same_pairs(files, source, target):
    languages = "en-de" if source.endswith("jsonl") else None
    parallel = open_parallel(str(files / source), target and str(files / target), languages=languages)
    wanted = PAIRS if languages is None else [(" ".join(a.split()), b) for a, b in PAIRS]
    assert texts(parallel) == wanted
    assert texts(parallel) == wanted, "each pass reads anew"


def test_languages_say_the_direction(files):
    back = open_parallel(str(files / "a.jsonl"), languages="de-en")
    assert texts(back)[0] == (PAIRS[0][1], PAIRS[0][0])


def test_a_hub_dataset_is_a_folder_that_datasets_can_load(files, monkeypatch):
    datasets = pytest.importorskip("datasets")
    rows = [{"translation": {"de": target, "en": source}} for source, target in PAIRS]
    asked = []

    def load(name, config, *, split, streaming):
        asked.append((name, config, split))
        return rows

    monkeypatch.setattr(datasets, "load_dataset", load)
    for split in ("train", "dev"):
        assert len(texts(open_parallel("hub:wmt14:de-en", languages="en-de", split=split))) == 3
    assert len(texts(open_parallel("hub:a/b::test", languages="en-de"))) == 3
    assert asked == [("wmt14", "de-en", "train"), ("wmt14", "de-en", "validation"), ("a/b", None, "test")]


def test_misaligned_files_are_named_with_their_line_counts(files):
    (files / "short.de").write_text("Ein Hund läuft.\n")
    for source, target, after in (("a.en", "short.de", "line 1"), ("short.de", "a.en", "line 1")):
        with pytest.raises(
            ValueError, match=rf"target: expected as many lines in .*{target}.* got .*ends after {after}"
        ):
            texts(open_parallel(str(files / source), str(files / target)))


def test_wrong_encoding_is_named_with_its_line_and_skipping_keeps_the_rest_aligned(files):
    (files / "latin.de").write_bytes("Ein Hund.\nZwei Kätzchen.\nJa\n".encode("latin1"))
    with pytest.raises(ValueError, match=r"latin\.de, line 2: expected UTF-8, got byte 0xe4 .*iconv"):
        texts(open_parallel(str(files / "a.en"), str(files / "latin.de")))
    lenient = open_parallel(str(files / "a.en"), str(files / "latin.de"), on_error="skip")
    assert texts(lenient) == [("A dog runs.", "Ein Hund."), ("Yes", "Ja")]
    assert lenient.problems.count == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("no tab here", r"line 2: expected 2 columns with tabs between them, got 1"),
        ("a\tb\tc", "got 3"),
    ],
)
def test_rows_of_a_table_that_are_no_pair(tmp_path, line, message):
    path = tmp_path / "pairs.tsv"
    path.write_text(f"one\teins\n{line}\nthree\tdrei\n")
    with pytest.raises(ValueError, match=message):
        texts(open_parallel(str(path)))
    lenient = open_parallel(str(path), on_error="skip")
    assert texts(lenient) == [("one", "eins"), ("three", "drei")]
    assert lenient.problems.count == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"en": "a"', "line 1: expected a JSON object"),
        ('{"en": "a"}', "line 1: expected text in en and de, got en"),
        ('{"translation": {"en": "a", "de": 3}}', "expected text in en and de"),
    ],
)
def test_rows_of_jsonl_that_are_no_pair(tmp_path, content, message):
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(ValueError, match=message):
        texts(open_parallel(str(tmp_path / "a.jsonl"), languages="en-de"))


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("missing.en", "missing.de"), {}, r"source: expected a file, hub:NAME or builtin, got 'missing\.en'"),
        (("EXISTS", "missing.de"), {}, r"target: expected a file, got 'missing\.de'"),
        (("builtin", "x.de"), {}, "target: builtin has both sides"),
        (("hub:wmt14:de-en",), {}, "languages: the direction of hub:wmt14:de-en is not known"),
        (("hub:wmt14",), {"languages": "en"}, "languages: expected SOURCE-TARGET such as en-de, got 'en'"),
        (("builtin",), {"split": "validation"}, "split: expected one of train, dev, test"),
        (("builtin",), {"held_out": 0.7}, "held_out: expected a share"),
        (("builtin:x",), {}, r"source: expected builtin\[:PAIRS\[:SEED\]\]\[:NAME=VALUE\]"),
        (("builtin:10:0:size=3",), {}, "source: expected of .* names among seed, nouns, .*max_longest, got 'size'"),
        (("builtin:10:max_longest=0",), {}, "max_longest: expected an integer of at least 1"),
    ],
)
def test_bad_sources_are_refused_by_name(files, arguments, options, message):
    arguments = [str(files / "a.en") if each == "EXISTS" else each for each in arguments]
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        open_parallel(*arguments, **options)


def test_empty_and_torn_files_are_named(files):
    (files / "empty.tsv").write_text("")
    with pytest.raises(ValueError, match=r"empty\.tsv: expected text, got an empty file"):
        texts(open_parallel(str(files / "empty.tsv")))
    (files / "torn.tsv.gz").write_bytes(gzip.compress(b"a\tb\n" * 1000)[:-20])
    with pytest.raises(ValueError, match=r"torn\.tsv\.gz, after line \d+: expected more of the compressed file"):
        texts(open_parallel(str(files / "torn.tsv.gz"), on_error="skip"))


# The built-in language, and splits.


def test_the_builtin_pairs_are_sentences_with_their_verb_final_translations():
    found = texts(open_parallel("builtin:50:3:max_depth=1", split="train"))
    language = Language(max_depth=1)
    by_text = {s.text: " ".join(language.verb_final(s)) for s in language.sentences(200, seed=3)}
    assert len(found) == 50
    assert all(by_text[source] == target for source, target in found)
    assert texts(open_parallel("builtin:20:3:max_depth=1", split="train")) == found[:20], "fewer are a prefix"


def test_builtin_splits_share_no_sentence():
    splits = {
        split: {source for source, _ in texts(open_parallel("builtin:3000:0:max_depth=0:nouns=4", split=split))}
        for split in ("train", "dev", "test")
    }
    assert len(splits["dev"]) > 50, "a small language, in which sentences come again and again"
    assert not splits["train"] & splits["dev"]
    assert not splits["train"] & splits["test"]
    assert not splits["dev"] & splits["test"]


def test_a_share_of_a_file_is_held_out_by_its_sentences(tmp_path):
    rows = [f"sentence {number % 500}\ttranslation {number}" for number in range(2000)]
    (tmp_path / "a.tsv").write_text("\n".join(rows))
    train, dev = (texts(open_parallel(str(tmp_path / "a.tsv"), split=s, held_out=0.1)) for s in ("train", "dev"))
    assert sorted(train + dev) == sorted(texts(open_parallel(str(tmp_path / "a.tsv"))))
    assert 100 < len(dev) < 300
    assert not {source for source, _ in train} & {source for source, _ in dev}


@pytest.mark.parametrize(("low", "high"), [(1, 4), (8, 12)])
def test_the_longest_dependency_can_be_bounded(low, high):
    sentences = Language().sentences(40, min_longest=low, max_longest=high)
    longest = [max(agreement.distance for agreement in sentence.agreements) for sentence in sentences]
    assert min(longest) >= low
    assert max(longest) <= high


# Cleaning.


@pytest.mark.parametrize(
    ("pair", "lengths", "reason", "message"),
    [
        (("", "b"), None, "empty", "has an empty source"),
        (("a", ""), None, "empty", "has an empty target"),
        (("a\ufffd", "b"), None, "lost characters", r"has U\+FFFD, which stands for bytes that were no text"),
        (("a", "b"), (10, 3), "too long", "has 11 tokens, over 10"),
        (("a", "b"), (2, 9), "length ratio", "has 2 and 9 tokens, over 4 to 1"),
    ],
)
def test_each_rule_counts_or_raises(pair, lengths, reason, message):
    def judge(cleaner):
        each = Pair(*pair, "a.tsv, line 7")
        return cleaner.keeps_text(each) and (lengths is None or cleaner.keeps_tokens(each, *lengths))

    lenient = Cleaner(Rules(max_tokens=10))
    assert not judge(lenient)
    assert lenient.left_out == {reason: 1}
    with pytest.raises(ValueError, match=rf"a\.tsv, line 7: this pair {message} \({reason}\)"):
        judge(Cleaner(Rules(max_tokens=10, strict=True)))


def test_what_breaks_no_rule_is_kept():
    cleaner = Cleaner(Rules(max_tokens=10))
    pair = Pair("a", "b", "here")
    assert cleaner.keeps_text(pair) and cleaner.keeps_tokens(pair, 9, 9) and cleaner.keeps_tokens(pair, 2, 8)
    assert not cleaner.left_out
