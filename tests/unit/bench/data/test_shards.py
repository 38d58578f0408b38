"""Shards: what they hold, how a build goes on, and what opening refuses."""

import os
import pickle
import shutil

import numpy as np
import pytest

from headway.bench.data import Shards, build_shards, open_corpus, train_tokenizer
from headway.bench.data.mlm import shard_build
from headway.bench.data.mlm.packing import after_stops
from headway.bench.data.mlm.shard_build import token_dtype
from headway.storage import read_json, write_json


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer("builtin:50", "word")


@pytest.fixture
def folder(tokenizer, tmp_path):
    build_shards("builtin:400", tokenizer, tmp_path / "shards", max_length=32, shard_tokens=1000, validation=0.2)
    return tmp_path / "shards"


def contents(folder):
    """Every file with its bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_rows_are_whole_sentences_between_cls_and_sep(folder, tokenizer):
    shards = Shards(folder, tokenizer=tokenizer, verify=True)
    rows = [tokenizer.convert_ids_to_tokens(shards[number][0].tolist()) for number in range(len(shards))]
    assert all(row[0] == "[CLS]" and row[-1] == "[SEP]" and len(row) <= 32 for row in rows)
    assert sum(row[-2] == "." for row in rows) / len(rows) > 0.9, "all but sentences of more than 30 words are whole"
    assert shards[0][0].dtype == np.uint16
    assert (shards[-1][0] == shards[len(shards) - 1][0]).all()
    assert shards.num_tokens == sum(map(len, rows))
    assert len(shards.index["shards"]) > 3
    with pytest.raises(IndexError, match=f"row: expected .* to {len(shards) - 1}, got {len(shards)}"):
        shards[len(shards)]


def test_a_batch_is_padded(folder):
    shards = Shards(folder)
    batch = shards.batch([0, 5, len(shards) - 1])
    assert batch.shape == (3, 32) and batch.dtype == np.int64
    for row, number in zip(batch, (0, 5, len(shards) - 1), strict=True):
        tokens = shards[number][0]
        assert (row[: len(tokens)] == tokens).all() and not row[len(tokens) :].any()


def test_packed_rows_are_full(tokenizer, tmp_path):
    shards = build_shards("builtin:400", tokenizer, tmp_path / "shards", max_length=64, packed=True)
    assert shards.num_tokens / len(shards) / 64 > 0.97
    tokens, documents = shards[3]
    assert documents.max() >= 1
    assert (documents == np.cumsum(tokens == tokenizer.cls_token_id) - 1).all()


def test_the_validation_split_is_chosen_by_the_text(tokenizer, tmp_path):
    """The same documents are set aside wherever they stand."""
    corpus = [" ".join(document) for document in open_corpus("builtin:500")]
    kept = []
    for name, documents in (("forward", corpus), ("backward", corpus[::-1])):
        (tmp_path / f"{name}.txt").write_text("\n\n".join(documents))
        build_shards(tmp_path / f"{name}.txt", tokenizer, tmp_path / name, max_length=512, validation=0.3)
        shards = Shards(tmp_path / name, "validation")
        kept.append({tuple(shards[number][0].tolist()) for number in range(len(shards))})
        assert len(Shards(tmp_path / name)) + len(shards) == 100
    assert kept[0] == kept[1]
    assert 15 < len(kept[0]) < 45


def test_a_finished_build_is_opened_and_not_made_again(folder, tokenizer, monkeypatch):
    before = contents(folder)
    monkeypatch.setattr(shard_build._Build, "run", lambda self: pytest.fail("built again"))
    build_shards("builtin:400", tokenizer, folder, max_length=32, shard_tokens=1000, validation=0.2)
    assert contents(folder) == before


def test_a_build_goes_on_after_the_last_whole_shard(folder, tokenizer, monkeypatch):
    before = contents(folder)
    (folder / "index.json").unlink()
    shutil.rmtree(folder / "shard-00002")  # those after it must not be used
    (folder / ".shard-00002.abcd.tmp").mkdir()
    (folder / ".shard-00002.abcd.tmp" / "train.tokens").write_bytes(b"half")
    made = []
    writer = shard_build.ShardWriter
    monkeypatch.setattr(shard_build, "ShardWriter", lambda path, config: made.append(path) or writer(path, config))
    build_shards("builtin:400", tokenizer, folder, max_length=32, shard_tokens=1000, validation=0.2)
    assert contents(folder) == before
    assert len(made) == sum(name.endswith("shard.json") for name in before) - 2


def test_another_build_is_not_overwritten(folder, tokenizer, tmp_path):
    before = contents(folder)
    with pytest.raises(FileExistsError, match=r"same build, got others \(max_length 32 there, 64 asked"):
        build_shards("builtin:400", tokenizer, folder, max_length=64, shard_tokens=1000, validation=0.2)
    with pytest.raises(FileExistsError, match="corpora"):
        build_shards("builtin:401", tokenizer, folder, max_length=32, shard_tokens=1000, validation=0.2)
    assert contents(folder) == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(FileExistsError, match="out: expected a new folder or one of shards"):
        build_shards("builtin:400", tokenizer, tmp_path / "mine")


def test_a_bad_line_stops_the_build_and_a_mended_option_goes_on(tokenizer, tmp_path):
    rows = [f'{{"text": "the cat sees dog {n} ."}}' for n in range(300)]
    (tmp_path / "rows.jsonl").write_text("\n".join([*rows[:250], "{broken", *rows[250:]]))
    options = {"max_length": 16, "shard_tokens": 500}
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 251: expected a JSON object"):
        build_shards(tmp_path / "rows.jsonl", tokenizer, tmp_path / "shards", **options)
    with pytest.raises(FileNotFoundError, match=r"expected index\.json, got none|did not finish"):
        Shards(tmp_path / "shards")
    corpus = open_corpus(tmp_path / "rows.jsonl", on_error="skip")
    shards = build_shards(corpus, tokenizer, tmp_path / "shards", **options)
    assert len(shards) == 300
    assert shards.index["skipped"] == 1
    assert "line 251" in shards.index["shards"][-1]["problems"][0]


def test_opening_refuses_what_is_damaged(folder, tokenizer):
    index = read_json(folder / "index.json")
    tokens = folder / "shard-00001" / "train.tokens"
    content = tokens.read_bytes()
    tokens.write_bytes(content[:-2])
    with pytest.raises(ValueError, match=rf"train\.tokens: expected {len(content)} bytes, got {len(content) - 2}"):
        Shards(folder)
    tokens.write_bytes(content[:-2] + b"\x07\x00")
    Shards(folder)
    with pytest.raises(ValueError, match=r"train\.tokens: expected SHA-256 .* It has changed"):
        Shards(folder, verify=True)
    tokens.unlink()
    with pytest.raises(FileNotFoundError, match=r"train\.tokens: expected \d+ bytes, got no such file"):
        Shards(folder)
    write_json(folder / "index.json", {**index, "format": 99})
    with pytest.raises(ValueError, match="expected format 1, got 99"):
        Shards(folder)
    (folder / "index.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"a build that did not finish. Run it again"):
        Shards(folder)
    with pytest.raises(FileNotFoundError, match=r"got none. Run build_shards first"):
        Shards(folder / "nowhere")


def test_opening_refuses_another_tokenizer(folder, tokenizer):
    other = train_tokenizer("builtin:50", "word", lowercase=True)
    assert other.get_vocab() == tokenizer.get_vocab(), "told apart by how text is cut, not by the vocabulary"
    for wrong in (other, train_tokenizer("builtin:50", "word", 100)):
        with pytest.raises(ValueError, match=r"tokenizer: expected the one the shards in .* were made with"):
            Shards(folder, tokenizer=wrong)


def test_settings_that_calls_leave_behind_do_not_matter(folder, tokenizer, tmp_path):
    used = train_tokenizer("builtin:50", "word")
    used(["the cat", "the"], truncation=True, max_length=3, padding=True)
    Shards(folder, tokenizer=used)
    build_shards("builtin:400", used, tmp_path / "again", max_length=32, shard_tokens=1000, validation=0.2)
    assert contents(tmp_path / "again") == contents(folder)


def test_splits_and_languages(folder, tokenizer, tmp_path):
    with pytest.raises(ValueError, match="split: expected one of train, validation, got 'test'"):
        Shards(folder, "test")
    corpora = [open_corpus(f"builtin:{n}", language=name) for n, name in ((50, "a"), (20, "b"), (30, "a"))]
    shards = build_shards(corpora, tokenizer, tmp_path / "two", max_length=512)
    assert shards.languages == {"a": [(0, 10), (14, 20)], "b": [(10, 14)]}
    assert {name: each["documents"] for name, each in shards.index["languages"].items()} == {"a": 16, "b": 4}
    with pytest.raises(ValueError, match=r"split: expected rows for 'validation' in .*, got none"):
        Shards(tmp_path / "two", "validation")


def test_pickled_shards_open_again(folder):
    shards = Shards(folder, "validation")
    data = pickle.dumps(shards)
    assert len(data) < 1000
    assert (pickle.loads(data)[2][0] == shards[2][0]).all()


def test_names_of_special_tokens_in_a_text_are_text(tmp_path):
    (tmp_path / "text.txt").write_text("the [MASK] of zorro [CLS] [SEP]\n" * 30)
    tokenizer = train_tokenizer(tmp_path / "text.txt", vocab_size=45)
    shards = build_shards(tmp_path / "text.txt", tokenizer, tmp_path / "shards", max_length=64)
    tokens, _ = shards[0]
    assert tokenizer.decode(tokens[1:14]).startswith("the [ mask ] of zorro [ cls ]")
    assert not np.isin(tokens[1:-1], tokenizer.all_special_ids).any()


def test_wide_full_stops_end_sentences():
    assert list(after_stops([5, 9, 6, 7, 9, 8], {9})) == [[5, 9], [6, 7, 9], [8]]
    assert list(after_stops([9], {9})) == [[9]]


def test_chinese_texts_end_with_a_full_stop(tmp_path):
    (tmp_path / "text.txt").write_text("中文一二。三四五六七八九十！中国人民。\n" * 20)
    tokenizer = train_tokenizer(tmp_path / "text.txt", vocab_size=22)
    shards = build_shards(tmp_path / "text.txt", tokenizer, tmp_path / "shards", max_length=22)
    rows = [tokenizer.convert_ids_to_tokens(shards[number][0].tolist()) for number in range(len(shards))]
    assert {row[-2] for row in rows} <= {"。", "！"}
    assert max(map(len, rows)) > 12


@pytest.mark.parametrize(("vocab_size", "dtype"), [(1 << 16, "uint16"), ((1 << 16) + 1, "uint32")])
def test_tokens_are_as_small_as_the_vocabulary_allows(vocab_size, dtype):
    assert token_dtype({"tokenizer": {"vocab_size": vocab_size}}) == dtype


def test_large_vocabularies_survive(tmp_path):
    words = [f"w{n}" for n in range(70_000)]
    (tmp_path / "text.txt").write_text("\n".join(words))
    tokenizer = train_tokenizer(tmp_path / "text.txt", "word")
    shards = build_shards(tmp_path / "text.txt", tokenizer, tmp_path / "shards", max_length=512)
    assert shards[0][0].dtype == np.uint32
    rows = [shards[number][0][1:-1] for number in range(len(shards))]
    assert tokenizer.convert_ids_to_tokens(np.concatenate(rows).tolist()) == words


def test_bad_arguments(tokenizer, tmp_path):
    out = tmp_path / "shards"
    for options, message in (
        ({"max_length": 2}, "max_length: expected an integer from 3"),
        ({"validation": 1.0}, "validation: expected a share"),
        ({"shard_tokens": 0}, "shard_tokens: expected an integer of at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            build_shards("builtin:5", tokenizer, out, **options)
    tokenizer = train_tokenizer("builtin:5", "word")
    tokenizer.mask_token = None
    with pytest.raises(ValueError, match=r"tokenizer: expected a fast tokenizer .*, got one without mask"):
        build_shards("builtin:5", tokenizer, out)
    tokenizer = train_tokenizer("builtin:5", "word")
    tokenizer.pad_token = tokenizer.sep_token
    with pytest.raises(ValueError, match=r"tokenizer: expected five tokens .*, got one for several: .*'pad': 3"):
        build_shards("builtin:5", tokenizer, out)
    assert not out.exists()
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(ValueError, match="corpora: expected text, got none"):
        build_shards(open_corpus(tmp_path / "empty.txt", on_error="skip"), train_tokenizer("builtin:5", "word"), out)


def test_a_full_disk_leaves_whole_shards_and_no_leftovers(tokenizer, tmp_path, monkeypatch):
    options = {"max_length": 32, "shard_tokens": 500}
    expected = build_shards("builtin:300", tokenizer, tmp_path / "whole", **options)
    write, calls = shard_build.ShardWriter._write, []

    def fail_later(self, split, rows):
        calls.append(split)
        if len(calls) == 30:
            raise OSError(28, os.strerror(28))
        write(self, split, rows)

    monkeypatch.setattr(shard_build.ShardWriter, "_write", fail_later)
    with pytest.raises(OSError, match="No space left"):
        build_shards("builtin:300", tokenizer, tmp_path / "shards", **options)
    assert not list((tmp_path / "shards").glob(".*.tmp"))
    monkeypatch.undo()
    build_shards("builtin:300", tokenizer, tmp_path / "shards", **options)
    assert contents(tmp_path / "shards") == contents(tmp_path / "whole")
    assert len(expected.index["shards"]) > 3


def test_progress_counts_documents_and_tokens(tokenizer, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(shard_build, "REPORT_EVERY", 200)
    options = {"max_length": 32, "shard_tokens": 500, "progress": lambda *counts: seen.append(counts)}
    shards = build_shards("builtin:100", tokenizer, tmp_path / "shards", **options)
    assert seen == sorted(seen)
    assert len(seen) > len(shards.index["shards"])
    assert seen[-1] == (20, shards.num_tokens)
