"""Pretraining as a whole: it learns, it can be killed anywhere, many processes are one, and it says what went wrong."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import random
import resource
import runpy
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, pipeline
from typer.testing import CliRunner

from headway.cli import app
from headway.data import Shards, open_corpus
from headway.tasks.pretrain import ModelChoice, Optimisation, PretrainConfig, Rhythm, RunStopped, Text, run
from headway.tasks.training import checkpoint
from headway.tasks.training.objective import MaskedWords

STEPS = 24
TINY = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
WITHOUT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """Models this small are slower on several; and the same bits need the same number."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Tokenizer and shards that all tests share, made by a run of one step."""
    folder = tmp_path_factory.mktemp("first") / "run"
    text = Text(corpus=("builtin:2000",), length=32, validation=0.1, evaluation_rows=48)
    run(replace(tiny(folder, "none"), text=text, optimisation=plan(steps=1)), progress=False, cpu=True)
    return str(folder / "data")


def plan(**changes):
    return Optimisation(**{"steps": STEPS, "batch": 8, "learning_rate": 1e-2, "warmup": 0.1, **changes})


def tiny(out, data, *, model=None, seed=0, rhythm=None, **changes):
    """A configuration whose run takes a second."""
    return PretrainConfig(
        model=ModelChoice(preset="tiny", encoding="diet-rel", changes={**TINY, **(model or {})}),
        text=Text(data=data, length=32, evaluation_rows=48),
        optimisation=plan(**changes),
        rhythm=rhythm or Rhythm(log=4, evaluate=8, checkpoint=4),
        seed=seed,
        out=str(out),
    )


def pretrain(config, **options):
    return run(config, progress=False, cpu=True, **options)


def weights(folder):
    return load_file(Path(folder) / "model" / "model.safetensors")


def log(folder, *names):
    lines = [json.loads(line) for line in (Path(folder) / "log.jsonl").read_text().splitlines()]
    return [tuple(line[name] for name in ("step", *names)) for line in lines if names[0] in line]


def assert_same_bits(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def assert_same_run(one, other):
    """The same weights, and the same numbers on the way to them."""
    assert_same_bits(weights(one), weights(other))
    for names in (("loss", "gradient_norm", "learning_rate"), ("evaluation_loss", "masked_accuracy")):
        assert log(one, *names) == log(other, *names)


def assert_close(one, other):
    """Up to rounding: Adam divides by the size of gradients, so that noise in tiny ones moves a weight."""
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], atol=2e-4, rtol=1e-3, msg=lambda m, n=name: f"{n}: {m}")


# Processes of their own, forked from one that has imported everything, so that each starts at once.

SCRIPT = """
import os
os.environ.update(ENVIRONMENT)
errors = os.open(ERRORS, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
os.dup2(errors, 2)
import torch
torch.set_num_threads(1)
from headway.tasks.pretrain import run
run(CONFIG, progress=False, cpu=True, **OPTIONS)
"""


@pytest.fixture(scope="module")
def forked(tmp_path_factory):
    """(config, environment, options) -> a process that runs it, and the file with its standard error."""
    folder = tmp_path_factory.mktemp("processes")
    (folder / "script.py").write_text(SCRIPT)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["headway.tasks.pretrain"])

    def start(config, environment=None, **options):
        errors = folder / f"errors-{time.monotonic_ns()}"
        given = {"CONFIG": config, "ENVIRONMENT": environment or {}, "ERRORS": str(errors), "OPTIONS": options}
        process = context.Process(target=runpy.run_path, args=(str(folder / "script.py"), given), daemon=True)
        process.start()
        return process, errors

    return start


@pytest.fixture
def pair(forked):
    """(config, options) -> two connected processes and their standard errors."""
    started = []

    def start(config, **options):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        for rank in ("0", "1"):
            environment = {**shared, "RANK": rank, "LOCAL_RANK": rank, "OMP_NUM_THREADS": "1"}
            started.append(forked(config, environment, **options))
        return started[-2:]

    yield start
    for process, _ in started:
        process.kill()


def finished(processes, seconds=120):
    for process, errors in processes:
        process.join(seconds)
        assert process.exitcode == 0, errors.read_text()[-2000:]


# Learning.


