"""Data that a run makes before it trains: of what is asked for, and of what is there now."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.bench.tasks.pretrain import EncoderChoice, Optimisation, PretrainConfig, Text
from headway.bench.tasks.pretrain.text import prepare_text
from headway.bench.tasks.training import prepared_data
from headway.bench.tasks.training.distributed import Processes
from headway.bench.tasks.translate.data import prepare_pairs
from headway.bench.tasks.translate.recipes import quick
from headway.storage import read_json


@pytest.fixture
def corpus(tmp_path):
    """A text file, and how to write it."""
    path = tmp_path / "corpus.txt"

    def write(words: str) -> None:
        path.write_text("\n\n".join(f"{words} {at % 40} ." for at in range(400)) + "\n")

    write("alpha beta gamma")
    return path, write


def asked(path, **text):
    return PretrainConfig(
        model=EncoderChoice(encoding="none"),
        text=Text(corpus=(str(path),), kind="word", length=32, validation=0.2, **text),
        optimisation=Optimisation(steps=1, batch=2, learning_rate=1e-3),
    )


def first(text):
    return text.tokenizer.decode(text.training.shards[0][0])


def test_text_that_changed_is_cut_again_unless_the_run_goes_on(corpus, tmp_path):
    path, write = corpus
    own, alone = tmp_path / "data", Processes(cpu=True)
    assert "alpha beta" in first(prepare_text(asked(path), own, alone, show=False))
    made = (own / "shards" / "index.json").stat().st_mtime_ns
    prepare_text(asked(path), own, alone, show=False)
    assert (own / "shards" / "index.json").stat().st_mtime_ns == made, "the same text is not cut twice"
    write("one two three")
    assert "alpha beta" in first(prepare_text(asked(path), own, alone, show=False, continues=True))
    assert "one two" in first(prepare_text(asked(path), own, alone, show=False))
    path.unlink()
    assert "one two" in first(prepare_text(asked(path), own, alone, show=False, continues=True))
    with pytest.raises(FileNotFoundError, match=r"corpus\.txt"):
        prepare_text(asked(path), own, alone, show=False)


def test_a_language_that_is_held_out_as_a_whole_is_refused(corpus, tmp_path):
    path, _ = corpus
    one = tmp_path / "one.txt"
    one.write_text("\n".join(f"alpha beta gamma {at % 40} ." for at in range(400)))
    config = asked(path)
    text = replace(config.text, corpus=(f"en={path}", f"sw={one}"), validation=0.9)
    with pytest.raises(ValueError, match="validation: all text of sw is held out"):
        prepare_text(replace(config, text=text), tmp_path / "data", Processes(cpu=True), show=False)


def test_a_language_of_which_nothing_is_held_out_is_named(corpus, tmp_path):
    path, _ = corpus
    one = tmp_path / "one.txt"
    one.write_text("\n".join(f"alpha beta gamma {at % 40} ." for at in range(400)))
    config = asked(path)
    text = replace(config.text, corpus=(f"en={path}", f"sw={one}"))
    with pytest.warns(UserWarning, match=r"validation: nothing of sw is held out, .*Raise it with --set"):
        prepare_text(replace(config, text=text), tmp_path / "data", Processes(cpu=True), show=False)


def test_smoothing_evens_out_how_languages_are_drawn(corpus, tmp_path):
    """Rows of a language that has a tenth of the text: share = 0.1^a / (0.1^a + 0.9^a), Lample and Conneau (2019)."""
    path, _ = corpus
    few = tmp_path / "few.txt"
    few.write_text("\n\n".join(f"alpha beta gamma {at % 40} ." for at in range(40)) + "\n")
    config = asked(path)
    text = replace(config.text, corpus=(f"en={path}", f"sw={few}"), validation=0.5)
    shares = {}
    for smoothing in (1.0, 0.7, 0.5, 0.0):
        own = replace(config, text=replace(text, smoothing=smoothing))
        made = prepare_text(own, tmp_path / f"data-{smoothing}", Processes(cpu=True), show=False)
        assert ("smoothing" in read_json(tmp_path / f"data-{smoothing}" / "text.json")) == (smoothing != 0.7)
        shares[smoothing] = made.training.order.shares["sw"]
    assert shares[1.0] < shares[0.7] < shares[0.5] < shares[0.0] == 0.5
    odds = shares[1.0] / (1 - shares[1.0])
    assert shares[0.5] == pytest.approx(odds**0.5 / (1 + odds**0.5))
    with pytest.raises(ValueError, match=r"smoothing: expected an exponent from 0 to 1, got 1\.5"):
        replace(config.text, smoothing=1.5)


def test_what_was_half_removed_is_not_taken_for_whole(tmp_path, monkeypatch):
    folder = tmp_path / "data"
    prepared_data.begin_data(folder, {"length": 32}, ["a"])
    for name in ("index", "tokenizer"):
        (folder / name).write_text("made of length 32")

    def killed(folder):
        (folder / "tokenizer").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(prepared_data.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            prepared_data.begin_data(folder, {"length": 64}, ["a"])
    prepared_data.begin_data(folder, {"length": 32}, ["a"])
    assert [path.name for path in folder.iterdir()] == ["text.json"]


def test_rows_are_packed_as_asked(corpus, tmp_path):
    path, _ = corpus
    own, alone = tmp_path / "data", Processes(cpu=True)
    prepare_text(asked(path), own, alone, show=False)
    with pytest.raises(ValueError, match=r"packed: expected False, as .* got True\. Leave out --set text\.packed=true"):
        prepare_text(asked(path, packed=True, data=str(own)), tmp_path / "other", alone, show=False)
    assert not prepare_text(asked(path, data=str(own)), tmp_path / "other", alone, show=False).training.shards.packed


def test_pairs_that_changed_are_cut_again_unless_the_run_goes_on(tmp_path):
    files = [tmp_path / "text.en", tmp_path / "text.de"]

    def write(words: str) -> None:
        for file in files:
            file.write_text("".join(f"{words} {at} {file.suffix[1:]}\n" for at in range(300)))

    config = quick()
    data = replace(config.data, source=str(files[0]), target=str(files[1]), kind="word", held_out=0.2)
    config, own, alone = replace(config, data=data), tmp_path / "data", Processes(cpu=True)
    write("alpha beta")
    assert "alpha beta" in prepare_pairs(config, own, alone, show=False).sentences[0][0]
    write("one two")
    assert "alpha beta" in prepare_pairs(config, own, alone, show=False, continues=True).sentences[0][0]
    assert "one two" in prepare_pairs(config, own, alone, show=False).sentences[0][0]
