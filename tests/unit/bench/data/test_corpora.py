"""Documents from every kind of source, and messages that say where a bad one is bad."""

import gzip
import json
import lzma
import subprocess
import sys

import pytest

from headway.bench.data import Language, open_corpus, reading
from headway.bench.data.text import corpora
from headway.bench.data.text.corpora import open_corpora

TEXT = "Title\nFirst line.\n\n\n  Second document, ünïcode  \r\nits end\n\n"
DOCUMENTS = [["Title", "First line."], ["Second document, ünïcode", "its end"]]


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def jsonl(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize("text", [TEXT, TEXT.rstrip(), "\ufeff" + TEXT])
def test_blank_lines_separate_documents(tmp_path, text):
    corpus = open_corpus(write(tmp_path / "a.txt", text))
    assert list(corpus) == DOCUMENTS
    assert list(corpus) == DOCUMENTS, "a corpus is read anew each time"


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_compressed_files(tmp_path, suffix, compress):
    assert list(open_corpus(write(tmp_path / f"a.txt{suffix}", compress(TEXT.encode())))) == DOCUMENTS
    rows = jsonl({"text": "one"}, {"text": "two"})
    assert list(open_corpus(write(tmp_path / f"a.jsonl{suffix}", compress(rows.encode())))) == [["one"], ["two"]]


def test_jsonl_is_a_document_a_line_and_a_paragraph_a_line_within(tmp_path):
    path = write(
        tmp_path / "a.jsonl", jsonl({"text": "one\n\n two \n"}, {"text": ""}) + "\n" + jsonl({"text": "three"})
    )
    assert list(open_corpus(path)) == [["one", "two"], ["three"]]
    path = write(tmp_path / "b.jsonl", jsonl({"body": "one", "text": "not this"}))
    assert list(open_corpus(path, text_field="body")) == [["one"]]


def test_parquet(tmp_path):
    import pyarrow
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": [f"row {n}\nmore" for n in range(600)], "id": range(600)}), path)
    assert list(open_corpus(path)) == [[f"row {n}", "more"] for n in range(600)]
    with pytest.raises(ValueError, match=r"a\.parquet: expected a column 'body', got text, id"):
        list(open_corpus(path, text_field="body"))
    parquet.write_table(pyarrow.table({"text": ["a", None, "b"]}), path)
    with pytest.raises(ValueError, match=r"a\.parquet, row 2: expected 'text' to be text, got None"):
        list(open_corpus(path))
    write(path, b"PAR1 nonsense")
    with pytest.raises(ValueError, match=r"a\.parquet: expected a parquet file, got"):
        list(open_corpus(path))


def test_what_is_wrong_within_parquet_is_named(tmp_path):
    import pyarrow
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": [f"row {n * n}" for n in range(9000)]}), path)
    whole = path.read_bytes()
    write(path, whole[:5000] + b"\xff" * 3000 + whole[8000:])
    with pytest.raises(ValueError, match=r"a\.parquet: expected a parquet file, got .*[a-z]\. Fetch or write it again"):
        list(open_corpus(path))
    corpus = open_corpus(path, on_error="skip")
    list(corpus)
    assert corpus.problems.count == 1
    latin1 = pyarrow.array([b"gut", b"sch\xf6n", b"wieder gut"], pyarrow.binary())
    text = pyarrow.StringArray.from_buffers(3, *latin1.buffers()[1:])
    parquet.write_table(pyarrow.table({"text": text}), path)
    with pytest.raises(ValueError, match=r"a\.parquet, row 2: expected UTF-8, got .*0xf6"):
        list(open_corpus(path))
    assert list(open_corpus(path, on_error="skip")) == [["gut"], ["wieder gut"]]
    corpus = open_corpus(path, on_error="skip")
    path.unlink()
    with pytest.raises(FileNotFoundError):
        list(corpus)


def test_a_folder_is_read_in_sorted_order(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / ".cache").mkdir()
    for name in ("b.txt", "sub/a.txt", "a.txt", ".hidden", ".cache/a.txt", ".cache/a.txt.metadata"):
        write(tmp_path / name, name)
    assert list(open_corpus(tmp_path)) == [["a.txt"], ["b.txt"], ["sub/a.txt"]]
    write(tmp_path / "notes.md", "# notes")
    with pytest.raises(ValueError, match=r"notes\.md: expected one of \.txt, \.jsonl, \.parquet, .*, got '\.md'"):
        open_corpus(tmp_path)
    corpus = open_corpus(tmp_path, on_error="skip")
    assert len(list(corpus)) == 3
    assert corpus.problems.count == 1


@pytest.mark.parametrize(("target", "named"), [("elsewhere", "a folder"), ("elsewhere/gone.txt", "nothing")])
def test_a_link_in_a_folder_is_read_or_refused(tmp_path, target, named):
    for folder in ("corpus", "elsewhere"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "a.txt", folder)
    (tmp_path / "corpus/b.txt").symlink_to(tmp_path / "elsewhere/a.txt")
    assert list(open_corpus(tmp_path / "corpus")) == [["corpus"], ["elsewhere"]]
    (tmp_path / "corpus/c.txt").symlink_to(tmp_path / target)
    for on_error in ("raise", "skip"):
        with pytest.raises(ValueError, match=rf"expected no links .* got .*c\.txt, a link to {named}"):
            open_corpus(tmp_path / "corpus", on_error=on_error)


def test_the_hub_is_streamed_with_datasets(monkeypatch):
    import datasets

    asked = []

    def load_dataset(*arguments, **options):
        asked.append((arguments, options))
        return iter([{"text": "one\ntwo", "title": "x"}, {"text": "three"}, {"title": "y"}])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    rows = iter(open_corpus("hub:org/name:config:test"))
    assert [next(rows), next(rows)] == [["one", "two"], ["three"]]
    with pytest.raises(ValueError, match="hub:org/name:config, test, row 3: expected a field 'text', got title"):
        next(rows)
    next(iter(open_corpus("hub:org/name")))
    assert asked == [
        (("org/name", "config"), {"split": "test", "streaming": True}),
        (("org/name", None), {"split": "train", "streaming": True}),
    ]


def test_datasets_really_loads_what_the_hub_source_names(tmp_path):
    write(tmp_path / "train.jsonl", jsonl({"text": "one"}, {"text": "two"}))
    assert list(open_corpus(f"hub:{tmp_path}")) == [["one"], ["two"]]
    with pytest.raises(ValueError, match=r"expected a dataset with split test, got: .*test"):
        list(open_corpus(f"hub:{tmp_path}::test"))


def test_the_built_in_language():
    documents = list(open_corpus("builtin:12:3"))
    assert [len(document) for document in documents] == [5, 5, 2]
    expected = [sentence.text for document in Language().documents(3, seed=3, sentences=5) for sentence in document]
    assert [line for document in documents for line in document] == expected[:12]
    assert list(open_corpus("builtin:12")) == list(open_corpus("builtin:12:0")) != documents


def test_the_built_in_languages_say_the_same():
    english, invented, verb_final = (
        [sentence for document in open_corpus(f"builtin:40:1:{name}") for sentence in document]
        for name in ("english", "invented", "verb-final")
    )
    language = Language()
    said = [sentence for document in language.documents(8, seed=1) for sentence in document]
    assert english == [sentence.text for sentence in said]
    assert verb_final == [" ".join(language.verb_final(sentence)) for sentence in said]
    assert [len(sentence.split()) for sentence in invented] == [len(sentence.split()) for sentence in english]
    for name, sentences in (("invented", invented), ("verb-final", verb_final)):
        words = {word for sentence in sentences for word in sentence.split()}
        assert words <= set(open_corpus(f"builtin:1:{name}").vocabulary)
    assert not set(open_corpus("builtin:1:verb-final").vocabulary) & set(language.vocabulary) - {"."}


LATIN1 = "gut\nschön\n".encode("latin1")
BAD = {
    "latin1.txt": (
        LATIN1,
        r"latin1\.txt, line 2: expected UTF-8, got byte 0xf6 at byte 7 of the text .*iconv -f LATIN1",
    ),
    "utf16.txt": ("text\n".encode("utf-16"), r"utf16\.txt, line 1: .* 0xff at byte 0 .*iconv -f UTF-16"),
    "unmarked.txt": ("text\n".encode("utf-16-le"), r"unmarked\.txt, line 1: .* number 0, .*iconv -f UTF-16LE"),
    "empty.txt": ("", r"empty\.txt: expected text, got an empty file"),
    "blank.txt": (" \n\n", r"blank\.txt: expected text, got an empty file"),
    "empty.jsonl": ("\n", r"empty\.jsonl: expected text, got an empty file"),
    "broken.jsonl": ('{"text": "a"}\n{"text": \n', r"broken\.jsonl, line 2: expected a JSON object, got .*char"),
    "digits.jsonl": (f'{{"n": {"9" * 5000}}}\n', r"digits\.jsonl, line 1: expected a JSON object, got .*digits"),
    "brackets.jsonl": ("[" * 100_000, r"brackets\.jsonl, line 1: expected a JSON object, got .*recursion"),
    "list.jsonl": ('["text"]\n', r"list\.jsonl, line 1: expected a JSON object, got list"),
    "field.jsonl": ('{"body": "a", "id": 1}\n', r"field\.jsonl, line 1: expected a field 'text', got body, id"),
    "null.jsonl": ('{"text": null}\n', r"null\.jsonl, line 1: expected 'text' to be text, got None"),
    "surrogate.jsonl": ('{"text": "\\ud800"}\n', r"surrogate\.jsonl, line 1: expected Unicode text"),
    "cut.txt.xz": (lzma.compress(TEXT.encode() * 9)[:-30], r"cut\.txt\.xz, after line \d+: .*cut off or damaged"),
    "cut.txt.gz": (gzip.compress(TEXT.encode() * 9)[:-9], r"cut\.txt\.gz, after line \d+: .*cut off or damaged"),
    "not.txt.xz": (b"plain text\n", r"not\.txt\.xz, after line 0: expected more of the compressed file"),
    "not.txt.gz": (b"plain text\n", r"not\.txt\.gz, after line 0: expected more of the compressed file"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_named_with_file_and_line(tmp_path, name):
    content, message = BAD[name]
    path = write(tmp_path / name, content)
    with pytest.raises(ValueError, match=message):
        list(open_corpus(path))
    corpus = open_corpus(path, on_error="skip")
    kept = list(corpus)
    assert corpus.problems.count == len(corpus.problems.first) >= 1
    assert kept == list(corpus), "counts start anew with each pass"
    assert corpus.problems.count == len(corpus.problems.first)


def test_bad_lines_are_skipped_and_counted(tmp_path):
    rows = "".join(f'{{"text": "good {n}"}}\nbad {n}\n' for n in range(20))
    corpus = open_corpus(write(tmp_path / "a.jsonl", rows), on_error="skip")
    assert list(corpus) == [[f"good {n}"] for n in range(20)]
    assert corpus.problems.count == 20
    assert len(corpus.problems.first) == 10
    assert "line 2" in corpus.problems.first[0]
    corpus = open_corpus(write(tmp_path / "b.txt", LATIN1 + b"wieder gut\n"), on_error="skip")
    assert list(corpus) == [["gut", "wieder gut"]]


def test_bad_sources(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"source: expected a file, a folder, hub:NAME or builtin, got '.*absent"
    ):
        open_corpus(tmp_path / "absent")
    with pytest.raises(ValueError, match=r"a\.pdf: expected one of \.txt"):
        open_corpus(write(tmp_path / "a.pdf", b"x"))
    with pytest.raises(ValueError, match=r"a\.parquet\.gz: expected one of"):
        open_corpus(write(tmp_path / "a.parquet.gz", b"x"))
    (tmp_path / "nothing").mkdir()
    with pytest.raises(ValueError, match=r"expected files in the folder .*nothing, got none"):
        open_corpus(tmp_path / "nothing")
    for source in ("hub:", "hub:a:b:c:d"):
        with pytest.raises(ValueError, match="expected hub:NAME"):
            open_corpus(source)
    for source in ("builtin:many", "builtin:1:2:3", "builtin:-5", "builtin:1:2:french"):
        with pytest.raises(ValueError, match="expected builtin"):
            open_corpus(source)
    with pytest.raises(ValueError, match="sentences: expected an integer of at least 1, got 0"):
        open_corpus("builtin:0")
    with pytest.raises(ValueError, match="on_error: expected raise or skip, got 'ignore'"):
        open_corpus("builtin", on_error="ignore")
    with pytest.raises(ValueError, match="corpora: expected at least one"):
        open_corpora([])


def test_long_documents_are_continued_and_long_lines_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(corpora, "MAX_DOCUMENT", 39)
    monkeypatch.setattr(reading, "MAX_LINE", 40)
    lines = [f"line number {n}" for n in range(7)]
    path = write(tmp_path / "a.txt", "\n".join(lines))
    assert list(open_corpus(path)) == [lines[:3], lines[3:6], lines[6:]]
    assert list(open_corpus(write(tmp_path / "a.jsonl", jsonl({"text": "a\n" * 8})))) == [["a"] * 8]
    path = write(tmp_path / "b.txt", "before\n" + "x" * 130 + "\nafter\n" + "y" * 39 + "\nend")
    with pytest.raises(ValueError, match=r"b\.txt, line 2: expected less than"):
        list(open_corpus(path))
    corpus = open_corpus(path, on_error="skip")
    assert [line for document in corpus for line in document] == ["before", "after", "y" * 39, "end"]
    assert corpus.problems.count == 1


@pytest.mark.parametrize("suffix", [".txt", ".jsonl"])
def test_a_line_longer_than_a_document_is_continued_too(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(corpora, "MAX_DOCUMENT", 10)
    text = "one two three " + "x" * 25 + " end"
    path = write(tmp_path / f"a{suffix}", text if suffix == ".txt" else jsonl({"text": text}))
    documents = list(open_corpus(path))
    assert [piece for document in documents for piece in document] == [
        "one two", "three", "x" * 10, "x" * 10, "xxxxx end"
    ]  # fmt: skip
    assert max(sum(map(len, document)) for document in documents) < 20


def test_fingerprints_follow_the_content(tmp_path):
    path = write(tmp_path / "a.txt", "text")
    before = open_corpus(path).fingerprint()
    assert open_corpus(path).fingerprint() == before
    assert open_corpus(write(path, "tent")).fingerprint() != before
    assert open_corpus("builtin:5").fingerprint() != open_corpus("builtin:6").fingerprint()


def test_local_text_needs_neither_datasets_nor_torch(tmp_path):
    write(tmp_path / "a.txt", TEXT)
    write(tmp_path / "b.jsonl", jsonl({"text": "one"}))
    code = """
import sys
from headway.bench.data import open_corpus
print(len(list(open_corpus(sys.argv[1]))))
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    count, modules = done.stdout.splitlines()
    assert count == "3"
    assert not {"datasets", "pyarrow", "torch", "numpy", "transformers"} & set(modules.split())