def test_it_learns_more_than_frequencies_and_the_saved_model_fills_masks(tmp_path, data):
    wider = {"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 128, **WITHOUT_DROPOUT}
    seldom = Rhythm(log=50, evaluate=500, checkpoint=500)
    result = pretrain(tiny(tmp_path / "run", data, model=wider, steps=500, batch=32, learning_rate=3e-3, rhythm=seldom))

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
    assert AutoModelForMaskedLM.from_pretrained(folder).config.encoding == "diet-rel"


def test_the_seed_decides(tmp_path, data):
    pretrain(tiny(tmp_path / "one", data))
    pretrain(tiny(tmp_path / "same", data))
    pretrain(tiny(tmp_path / "other", data, seed=1))
    assert_same_run(tmp_path / "one", tmp_path / "same")
    assert log(tmp_path / "one", "loss") != log(tmp_path / "other", "loss")


def test_a_batch_in_parts_is_the_batch(tmp_path, data):
    pretrain(tiny(tmp_path / "whole", data, model=WITHOUT_DROPOUT))
    pretrain(tiny(tmp_path / "parts", data, model=WITHOUT_DROPOUT, accumulate=4))
    assert_close(weights(tmp_path / "whole"), weights(tmp_path / "parts"))


def test_what_is_written_beside_the_model(tmp_path, data):
    config = tiny(tmp_path / "run", data)
    result = pretrain(config, tensorboard=True)
    written = json.loads((tmp_path / "run" / "config.json").read_text())
    assert written["config"]["model"]["encoding"] == "diet-rel"
    assert written["config"]["optimisation"]["bf16"] is False  # resolved for the device
    assert written["environment"]["torch"] == torch.__version__
    assert json.loads((tmp_path / "run" / "result.json").read_text())["masked_accuracy"] == result.masked_accuracy
    assert [step for step, _ in log(tmp_path / "run", "loss")] == list(range(4, STEPS + 1, 4))
    assert [step for step, _ in log(tmp_path / "run", "evaluation_loss")] == [8, 16, 24]
    assert len(list((tmp_path / "run" / "tensorboard").glob("events*"))) == 1
    kept = [path.name for path in checkpoint.steps(tmp_path / "run" / "checkpoints")]
    assert kept == ["step-00000020", "step-00000024"]


def test_bf16_is_near(tmp_path, data):
    exact, rounded = (pretrain(tiny(tmp_path / str(bf16), data, bf16=bf16)) for bf16 in (False, True))
    assert exact.loss != rounded.loss
    assert rounded.evaluation_loss == pytest.approx(exact.evaluation_loss, abs=0.05)


# Being killed, and going on.


def test_killed_anywhere_it_ends_with_the_same_bits(tmp_path, data, forked):
    often = Rhythm(log=3, evaluate=8, checkpoint=2)
    config = tiny(tmp_path / "killed", data, rhythm=often)
    pretrain(replace(config, out=str(tmp_path / "whole")))
    draw = random.Random()
    points = []
    for checkpoints in (0, 0, 1, 2, 1, 3, 2):  # how many more there must be, before a moment at random
        process, errors = forked(config, resume=True)
        saved = saved_step(config)
        until(lambda p=process, s=saved, c=checkpoints: p.exitcode == 0 or saved_step(config) >= s + 2 * c, errors)
        time.sleep(draw.uniform(0.0, 0.05 if checkpoints else 0.2))
        process.kill()
        process.join()
        points.append(saved_step(config))
        assert process.exitcode in (-signal.SIGKILL, 0), errors.read_text()[-2000:]
    assert len(set(points)) > 2, points
    finished([forked(config, resume=True)])
    assert_same_run(tmp_path / "whole", tmp_path / "killed")
    assert not list((tmp_path / "killed").rglob("*.tmp")), points


def saved_step(config):
    kept = checkpoint.steps(Path(config.out) / "checkpoints")
    return int(kept[-1].name.removeprefix("step-")) if kept else 0


def interrupted(config, monkeypatch, module, name, calls):
    """A run that ends within a function, after some calls of it, with no chance to clean up behind it."""
    real, left = getattr(module, name), iter(range(calls))

    def dying(*arguments, **options):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(module, name, dying)
        with pytest.raises(KeyboardInterrupt):
            pretrain(config)


@pytest.mark.parametrize(("name", "calls"), [("save_file", 3), ("save_file", 2 * 6 - 1), ("prune", 2), ("prune", 5)])
def test_interrupted_around_a_checkpoint(tmp_path, data, monkeypatch, name, calls):
    pretrain(tiny(tmp_path / "whole", data))
    interrupted(tiny(tmp_path / "run", data), monkeypatch, checkpoint, name, calls)
    pretrain(tiny(tmp_path / "run", data), resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_interrupted_between_the_model_and_the_result(tmp_path, data, monkeypatch):
    from headway.tasks.pretrain import pretraining as module

    interrupted(tiny(tmp_path / "run", data), monkeypatch, module, "write_json", 0)
    saved = weights(tmp_path / "run")
    result = pretrain(tiny(tmp_path / "run", data), resume=True)
    assert_same_bits(saved, weights(tmp_path / "run"))
    assert result.evaluation_loss == log(tmp_path / "run", "evaluation_loss")[-1][1]


def test_a_finished_run_returns_its_result_at_once(tmp_path, data):
    result = pretrain(tiny(tmp_path / "run", data))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*") if path.name != ".lock"}
    assert pretrain(tiny(tmp_path / "run", data), resume=True) == result
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*") if path.name != ".lock"}
    assert before == after
    with pytest.raises(FileExistsError, match=r"finished run\. Add --resume"):
        pretrain(tiny(tmp_path / "run", data))


def test_resuming_with_another_configuration(tmp_path, data, monkeypatch):
    interrupted(tiny(tmp_path / "run", data, model=WITHOUT_DROPOUT), monkeypatch, checkpoint, "prune", 2)
    with pytest.raises(FileExistsError, match=r"stopped run\. Add --resume"):
        pretrain(tiny(tmp_path / "run", data, model=WITHOUT_DROPOUT))
    with pytest.raises(ValueError, match=r"learning_rate was 0\.01 and is 0\.02; seed was 0 and is 1"):
        pretrain(tiny(tmp_path / "run", data, model=WITHOUT_DROPOUT, learning_rate=0.02, seed=1), resume=True)
    # How often it reports, and in how many parts it computes, is free.
    freed = tiny(tmp_path / "run", data, model=WITHOUT_DROPOUT, accumulate=2, rhythm=Rhythm(log=3, keep=1))
    pretrain(freed, resume=True)
    pretrain(tiny(tmp_path / "whole", data, model=WITHOUT_DROPOUT))
    assert_close(weights(tmp_path / "whole"), weights(tmp_path / "run"))


def test_two_runs_do_not_share_a_folder(tmp_path, data, forked):
    config = tiny(tmp_path / "run", data, steps=100_000, rhythm=Rhythm(log=1, checkpoint=1000))
    process, errors = forked(config)
    try:
        until(lambda: (tmp_path / "run" / "log.jsonl").exists(), errors)
        with pytest.raises(RunStopped, match="another process is training"):
            pretrain(config, resume=True)
    finally:
        process.kill()


def until(condition, errors, seconds=60):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, errors.read_text()[-2000:] if errors.exists() else "nothing happened"
        time.sleep(0.005)


# What goes wrong.


@pytest.mark.parametrize("rhythm", [Rhythm(log=100, checkpoint=2), Rhythm(log=5, checkpoint=2)])
def test_a_loss_that_is_not_finite_stops_it_before_it_is_saved(tmp_path, data, monkeypatch, rhythm):
    real, calls = MaskedWords.forward, iter(range(6))

    def broken(self, batch, count):
        return real(self, batch, count) * (math.nan if self.training and next(calls, None) is None else 1.0)

    config = tiny(tmp_path / "run", data, rhythm=rhythm)
    with monkeypatch.context() as patched:
        patched.setattr(MaskedWords, "forward", broken)
        with pytest.raises(RunStopped, match=r"NaN or infinity at step 7 .*last good checkpoint is .*step-00000006"):
            pretrain(config)
    last = checkpoint.steps(tmp_path / "run" / "checkpoints")[-1]
    assert last.name == "step-00000006"
    assert all(value.isfinite().all() for value in load_file(last / "model.safetensors").values())
    pretrain(config, resume=True)  # without the fault
    pretrain(replace(config, out=str(tmp_path / "whole")))
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_a_learning_rate_that_is_far_too_high(tmp_path, data):
    with pytest.raises(RunStopped, match=r"expected finite losses and gradients.*lower learning rate"):
        pretrain(tiny(tmp_path / "run", data, learning_rate=1e30, warmup=0.0))
    assert not (tmp_path / "run" / "result.json").exists()
    assert checkpoint.steps(tmp_path / "run" / "checkpoints") == []


def test_a_full_disk_stops_it_and_the_last_checkpoint_stays(tmp_path, data, monkeypatch):
    real, calls = checkpoint.save_file, iter(range(3))

    def on_a_full_disk(tensors, path):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        if next(calls, None) is None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))  # bytes; Python ignores the signal
        try:
            real(tensors, path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "save_file", on_a_full_disk)
        with pytest.raises(RunStopped, match=r"step-00000008: .*File too large.*step-00000004. Make room"):
            pretrain(tiny(tmp_path / "run", data))
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000004"]
    pretrain(tiny(tmp_path / "run", data), resume=True)
    pretrain(tiny(tmp_path / "whole", data))
    assert_same_run(tmp_path / "whole", tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": 16}, "length: expected 32, of the rows in .*got 16"),
        ({"data": "nowhere"}, "data: expected a folder with tokenizer/ and shards/"),
    ],
)
def test_data_that_does_not_fit(tmp_path, data, changes, message):
    config = tiny(tmp_path / "run", data)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        pretrain(replace(config, text=replace(config.text, **changes)))


