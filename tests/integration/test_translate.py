"""Translation as a whole: it learns, it can be killed anywhere, many processes are one, text goes in and comes out."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from training_runs import assert_same_run, finished, forked_for, log, one_thread, saved_step, until, weights
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
from typer.testing import CliRunner

from headway.cli.translate import translate as app
from headway.data.translation.cleaning import Rules
from headway.data.translation.parallel import open_parallel
from headway.tasks.training import checkpoint
from headway.tasks.translate import (
    ModelChoice,
    Optimisation,
    ParallelData,
    Rhythm,
    RunStopped,
    TranslateConfig,
    Translator,
    run,
)

STEPS = 12
SIZES = {"encoder_layers": 1, "decoder_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 32}
STILL = {"hidden_dropout_prob": 0.0}
ABOVE_NOISE = 1e-4  # Adam's epsilon; with 1e-9 gradients that are zero but for rounding (keys' biases) move weights


_one_thread = pytest.fixture(scope="module", autouse=True)(one_thread)
forked = forked_for("headway.tasks.translate")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Tokenizer and pairs that all tests share, made by a run of one step."""
    folder = tmp_path_factory.mktemp("first") / "run"
    source = ParallelData(source="builtin:600:0:max_depth=1", rules=Rules(max_tokens=48))
    train(replace(tiny(folder, None, steps=1), data=source))
    return str(folder / "data")


def tiny(out, data, *, model=None, seed=0, rhythm=None, save="average", **plan):
    """A configuration whose run takes a second or two."""
    return TranslateConfig(
        model=ModelChoice(preset="tiny", encoding="diet-rel", changes={**SIZES, **(model or {})}),
        data=ParallelData(data=data, rules=Rules(max_tokens=48)),
        optimisation=Optimisation(
            **{"steps": STEPS, "tokens": 256, "step_tokens": 700, "warmup": 4, "learning_rate": 3e-3, **plan}
        ),
        rhythm=rhythm or Rhythm(log=3, evaluate=6, checkpoint=3),
        save=save,
        average=2,
        seed=seed,
        out=str(out),
    )


def train(config, **options):
    return run(config, progress=False, cpu=True, **options)


def assert_same(one, other):
    assert_same_run(one, other, "word_accuracy")


# Learning, and what is written.


def test_the_loss_falls_and_what_is_written(tmp_path, data):
    config = tiny(tmp_path / "run", data, steps=60, model=STILL, rhythm=Rhythm(log=10, evaluate=30, checkpoint=10))
    result = train(replace(config, data=replace(config.data, translated=5)), tensorboard=True)
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
    train(tiny(tmp_path / "run", data))
    kept = sorted((tmp_path / "run" / "weights").iterdir())
    assert [path.name for path in kept] == ["step-00000009.safetensors", "step-00000012.safetensors"]
    one, other = map(load_file, kept)
    assert not torch.equal(one["model.encoder.words.weight"], other["model.encoder.words.weight"])
    for name, value in weights(tmp_path / "run").items():
        mean = (one[f"model.{name}"].double() + other[f"model.{name}"].double()) / 2
        torch.testing.assert_close(value, mean.float(), rtol=0, atol=0)


def test_the_best_checkpoint_is_saved(tmp_path, data):
    every = Rhythm(log=3, evaluate=3, checkpoint=3, keep=9)
    rising = {"learning_rate": 3.0, "warmup": 8}  # good at first, then far too high
    result = train(tiny(tmp_path / "run", data, rhythm=every, save="best", **rising))
    losses = dict(log(tmp_path / "run", "evaluation_loss"))
    best = min(losses, key=losses.get)
    assert best < STEPS, losses
    assert result.saved == f"the weights of step {best}"
    assert result.saved_loss == pytest.approx(losses[best], rel=1e-5)
    at_best = load_file(tmp_path / "run" / "checkpoints" / f"step-{best:08d}" / "model.safetensors")
    for name, value in weights(tmp_path / "run").items():
        assert torch.equal(value, at_best[f"model.{name}"])


# Being killed, and going on.


@pytest.mark.parametrize(("save", "kills"), [("average", (0, 1, 2)), ("best", (1,))])
def test_killed_anywhere_it_ends_with_the_same_bits(tmp_path, data, forked, save, kills):
    config = tiny(tmp_path / "killed", data, rhythm=Rhythm(log=3, evaluate=2, checkpoint=2), save=save)
    train(replace(config, out=str(tmp_path / "whole")))
    draw = random.Random()
    for checkpoints in kills:  # how many more there must be, before a moment at random
        process, errors = forked(config, resume=True)
        wanted = saved_step(config) + 2 * checkpoints
        until(lambda p=process, w=wanted: p.exitcode is not None or saved_step(config) >= w, errors)
        time.sleep(draw.uniform(0.0, 0.1))
        process.kill()
        process.join()
        assert process.exitcode in (-signal.SIGKILL, 0), errors.read_text()[-2000:]
    finished([forked(config, resume=True)])
    assert_same(tmp_path / "whole", tmp_path / "killed")
    assert not list((tmp_path / "killed").rglob("*.tmp"))


