"""Training translation: it learns, it can be killed anywhere, many processes are one."""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from training_runs import assert_same_run, finished, forked_for, log, one_thread, saved_step, until, weights
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from headway.bench.data.translation.cleaning import Rules
from headway.bench.tasks.training import checkpoint
from headway.bench.tasks.translate import (
    Intervals,
    Optimisation,
    ParallelData,
    RunStopped,
    TranslateConfig,
    TranslatorChoice,
    run,
)

STEPS = 12
SIZES = {"encoder_layers": 1, "decoder_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 32}
STILL = {"hidden_dropout_prob": 0.0}
ABOVE_NOISE = 1e-4  # Adam's epsilon; with 1e-9 gradients that are zero but for rounding (keys' biases) move weights


_one_thread = pytest.fixture(scope="module", autouse=True)(one_thread)
forked = forked_for("headway.bench.tasks.translate")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Tokenizer and pairs that all tests share, made by a run of one step."""
    folder = tmp_path_factory.mktemp("first") / "run"
    source = ParallelData(source="builtin:600:0:max_depth=1", rules=Rules(max_tokens=48))
    train(replace(tiny(None, steps=1), data=source), folder)
    return str(folder / "data")


def tiny(data, *, model=None, seed=0, intervals=None, save="average", **plan):
    """A configuration whose run takes a second or two."""
    return TranslateConfig(
        model=TranslatorChoice(preset="tiny", encoding="diet-rel", changes={**SIZES, **(model or {})}),
        data=ParallelData(data=data, rules=Rules(max_tokens=48)),
        optimisation=Optimisation(
            **{"steps": STEPS, "tokens": 256, "step_tokens": 700, "warmup": 4, "learning_rate": 3e-3, **plan}
        ),
        intervals=intervals or Intervals(log=3, evaluate=6, checkpoint=3),
        save=save,
        average=2,
        seed=seed,
    )


def train(config, out, **options):
    return run(config, out, progress=False, cpu=True, **options)


def assert_same(one, other):
    assert_same_run(one, other, "word_accuracy")


# Learning, and what is written.


def test_the_loss_falls_and_what_is_written(tmp_path, data):
    config = tiny(data, steps=60, model=STILL, intervals=Intervals(log=10, evaluate=30, checkpoint=10))
    result = train(replace(config, data=replace(config.data, translated=5)), tmp_path / "run", tensorboard=True)
    losses = [loss for _, loss in log(tmp_path / "run", "loss")]
    assert losses[-1] < losses[0] - 1
    assert result.evaluation_loss == log(tmp_path / "run", "evaluation_loss")[-1][1]
    assert [step for step, *_ in log(tmp_path / "run", "bleu", "exact_match")] == [30, 60]
    assert result.bleu is not None
    assert result.saved == "the average of 2 checkpoints"
    assert json.loads((tmp_path / "run" / "result.json").read_text())["saved_loss"] == result.saved_loss
    written = json.loads((tmp_path / "run" / "config.json").read_text())
    assert written["config"]["optimisation"]["bf16"] is False
    assert {path.name for path in (tmp_path / "run").glob("[!.]*")} == {
        "checkpoints", "config.json", "log.jsonl", "model", "result.json", "tensorboard", "weights",
    }  # fmt: skip
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run" / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run" / "model")
    assert model.config.encoding == "diet-rel"
    assert model.config.vocab_size == len(tokenizer)
    assert model.config.decoder_start_token_id == tokenizer.bos_token_id


def test_the_saved_model_is_the_mean_of_the_last_checkpoints(tmp_path, data):
    train(tiny(data), tmp_path / "run")
    kept = sorted((tmp_path / "run" / "weights").iterdir())
    assert [path.name for path in kept] == ["step-00000009.safetensors", "step-00000012.safetensors"]
    one, other = map(load_file, kept)
    assert not torch.equal(one["model.encoder.words.weight"], other["model.encoder.words.weight"])
    for name, value in weights(tmp_path / "run").items():
        mean = (one[f"model.{name}"].double() + other[f"model.{name}"].double()) / 2
        torch.testing.assert_close(value, mean.float(), rtol=0, atol=0)


def test_the_best_checkpoint_is_saved(tmp_path, data):
    every = Intervals(log=3, evaluate=3, checkpoint=3, keep=9)
    rising = {"learning_rate": 3.0, "warmup": 8}  # good at first, then far too high
    result = train(tiny(data, intervals=every, save="best", **rising), tmp_path / "run")
    losses = dict(log(tmp_path / "run", "evaluation_loss"))
    best = min(losses, key=losses.get)
    assert best < STEPS, losses
    assert result.saved == f"the weights of step {best}"
    assert result.saved_loss == pytest.approx(losses[best], rel=1e-5)
    at_best = load_file(tmp_path / "run" / "checkpoints" / f"step-{best:08d}" / "model.safetensors")
    for name, value in weights(tmp_path / "run").items():
        assert torch.equal(value, at_best[f"model.{name}"])


# Being killed, and going on.


@pytest.mark.parametrize(
    ("save", "kills"), [("average", (0, 1, 2)), pytest.param("best", (1,), marks=pytest.mark.slow)]
)
def test_killed_anywhere_it_ends_with_the_same_bits(tmp_path, data, forked, save, kills):
    config = tiny(data, intervals=Intervals(log=3, evaluate=2, checkpoint=2), save=save)
    train(config, tmp_path / "whole")
    draw = random.Random()
    for checkpoints in kills:  # how many more there must be, before a moment at random
        process, errors = forked(config, tmp_path / "killed", resume=True)
        wanted = saved_step(tmp_path / "killed") + 2 * checkpoints
        until(lambda p=process, w=wanted: p.exitcode is not None or saved_step(tmp_path / "killed") >= w, errors)
        time.sleep(draw.uniform(0.0, 0.1))
        process.kill()
        process.join()
        assert process.exitcode in (-signal.SIGKILL, 0), errors.read_text()[-2000:]
    finished([forked(config, tmp_path / "killed", resume=True)])
    assert_same(tmp_path / "whole", tmp_path / "killed")
    assert not list((tmp_path / "killed").rglob("*.tmp"))


@pytest.mark.slow
@pytest.mark.parametrize("calls", [1, 4])
def test_interrupted_between_weights_and_checkpoint(tmp_path, data, monkeypatch, calls):
    train(tiny(data, save="best", intervals=Intervals(log=3, evaluate=3, checkpoint=3)), tmp_path / "whole")
    config = tiny(data, save="best", intervals=Intervals(log=3, evaluate=3, checkpoint=3))
    real, left = checkpoint.save_file, iter(range(calls))

    def dying(*arguments):
        if next(left, None) is None:
            raise KeyboardInterrupt
        real(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "save_file", dying)
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "run")
    train(config, tmp_path / "run", resume=True)
    assert_same(tmp_path / "whole", tmp_path / "run")


def test_resuming_with_another_configuration_and_a_finished_run(tmp_path, data):
    result = train(tiny(data), tmp_path / "run")
    assert train(tiny(data), tmp_path / "run", resume=True) == result
    with pytest.raises(ValueError, match=r"learning_rate was 0\.003 and is 0\.1; seed was 0 and is 1"):
        train(tiny(data, seed=1, learning_rate=0.1), tmp_path / "run", resume=True)
    with pytest.raises(FileExistsError, match=r"finished run\. Add --resume"):
        train(tiny(data), tmp_path / "run")


def test_resuming_with_data_that_changed(tmp_path, data):
    config = tiny(str(shutil.copytree(data, tmp_path / "data")), steps=2)
    train(config, tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()  # as if it had been killed before
    index = tmp_path / "data" / "train" / "index.json"
    index.write_text(json.dumps({**json.loads(index.read_text()), "made_of": "another text"}))
    with pytest.raises(ValueError, match=r"resume: .*run began with other data than .*data has now"):
        train(config, tmp_path / "run", resume=True)


def test_a_learning_rate_that_is_far_too_high_stops_the_run(tmp_path, data):
    with pytest.raises(RunStopped, match=r"the loss or a gradient became NaN or infinite at step.*lower learning rate"):
        train(tiny(data, learning_rate=1e30, warmup=1), tmp_path / "run")
    assert checkpoint.steps(tmp_path / "run" / "checkpoints") == []


def test_a_last_update_that_breaks_the_weights_stops_the_run(tmp_path, data):
    """Whose search for translations finds NaN."""
    config = tiny(data, steps=1, learning_rate=1e30, warmup=1)
    config = replace(config, data=replace(config.data, translated=4))
    with pytest.raises(RunStopped, match=r"evaluation after step 1: scores: the model gave NaN.*no checkpoint"):
        train(config, tmp_path / "run")


# Many processes.


def test_two_processes_follow_the_curve_of_one(tmp_path, data, forked):
    """Five batches a step, which two processes cannot share evenly."""
    changes = {"model": STILL, "step_tokens": 1000, "epsilon": ABOVE_NOISE}
    train(tiny(data, **changes), tmp_path / "one")
    finished(forked.pair(tiny(data, **changes), tmp_path / "two"))
    for (step, *one), (same, *two) in zip(
        log(tmp_path / "one", "loss", "gradient_norm"), log(tmp_path / "two", "loss", "gradient_norm"), strict=True
    ):
        assert step == same
        assert two == pytest.approx(one, rel=1e-3)
    one, two = (log(tmp_path / name, "evaluation_loss", "word_accuracy") for name in ("one", "two"))
    for left, right in zip(one, two, strict=True):
        assert right == pytest.approx(left, rel=1e-3)
    for name, value in weights(tmp_path / "one").items():
        torch.testing.assert_close(weights(tmp_path / "two")[name], value, atol=2e-4, rtol=1e-3)


@pytest.mark.slow  # in `make test` pretraining shares its parameters, with the same loop
def test_shared_parameters_follow_the_curve_of_one(tmp_path, data, forked):
    train(tiny(data, model=STILL, epsilon=ABOVE_NOISE), tmp_path / "one")
    finished(forked.pair(tiny(data, model=STILL, epsilon=ABOVE_NOISE), tmp_path / "two", fsdp=True))
    for name, value in weights(tmp_path / "one").items():
        torch.testing.assert_close(weights(tmp_path / "two")[name], value, atol=2e-4, rtol=1e-3)


def test_shared_parameters_do_not_translate_while_they_train(tmp_path, data):
    config = tiny(data)
    with pytest.raises(NotImplementedError, match="translated: expected 0 with --fsdp"):
        train(replace(config, data=replace(config.data, translated=5)), tmp_path / "three", fsdp=True)
