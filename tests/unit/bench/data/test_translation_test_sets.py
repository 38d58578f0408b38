"""Test sets are read whole, from files and from the Hub, or refused; corpora may be joined from several files."""

from __future__ import annotations

import pytest

from headway.bench.data.translation.parallel import open_parallel
from headway.bench.data.translation.test_sets import open_test_set, read_test_set
from headway.bench.data.translation.wmt import NEWSTEST_SENTENCES


def write_pair(folder, name, count, *, empty=None):
    """Write NAME.en and NAME.de with that many lines; return the two paths with a comma between them."""
    for side in ("en", "de"):
        lines = ["" if at == empty and side == "en" else f"{name} {side} {at}" for at in range(count)]
        (folder / f"{name}.{side}").write_text("".join(f"{line}\n" for line in lines))
    return f"{folder / name}.en,{folder / name}.de"


def test_a_set_of_wmt_must_have_all_its_sentences(tmp_path):
    """newstest2014 has 3,003 sentences; sacrebleu's "wmt14" leaves out 266 of them for English and German."""
    whole = write_pair(tmp_path, "newstest2014", 3003)
    found = read_test_set("newstest2014", whole, languages="en-de")
    assert (len(found.sentences), found.references[7]) == (3003, "newstest2014 de 7")
    part = write_pair(tmp_path, "part", 2737)
    with pytest.raises(ValueError, match=r"newstest2014: .*part\.en.* has 2,737 sentences, .* whole .* has 3,003"):
        read_test_set("newstest2014", part, languages="en-de")
    assert len(read_test_set("newstest2014-part", part).sentences) == 2737


def test_how_many_sentences_a_set_has_depends_on_the_languages(tmp_path):
    """newstest2015 has 2,169 in English and German, 2,656 in English and Czech."""
    pair = write_pair(tmp_path, "newstest2015", 2169)
    assert len(read_test_set("newstest2015", pair, languages="de-en").sentences) == 2169
    assert len(read_test_set("newstest2015", pair).sentences) == 2169  # without a direction, any of its sizes
    with pytest.raises(ValueError, match="the whole newstest2015 has 2,656"):
        read_test_set("newstest2015", pair, languages="en-cs")
    assert len(read_test_set("newstest2015", pair, languages="en-ru").sentences) == 2169  # a size that is not known


def test_the_sizes_of_the_sets_that_the_papers_score():
    assert NEWSTEST_SENTENCES["newstest2013"]["de"] == 3000
    assert NEWSTEST_SENTENCES["newstest2014"] == {"cs": 3003, "de": 3003, "fr": 3003}
    assert NEWSTEST_SENTENCES["newstest2018"] == {"cs": 2983, "de": 2998}


def test_empty_sources_stay_and_empty_references_are_refused(tmp_path):
    assert read_test_set("news", write_pair(tmp_path, "news", 4, empty=2)).sentences[2] == ""
    source, target = write_pair(tmp_path, "news", 4, empty=2).split(",")
    with pytest.raises(ValueError, match=r"news\.de, line 3: a sentence of test set news has no reference"):
        read_test_set("news", f"{target},{source}")


def test_a_line_that_cannot_be_read_is_never_left_out(tmp_path):
    pair = write_pair(tmp_path, "news", 3)
    (tmp_path / "news.de").write_bytes(b"a\n\xe4\nb\n")
    with pytest.raises(ValueError, match=r"news\.de, line 2: expected UTF-8"):
        read_test_set("news", pair)
    (tmp_path / "news.de").write_text("")
    with pytest.raises(ValueError, match="expected as many lines"):
        read_test_set("news", pair)


def test_the_hub_gives_its_test_split_unless_another_is_named(monkeypatch):
    datasets = pytest.importorskip("datasets")
    asked = []

    def load(name, config, *, split, streaming):
        asked.append((name, config, split))
        return [{"translation": {"de": "Ja", "en": "Yes"}}]

    monkeypatch.setattr(datasets, "load_dataset", load)
    for source in ("hub:wmt14:de-en", "hub:wmt14:de-en:validation"):
        assert read_test_set("news", source, languages="en-de").sentences == ["Yes"]
    assert asked == [("wmt14", "de-en", "test"), ("wmt14", "de-en", "validation")]
    assert open_test_set("hub:wmt14:de-en", languages="en-de").fingerprint()[0] == "hub:wmt14:de-en"


def test_the_built_in_language_has_a_test_split_of_its_own():
    test = read_test_set("held", "builtin:200:0:max_depth=0")
    trained = {pair.source for pair in open_parallel("builtin:200:0:max_depth=0", split="train")}
    assert len(test.sentences) == 1000 and not trained & set(test.sentences)


# Corpora of several files.


def test_several_files_are_one_corpus(tmp_path):
    one, other = (write_pair(tmp_path, name, count).split(",") for name, count in (("europarl", 3), ("news", 2)))
    text = open_parallel(f"{one[0]}+{other[0]}", f"{one[1]}+{other[1]}")
    assert [pair.source for pair in text] == [*(f"europarl en {n}" for n in range(3)), "news en 0", "news en 1"]
    assert [pair.target for pair in text][-1] == "news de 1"
    before = text.fingerprint()
    assert len(before[0]) == 4
    write_pair(tmp_path, "news", 3)
    assert text.fingerprint() != before
    assert open_parallel(*one).fingerprint()[0] == before[0][:2], "one file of each side is described as it always was"


def test_a_corpus_of_several_files_is_split_by_sentence(tmp_path):
    names = [write_pair(tmp_path, name, 200).split(",") for name in ("europarl", "news")]
    source, target = ("+".join(name[side] for name in names) for side in (0, 1))
    train, dev = (
        {pair.source for pair in open_parallel(source, target, split=split, held_out=0.2)} for split in ("train", "dev")
    )
    assert not train & dev and len(train | dev) == 400
    assert {sentence.split()[0] for sentence in dev} == {"europarl", "news"}


def test_a_file_whose_name_has_a_plus_is_one_file(tmp_path):
    source, target = write_pair(tmp_path, "c++", 2).split(",")
    assert len(list(open_parallel(source, target))) == 2


def test_formats_of_the_files_may_differ(tmp_path):
    (tmp_path / "a.tsv").write_text("one\teins\n")
    (tmp_path / "b.jsonl").write_text('{"en": "two", "de": "zwei"}\n')
    text = open_parallel(f"{tmp_path}/a.tsv+{tmp_path}/b.jsonl", languages="en-de")
    assert [(pair.source, pair.target) for pair in text] == [("one", "eins"), ("two", "zwei")]


@pytest.mark.parametrize(
    ("source", "target", "error", "message"),
    [
        ("a.en+b.en", "a.de", ValueError, r"a\.de names 1 files, and .* names 2 sources"),
        ("a.en+c.en", "a.de+b.de", FileNotFoundError, r"source: expected a file.*c\.en"),
        ("a.en+b.en", "a.de+c.de", FileNotFoundError, r"target: expected a file.*c\.de"),
        ("a.en+hub:x", "a.de+b.de", ValueError, r"hub:x has both sides"),
    ],
)
def test_a_corpus_that_lacks_a_file_says_which(tmp_path, source, target, error, message):
    for name in ("a", "b"):
        write_pair(tmp_path, name, 2)

    def place(names):
        return "+".join(name if name.startswith("hub:") else str(tmp_path / name) for name in names.split("+"))

    with pytest.raises(error, match=message):
        open_parallel(place(source), place(target))