@pytest.mark.slow
@pytest.mark.parametrize("calls", [1, 4])
def test_interrupted_between_weights_and_checkpoint(tmp_path, data, monkeypatch, calls):
    train(tiny(tmp_path / "whole", data, save="best", rhythm=Rhythm(log=3, evaluate=3, checkpoint=3)))
    config = tiny(tmp_path / "run", data, save="best", rhythm=Rhythm(log=3, evaluate=3, checkpoint=3))
    real, left = checkpoint.save_file, iter(range(calls))

    def dying(*arguments):
        if next(left, None) is None:
            raise KeyboardInterrupt
        real(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "save_file", dying)
        with pytest.raises(KeyboardInterrupt):
            train(config)
    train(config, resume=True)
    assert_same(tmp_path / "whole", tmp_path / "run")


def test_resuming_with_another_configuration_and_a_finished_run(tmp_path, data):
    result = train(tiny(tmp_path / "run", data))
    assert train(tiny(tmp_path / "run", data), resume=True) == result
    with pytest.raises(ValueError, match=r"learning_rate was 0\.003 and is 0\.1; seed was 0 and is 1"):
        train(tiny(tmp_path / "run", data, seed=1, learning_rate=0.1), resume=True)
    with pytest.raises(FileExistsError, match=r"finished run\. Add --resume"):
        train(tiny(tmp_path / "run", data))


def test_resuming_with_data_that_changed(tmp_path, data):
    config = tiny(tmp_path / "run", str(shutil.copytree(data, tmp_path / "data")), steps=2)
    train(config)
    (tmp_path / "run" / "result.json").unlink()  # as if it had been killed before
    index = tmp_path / "data" / "train" / "index.json"
    index.write_text(json.dumps({**json.loads(index.read_text()), "made_of": "another text"}))
    with pytest.raises(ValueError, match=r"resume: expected the data that .*run began with, got others in .*data"):
        train(config, resume=True)


def test_a_learning_rate_that_is_far_too_high_stops_the_run(tmp_path, data):
    with pytest.raises(RunStopped, match=r"expected finite losses and gradients.*lower learning rate"):
        train(tiny(tmp_path / "run", data, learning_rate=1e30, warmup=1))
    assert checkpoint.steps(tmp_path / "run" / "checkpoints") == []


def test_a_last_update_that_breaks_the_weights_stops_the_run(tmp_path, data):
    """Whose search for translations finds NaN."""
    config = tiny(tmp_path / "run", data, steps=1, learning_rate=1e30, warmup=1)
    config = replace(config, data=replace(config.data, translated=4))
    with pytest.raises(RunStopped, match=r"evaluation: after step 1, scores: expected numbers, got NaN.*no checkpoint"):
        train(config)


# Many processes.


def test_two_processes_follow_the_curve_of_one(tmp_path, data, forked):
    """Five batches a step, which two processes cannot share evenly."""
    changes = {"model": STILL, "step_tokens": 1000, "epsilon": ABOVE_NOISE}
    train(tiny(tmp_path / "one", data, **changes))
    finished(forked.pair(tiny(tmp_path / "two", data, **changes)))
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


def test_shared_parameters_follow_the_curve_of_one(tmp_path, data, forked):
    train(tiny(tmp_path / "one", data, model=STILL, epsilon=ABOVE_NOISE))
    finished(forked.pair(tiny(tmp_path / "two", data, model=STILL, epsilon=ABOVE_NOISE), fsdp=True))
    for name, value in weights(tmp_path / "one").items():
        torch.testing.assert_close(weights(tmp_path / "two")[name], value, atol=2e-4, rtol=1e-3)
    config = tiny(tmp_path / "three", data)
    with pytest.raises(NotImplementedError, match="translated: expected 0 with fsdp"):
        train(replace(config, data=replace(config.data, translated=5)), fsdp=True)


# The commands.