def test_a_text_with_bad_lines_can_be_tried_again_in_the_same_folder(tmp_path):
    rows = [json.dumps({"body": "\n".join(document)}) for document in open_corpus("builtin:600")]
    (tmp_path / "text.jsonl").write_text("\n".join([*rows, "{oops"]))
    text = Text(corpus=(f"en={tmp_path}/text.jsonl",), text_field="body", vocab_size=150, length=32, validation=0.2)
    config = replace(tiny(tmp_path / "run", None, steps=2), text=text)
    with pytest.raises(ValueError, match=r"text\.jsonl, line 121: expected a JSON object"):
        pretrain(config)
    pretrain(replace(config, text=replace(text, skip_bad_lines=True, vocab_size=120)))
    shards = Shards(tmp_path / "run" / "data" / "shards")
    assert (shards.vocab_size, list(shards.languages)) == (120, ["en"])

    given = replace(text, skip_bad_lines=True, tokenizer=str(tmp_path / "run" / "data" / "tokenizer"), vocab_size=None)
    pretrain(replace(config, text=given, out=str(tmp_path / "given")))
    assert Shards(tmp_path / "given" / "data" / "shards").index["tokenizer"] == shards.index["tokenizer"]


def test_a_tokenizer_to_which_the_text_is_unknown(tmp_path):
    config = tiny(tmp_path / "run", None, steps=2)
    text = Text(corpus=("builtin:600",), vocab_size=10, length=32, validation=0.2)
    with pytest.raises(ValueError, match=r"text: expected a tokenizer .* got one to which \d\d% of its tokens"):
        pretrain(replace(config, text=text))
    pretrain(replace(config, text=replace(text, vocab_size=120)))


