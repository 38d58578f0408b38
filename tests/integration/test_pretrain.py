"""Pretraining as a whole: it learns, it says what went wrong, and the command does it all."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_pretraining import STEPS, WITHOUT_DROPOUT, pretrain, shards, tiny
from training_runs import assert_close, assert_same_run, log, one_thread, weights
from transformers import AutoModelForMaskedLM, pipeline
from typer.testing import CliRunner

from headway.bench.data import MlmBatches, Shards, open_corpus
from headway.bench.tasks.pretrain import Intervals, RunStopped, Text
from headway.bench.tasks.training import checkpoint
from headway.cli import app

_one_thread = pytest.fixture(scope="module", autouse=True)(one_thread)
data = shards


# Learning.


def test_it_learns_more_than_frequencies_and_the_saved_model_fills_masks(tmp_path, data):
    wider = {"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 128, **WITHOUT_DROPOUT}
    seldom = Intervals(log=50, evaluate=500, checkpoint=500)
    result = pretrain(
        tiny(data, model=wider, steps=500, batch=32, learning_rate=3e-3, intervals=seldom), tmp_path / "run"
    )

    train, held_out = Shards(Path(data) / "shards"), Shards(Path(data) / "shards", "validation")
    counts = np.bincount(np.concatenate([train[row][0] for row in range(len(train))]), minlength=train.vocab_size) + 1.0
    counts[train.special_ids] = 0
    words = np.concatenate([held_out[row][0] for row in range(len(held_out))])
    words = words[~np.isin(words, train.special_ids)]
    by_frequency = -np.log(counts[words] / counts.sum()).mean()
    assert result.evaluation_loss < by_frequency - 0.3
    assert result.masked_accuracy > counts.max() / counts.sum() + 0.05

    losses = [loss for _, loss in log(result.folder, "loss")]
    assert losses[-1] < losses[0] - 1.0

    folder = str(tmp_path / "run" / "model")
    fill = pipeline("fill-mask", model=folder, tokenizer=folder, device="cpu")
    assert fill("some hunters fear the dragons [MASK]")[0]["token_str"] == "."
    assert {guess["token_str"] for guess in fill("[MASK] pilot jumps .")[:3]} == {"a", "some", "the"}
    assert AutoModelForMaskedLM.from_pretrained(folder).config.encoding == "diet-rel:segments=none"


def test_the_seed_decides(tmp_path, data):
    pretrain(tiny(data), tmp_path / "one")
    pretrain(tiny(data), tmp_path / "same")
    pretrain(tiny(data, seed=1), tmp_path / "other")
    assert_same_run(tmp_path / "one", tmp_path / "same")
    assert log(tmp_path / "one", "loss") != log(tmp_path / "other", "loss")


def test_a_batch_in_parts_is_the_batch(tmp_path, data):
    pretrain(tiny(data, model=WITHOUT_DROPOUT), tmp_path / "whole")
    pretrain(tiny(data, model=WITHOUT_DROPOUT, accumulate=4), tmp_path / "parts")
    assert_close(weights(tmp_path / "whole"), weights(tmp_path / "parts"))


def test_what_is_written_beside_the_model(tmp_path, data):
    config = tiny(data)
    result = pretrain(config, tmp_path / "run", tensorboard=True)
    written = json.loads((tmp_path / "run" / "config.json").read_text())
    assert written["config"]["model"]["encoding"] == "diet-rel:segments=none"
    assert written["config"]["optimisation"]["bf16"] is False  # resolved for the device
    assert written["environment"]["torch"] == torch.__version__
    assert json.loads((tmp_path / "run" / "result.json").read_text())["masked_accuracy"] == result.masked_accuracy
    assert [step for step, _ in log(tmp_path / "run", "loss")] == list(range(4, STEPS + 1, 4))
    assert [step for step, _ in log(tmp_path / "run", "evaluation_loss")] == [8, 16, 24]
    assert len(list((tmp_path / "run" / "tensorboard").glob("events*"))) == 1
    kept = [path.name for path in checkpoint.steps(tmp_path / "run" / "checkpoints")]
    assert kept == ["step-00000020", "step-00000024"]


def test_bf16_is_near(tmp_path, data):
    exact, rounded = (pretrain(tiny(data, bf16=bf16), tmp_path / str(bf16)) for bf16 in (False, True))
    assert exact.loss != rounded.loss
    assert rounded.evaluation_loss == pytest.approx(exact.evaluation_loss, abs=0.05)


# What goes wrong.


def test_a_learning_rate_that_is_far_too_high(tmp_path, data):
    with pytest.raises(RunStopped, match=r"the loss or a gradient became NaN or infinite at step.*lower learning rate"):
        pretrain(tiny(data, learning_rate=1e30, warmup=0.0), tmp_path / "run")
    assert not (tmp_path / "run" / "result.json").exists()
    assert checkpoint.steps(tmp_path / "run" / "checkpoints") == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": 16}, "length: expected 32, of the rows in .*got 16"),
        ({"data": "nowhere"}, "data: expected a folder with tokenizer/ and shards/"),
    ],
)
def test_data_that_does_not_fit(tmp_path, data, changes, message):
    config = tiny(data)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        pretrain(replace(config, text=replace(config.text, **changes)), tmp_path / "run")


def test_a_text_with_bad_lines_can_be_tried_again_in_the_same_folder(tmp_path):
    rows = [json.dumps({"body": "\n".join(document)}) for document in open_corpus("builtin:600")]
    (tmp_path / "text.jsonl").write_text("\n".join([*rows, "{oops"]))
    text = Text(corpus=(f"en={tmp_path}/text.jsonl",), text_field="body", vocab_size=150, length=32, validation=0.2)
    config = replace(tiny(None, steps=2), text=text)
    with pytest.raises(ValueError, match=r"text\.jsonl, line 121: expected a JSON object"):
        pretrain(config, tmp_path / "run")
    pretrain(replace(config, text=replace(text, skip_bad_lines=True, vocab_size=120)), tmp_path / "run")
    shards = Shards(tmp_path / "run" / "data" / "shards")
    assert (shards.vocab_size, list(shards.languages)) == (120, ["en"])

    given = replace(text, skip_bad_lines=True, tokenizer=str(tmp_path / "run" / "data" / "tokenizer"), vocab_size=None)
    pretrain(replace(config, text=given), tmp_path / "given")
    assert Shards(tmp_path / "given" / "data" / "shards").index["tokenizer"] == shards.index["tokenizer"]


def test_what_was_left_out_is_told(tmp_path, capsys):
    from headway.cli.pretrain import _report_skipped

    index = tmp_path / "index.json"
    _report_skipped(index)
    index.write_text('{"skipped": 0, "shards": []}')
    _report_skipped(index)
    assert capsys.readouterr().out == ""
    index.write_text('{"skipped": 2, "shards": [{}, {"problems": ["a.txt, line 3: expected UTF-8. Convert it."]}]}')
    _report_skipped(index)
    assert "left out 2 bad lines of the text, such as a.txt, line 3: expected UTF-8; see" in capsys.readouterr().out


def test_a_tokenizer_to_which_the_text_is_unknown(tmp_path):
    config = tiny(None, steps=2)
    text = Text(corpus=("builtin:600",), vocab_size=10, length=32, validation=0.2)
    with pytest.raises(ValueError, match=r"text: \d\d% of its tokens are unknown"):
        pretrain(replace(config, text=text), tmp_path / "run")
    pretrain(replace(config, text=replace(text, vocab_size=120)), tmp_path / "run")


def test_a_vocabulary_that_leaves_numbers_out(tmp_path, data):
    tokenizer = json.loads((Path(data) / "tokenizer" / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {word: at if at < 5 else 2 * at for word, at in vocabulary.items()}
    shutil.copytree(Path(data) / "tokenizer", tmp_path / "tokenizer")
    (tmp_path / "tokenizer" / "tokenizer.json").write_text(json.dumps(tokenizer))
    text = Text(corpus=("builtin:600",), tokenizer=str(tmp_path / "tokenizer"), length=32, validation=0.2)
    pretrain(replace(tiny(None, steps=2), text=text), tmp_path / "run")
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "run" / "model")
    assert model.config.vocab_size == 2 * len(vocabulary) - 1
    shards = Shards(tmp_path / "run" / "data" / "shards")
    drawn = MlmBatches(shards, 200).batch(0)["input_ids"]
    assert not (drawn[drawn >= 5] % 2).any(), "no word is drawn that there is not"


# The command.


def command(*arguments):
    return CliRunner().invoke(app, ["pretrain", *arguments])


def test_the_command_from_a_text_file_to_a_model(tmp_path, monkeypatch):
    text = "\n\n".join("\n".join(document) for document in open_corpus("builtin:1500"))
    (tmp_path / "text.txt").write_text(text)
    monkeypatch.chdir(tmp_path)
    done = command(
        *("--corpus", "text.txt", "--set", "text.vocab_size=200", "--length", "32", "--set", "text.validation=0.1"),
        *("--encoding", "diet-abs:rank=4,sharing=layer,segments=per-head"),
        *("--steps", "5", "--batch", "4", "--cpu", "--set", "text.packed=true", "--resume"),
    )
    assert done.exit_code == 0, done.output
    assert "holds no run to resume: a new one begins" in done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("pretrain-tiny-diet-abs-")
    assert f"wrote runs/{folder.name}" in done.stdout
    assert "step 5/5  loss" in done.stderr
    model = AutoModelForMaskedLM.from_pretrained(folder / "model")
    assert model.config.encoding == "diet-abs:rank=4,sharing=layer,segments=per-head"
    assert model.config.vocab_size == 200


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--recipe", "papre"), "recipe: expected one of quick, small, paper"),
        (("--encoding", "dite"), "encoding: expected one of"),
        (("--encoding", "tisa:rank=3"), "options: tisa has kernels"),
        (("--steps", "0"), "steps: expected a whole number of at least 1"),
        (("--corpus", "missing.txt"), "missing.txt"),
        (("--encoding", "tisa:kernels=abc"), "kernels: expected int, got 'abc'"),
        (("--data", "x", "--corpus", "y", "--set", "text.vocab_size=9"), "beside --data, because x is made already"),
        (("--tokenizer", "x", "--set", "text.kind=word"), "beside --tokenizer, because x is trained already"),
        (("--set", "model.changes.encoding=t5"), "encoding: it is chosen by --encoding"),
        (
            ("--set", "model.changes.max_position_embeddings=8"),
            "8 positions are too few for texts of",
        ),
        (("--set", "model.changes.hidden_dropout_prob=no"), "hidden_dropout_prob: expected a share"),
        (("--tokenizer", "./nowhere"), "tokenizer: expected a folder with a tokenizer, or a name on the Hub"),
    ],
)
def test_bad_options_are_named_without_a_traceback(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    done = command("--cpu", *arguments)
    assert done.exit_code == 2
    assert message in done.output
    assert "Traceback" not in done.output