def command(*arguments, **options):
    return CliRunner().invoke(app, [str(each) for each in arguments], **options)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Files of the built-in language, with an empty line, a misaligned copy and a wrongly encoded one."""
    folder = tmp_path_factory.mktemp("corpus")
    pairs = [(pair.source, pair.target) for pair in open_parallel("builtin:300:0:max_depth=0", split="train")]
    pairs[5] = (pairs[5][0], "")
    for side, name in enumerate(("train.en", "train.de")):
        (folder / name).write_text("".join(each[side] + "\n" for each in pairs))
    (folder / "short.de").write_text("".join(each[1] + "\n" for each in pairs[:200]))
    (folder / "latin.de").write_bytes(b"".join(b"\xe4\n" if n == 9 else b"ok\n" for n in range(300)))
    (folder / "empty.en").write_text("")
    return folder


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("command") / "run"
    small = [f"--set={name}={value}" for name, value in SIZES.items()]
    done = command(
        "train", "--source", corpus / "train.en", "--target", corpus / "train.de", "--vocab-size", 300, "--steps", 6,
        "--encoding", "shaw", "--encoding-option", "clip=4", "--encoding-option", "values=false", *small,
        "--max-tokens", 64, "--held-out", 0.1, "--out", out, "--cpu",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    return out, done


def test_the_train_command_says_what_it_did(trained):
    out, done = trained
    assert "left out of train: 1 empty" in done.output
    assert f"wrote {out}:" in done.output
    assert f"headway translate decode INPUT --model {out}/model" in done.output
    config = json.loads((out / "model" / "config.json").read_text())
    assert (config["encoding"], config["encoding_options"]) == ("shaw", {"clip": 4, "values": False})
    index = json.loads((out / "data" / "train" / "index.json").read_text())
    dev = json.loads((out / "data" / "dev" / "index.json").read_text())
    assert index["pairs"] + dev["pairs"] == 299


def test_decode_from_a_file_keeps_the_order_and_the_empty_lines(trained, tmp_path):
    model, lines = trained[0] / "model", ["the dog jumps .", "", "a cat sees the dog ."]
    (tmp_path / "in.txt").write_text("\n".join(lines) + "\n")
    done = command("decode", tmp_path / "in.txt", "--model", model, "--out", tmp_path / "out.txt", "--cpu", "--jobs", 1)
    assert done.exit_code == 0, done.output
    written = (tmp_path / "out.txt").read_text().split("\n")
    assert len(written) == 4 and written[1] == written[3] == ""
    translator = Translator.load(model, device="cpu")
    assert written[:3] == [best[0].text for best in translator.translate(lines)]

    done = command("decode", tmp_path / "in.txt", "--model", model, "--n-best", 2, "--cpu", "--max-length-plus", 5)
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "2", "3", "3"]
    assert float(rows[0][1]) >= float(rows[1][1])


def test_decode_from_standard_input_in_a_process_of_its_own(trained):
    text = "the dog jumps .\n\n" + "the dog sees a cat . " * 40 + "\n"
    code = "from headway.cli.translate import translate; translate()"
    arguments = ["decode", "-", "--model", str(trained[0] / "model"), "--cpu", "--beam", "2"]
    done = subprocess.run([sys.executable, "-c", code, *arguments], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split("\n")) == 4
    assert done.stdout.split("\n")[1] == ""
    assert "1 lines of more than" in done.stderr


def test_the_score_command_compares_with_the_first(tmp_path):
    reference = [f"the dog number {n} jumps over the small green hill ." for n in range(40)]
    for name, lines in {
        "reference": reference,
        "good": reference,
        "bad": [w.replace("jumps", "x") for w in reference],
    }.items():
        (tmp_path / name).write_text("".join(line + "\n" for line in lines))
    done = command(
        "score", tmp_path / "good", tmp_path / "bad", "--reference", tmp_path / "reference", "--samples", 200,
        "--out", tmp_path / "scores.json",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "good: BLEU 100.00, chrF 100.00, exact 100.00%" in done.output
    assert "BLEU: nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:" in done.output
    written = json.loads((tmp_path / "scores.json").read_text())
    bad = next(row for row in written["bootstrap"]["rows"] if row["system"].endswith("bad") and row["metric"] == "BLEU")
    assert bad["p_value"] < 0.05
    done = command("score", tmp_path / "good", "--reference", trained_short(tmp_path))
    assert done.exit_code == 2
    assert "references[0]: expected 40 lines, as many as there are translations, got 3" in flat(done.output)


def trained_short(folder):
    (folder / "short").write_text("a\nb\nc\n")
    return folder / "short"


def flat(text):
    return " ".join(text.replace("│", " ").split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "--recipe", "papre"), "recipe: expected one of quick, small, shaw-base, shaw-big, diet-base"),
        (("train", "--encoding", "dite"), "encoding: expected one of"),
        (("train", "--encoding-option", "clip"), "--encoding-option: expected NAME=VALUE, got 'clip'"),
        (("train", "--source", "none.en", "--target", "none.de"), "source: expected a file, hub:NAME or builtin"),
        (("train", "--source", "CORPUS/train.en", "--target", "CORPUS/short.de"), "(300), got 200"),
        (("train", "--source", "CORPUS/train.en", "--target", "CORPUS/latin.de"), "line 10: expected UTF-8"),
        (("train", "--source", "CORPUS/empty.en", "--target", "CORPUS/train.de"), "expected text, got an empty file"),
        (("train", "--source", "CORPUS/train.en", "--target", "CORPUS/train.de", "--strict"), "empty target (empty)"),
        (
            ("train", "--source", "CORPUS/train.en", "--target", "CORPUS/train.de", "--held-out", "0.0001"),
            "raise --held-out",
        ),
        (("train", "--source", "builtin:20:0:max_depth=99"), "max_depth: expected an integer from 0 to 30"),
        (("train", "--source", "builtin:20", "--max-tokens", "2"), "Raise --max-tokens, which is 2."),
        (
            ("train", "--source", "CORPUS/train.en", "--dev-source", "CORPUS/train.en", "--held-out", "0.1"),
            "held_out: expected none beside dev_source",
        ),
        (("train", "--held-out", "0.1"), "held_out: expected none beside builtin"),
        (
            ("train", "--source", "hub:x", "--languages", "en-de", "--held-out", "0.1"),
            "held_out: expected none beside hub:x",
        ),
        (("train", "--source", "builtin:20", "--tokens", "16"), "tokens: expected at least"),
        (("decode", "none.txt", "--model", "MODEL"), "input: expected a file, or - for standard input"),
        (("decode", "-", "--model", "nowhere"), "model: expected a folder such as model/ of a run"),
        (("decode", "-", "--model", "MODEL/.."), "/../model'?"),
        (("decode", "CORPUS/latin.de", "--model", "MODEL"), "Convert the file (iconv -f LATIN1 -t UTF-8)."),
        (("decode", "CORPUS/train.en", "--model", "MODEL", "--top-k", "3"), "expected --sample beside them"),
        (("train", "--data", "x", "--source", "CORPUS/train.en"), "data: expected none of --source beside it"),
        (
            ("train", "--data", "x", "--languages", "en-de", "--strict"),
            "expected none of --languages, --strict beside it",
        ),
        (("train", "--encoding", "shaw", "--encoding-option", "clip=x"), "clip: expected int or None, got 'x'"),
        (
            ("decode", "CORPUS/train.en", "--model", "MODEL", "--n-best", "9"),
            "n_best: expected at most beam (4), got 9",
        ),
        (("decode", "-", "--model", "MODEL", "--out", "CORPUS"), "which is a folder. Name a file in it."),
        (
            ("decode", "none.txt", "--model", "nowhere", "--sample", "--beam", "7"),
            "beam: expected none beside --sample",
        ),
        (
            ("decode", "none.txt", "--model", "nowhere", "--max-length-ratio", "nan"),
            "max_length_ratio: expected a finite",
        ),
        (("decode", "none.txt", "--model", "MODEL", "--tokens", "0"), "tokens: expected at least 1, got 0"),
        (
            ("score", "none.en", "--reference", "none.de", "--samples", "9"),
            "samples: expected several files to compare",
        ),
        (("score", "none.en", "--reference", "none.de", "--jobs", "2"), "Leave --jobs out."),
        (("score", "a", "b", "--reference", "none.de", "--jobs", "0"), "jobs: expected at least 1, got 0"),
        (("score", "none.en", "--reference", "none.de", "--out", "CORPUS"), "which is a folder. Name a file in it."),
        (("score", "none.en", "--reference", "none.de", "--out", "CORPUS/train.en/a"), "train.en, which is a file."),
        (("score", "CORPUS/train.en", "--reference", "none.de"), "input: expected a text file, got 'none.de'"),
        (("score", "a", "a", "--reference", "b"), "translations: expected each file once, got a, a"),
        (
            ("score", "CORPUS/train.en", "CORPUS/train.de", "--reference", "CORPUS/train.de", "--samples", "0"),
            "samples: expected at least 1, got 0",
        ),
    ],
)
def test_bad_input_is_named_without_a_traceback(tmp_path, monkeypatch, corpus, trained, arguments, message):
    monkeypatch.chdir(tmp_path)
    places = {"CORPUS": str(corpus), "MODEL": str(trained[0] / "model")}
    for name, place in places.items():
        arguments = [each.replace(name, place) for each in arguments]
    done = command(*arguments, *([] if arguments[0] == "score" else ["--cpu"]))
    assert done.exit_code == 2, done.output
    assert message.replace(" ", "") in flat(done.output).replace(" ", "")
    assert "Traceback" not in done.output


def test_help_has_an_example():
    for name in ("train", "decode", "score"):
        done = command(name, "--help")
        assert f"headway translate {name}" in flat(done.output)