# Several processes.


def test_a_batch_that_processes_cannot_share(tmp_path, data, pair):
    started = pair(tiny(tmp_path / "run", data, batch=7))
    for process, errors in started:
        process.join(60)
        assert process.exitcode == 1
        assert "batch: expected a multiple of 2 (2 processes x 1 accumulated parts), got 7" in errors.read_text()


@pytest.mark.parametrize("fsdp", [False, True])
def test_two_processes_are_one_and_resume(tmp_path, data, pair, fsdp):
    config = tiny(tmp_path / "two", data, model=WITHOUT_DROPOUT, steps=12)
    pretrain(replace(config, out=str(tmp_path / "one")))
    started = pair(config, fsdp=fsdp)
    until(lambda: checkpoint.steps(tmp_path / "two" / "checkpoints"), started[0][1])
    for process, _ in started:
        process.kill()
    finished(pair(config, fsdp=fsdp, resume=True))
    for name in ("loss", "gradient_norm", "evaluation_loss", "masked_accuracy"):
        one, two = (np.array(log(tmp_path / run, name)) for run in ("one", "two"))
        np.testing.assert_allclose(two, one, rtol=2e-4)
    assert_close(weights(tmp_path / "one"), weights(tmp_path / "two"))


@pytest.mark.parametrize("victim", [0, 1])
def test_a_dead_process_stops_the_others(tmp_path, data, pair, victim):
    config = tiny(tmp_path / "run", data, steps=100_000, rhythm=Rhythm(log=10, evaluate=100_000, checkpoint=10))
    started = pair(config)
    until(lambda: checkpoint.steps(tmp_path / "run" / "checkpoints"), started[0][1])
    started[victim][0].kill()
    survivor, errors = started[1 - victim]
    survivor.join(60)
    assert survivor.exitcode == 1
    said = errors.read_text()
    assert f"process {1 - victim}: expected all 2 processes to answer" in said
    assert "The last good checkpoint is" in said
    assert "--resume" in said


# The command.


def command(*arguments):
    return CliRunner().invoke(app, ["pretrain", *arguments])


@pytest.mark.slow  # three processes import everything; test_two_processes_are_one_and_resume is the quick one
def test_the_command_under_torchrun_follows_one_process(tmp_path, data):
    pretrain(tiny(tmp_path / "one", data, model=WITHOUT_DROPOUT))
    sizes = [f"--set={name}={value}" for name, value in {**TINY, **WITHOUT_DROPOUT}.items()]
    asked = (
        *("--model", "tiny", "--encoding", "diet-rel", *sizes, "--data", data, "--length", "32"),
        *("--steps", str(STEPS), "--batch", "8", "--learning-rate", "0.01", "--warmup", "0.1"),
        *(
            "--log-every",
            "4",
            "--evaluate-every",
            "8",
            "--checkpoint-every",
            "4",
            "--cpu",
            "--out",
            str(tmp_path / "two"),
        ),
    )
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*torchrun, "-m", "headway", "pretrain", *asked], capture_output=True, text=True, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count(f"wrote {tmp_path / 'two'}") == 1
    one, two = (np.array(log(tmp_path / run, "loss")) for run in ("one", "two"))
    np.testing.assert_allclose(two, one, rtol=2e-4)
    assert_close(weights(tmp_path / "one"), weights(tmp_path / "two"))


def test_the_command_from_a_text_file_to_a_model(tmp_path, monkeypatch):
    text = "\n\n".join("\n".join(document) for document in open_corpus("builtin:1500"))
    (tmp_path / "text.txt").write_text(text)
    monkeypatch.chdir(tmp_path)
    done = command(
        *("--corpus", "text.txt", "--vocab-size", "200", "--length", "32", "--validation", "0.1"),
        *("--encoding", "diet-abs", "--option", "rank=4", "--sharing", "layer", "--segments", "per-head"),
        *("--steps", "5", "--batch", "4", "--cpu", "--packed", "--resume"),
    )
    assert done.exit_code == 0, done.output
    assert "holds no run to resume: a new one begins" in done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("pretrain-tiny-diet-abs-")
    assert f"wrote runs/{folder.name}" in done.stdout
    assert "step 5/5  loss" in done.stderr
    model = AutoModelForMaskedLM.from_pretrained(folder / "model")
    assert (model.config.sharing, model.config.segments) == ("layer", "per-head")
    assert model.config.encoding_options == {"rank": 4}
    assert model.config.vocab_size == 200


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--recipe", "papre"), "recipe: expected one of quick, small, paper"),
        (("--encoding", "dite"), "encoding: expected one of"),
        (("--option", "rank"), "--option: expected NAME=VALUE"),
        (("--encoding", "tisa", "--option", "rank=3"), "options: expected of tisa"),
        (("--steps", "0"), "steps: expected a whole number of at least 1"),
        (("--corpus", "missing.txt"), "missing.txt"),
        (("--encoding", "tisa", "--option", "kernels=abc"), "kernels: expected int, got 'abc'"),
        (("--data", "x", "--corpus", "y", "--vocab-size", "9"), "data: expected none of --corpus, --vocab-size beside"),
        (("--tokenizer", "./nowhere"), "tokenizer: expected a folder with a tokenizer, or a name on the Hub"),
    ],
)
def test_bad_options_are_named_without_a_traceback(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    done = command("--cpu", *arguments)
    assert done.exit_code == 2
    assert message in done.output
    assert "Traceback" not in done.output
