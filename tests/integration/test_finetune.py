"""Fine-tuning from data to a result: it learns, resumes, repeats itself, and works on encoders that are not ours."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig, BertModel
from typer.testing import CliRunner

from headway.bench.data.text.tokenizers import train_tokenizer
from headway.bench.tasks.finetune import Data, Grid, Spans, Start, predictions, run, run_all
from headway.bench.tasks.finetune.recipes import quick
from headway.bench.tasks.training.run_folder import RunStopped
from headway.cli import app
from headway.models import EncoderForMaskedLM, preset

SIZES = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128}
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "initializer_range": 0.1}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """One of our encoders and one of transformers, neither pretrained, with the built-in language's tokenizer."""
    root = tmp_path_factory.mktemp("models")
    tokenizer = train_tokenizer("builtin:200", kind="word")
    words = {"vocab_size": len(tokenizer), "max_position_embeddings": 128}
    torch.manual_seed(0)
    models = {
        "ours": EncoderForMaskedLM(preset("tiny", encoding="learned+rope:segments=none", **words, **SIZES, **STILL)),
        "bert": BertModel(BertConfig(**words, **SIZES)),
    }
    for name, model in models.items():
        model.save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    return root


@pytest.fixture(scope="module")
def glue(tmp_path_factory):
    """SST-2's files, in which the label says whether a cat occurs; one row of the training file is broken."""
    root, rng = tmp_path_factory.mktemp("glue"), Random(0)
    (root / "SST-2").mkdir()

    def rows(count):
        for _ in range(count):
            label = rng.randrange(2)
            words = [rng.choice(["the", "dog", "sees", "some", "guard"]) for _ in range(rng.randrange(3, 12))]
            words[rng.randrange(len(words))] = "cat" if label else "queen"
            yield " ".join(words), label

    for split, count in (("train", 400), ("dev", 100)):
        lines = ["sentence\tlabel", *(f"{text}\t{label}" for text, label in rows(count))]
        if split == "train":
            lines.insert(7, "a broken row")
        (root / "SST-2" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    lines = ["index\tsentence", *(f"{index}\t{text}" for index, (text, _) in enumerate(rows(30)))]
    (root / "SST-2" / "test.tsv").write_text("\n".join(lines) + "\n")
    return root


def small(task, model, *, rates=(1e-3,), seeds=(0,), epochs=1, data=None, **protocol):
    """A quick sweep."""
    config = quick(task, Start(model=str(model)), data or Data())
    return replace(
        config,
        grid=Grid(rates=rates, seeds=seeds),
        protocol=replace(config.protocol, epochs=epochs, length=64, **protocol),
        spans=Spans(overlap=8, max_question=16, count=3),
    )


def test_a_built_in_task_is_learned_far_above_chance(folders, tmp_path):
    """An untrained encoder has an F1 of 0.1."""
    data = Data(limit=2400)
    config = small("builtin:questions", folders / "ours", rates=(5e-3,), batch=16, evaluate=50, data=data)
    result = run(config, tmp_path / "out", progress=False)
    assert result.score > 0.3
    assert [step for step, _ in result.runs[0]["history"]] == [50, 100, 150]
    assert max(score for _, score in result.runs[0]["history"]) == result.score == result.rates[0]["score"]["median"]


def test_an_encoder_of_transformers_goes_the_same_way(folders, glue, tmp_path):
    data = Data(train=(str(glue),), predict=(str(glue),), on_error="skip")
    result = run(
        small("sst2", folders / "bert", rates=(1e-3, 2e-3), epochs=3, data=data),
        tmp_path / "out",
        progress=False,
        baselines=True,
    )
    assert result.score > 0.95
    assert result.baselines["bag of words"]["accuracy"] > 0.95
    assert 0.4 < result.baselines["most frequent"]["accuracy"] < 0.7
    assert result.rates[0]["score"]["median"] >= result.rates[1]["score"]["median"]
    rows = {(split["use"], split["split"]): split for split in result.data}
    assert (rows["train", "train"]["rows"], rows["train", "train"]["skipped"]) == (400, 1)
    first = rows["train", "train"]["first_skipped"][0]
    assert "SST-2/train.tsv, line 8: expected 2 columns with tabs between them, got 1" in first
    assert rows["train", "train"]["published"] == 67_349

    lines = (tmp_path / "out" / "predictions" / "SST-2.tsv").read_text().splitlines()
    assert lines[0] == "index\tprediction"
    tests = (glue / "SST-2" / "test.tsv").read_text().splitlines()
    right = sum(("cat" in test) == line.endswith("\t1") for test, line in zip(tests[1:], lines[1:], strict=True))
    assert right >= 28

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out" / "model")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out" / "model").eval()
    with torch.no_grad():
        scores = model(**tokenizer("the cat sees some dog", return_tensors="pt")).logits
    assert model.config.id2label[scores.argmax().item()] == "1"
    left = {path.name for path in (tmp_path / "out" / "runs").glob("*/*")}
    assert left == {"config.json", "log.jsonl", "result.json"}  # one model is kept, and no checkpoint


def test_questions_transfer_and_answers_are_written(folders, tmp_path):
    data = Data(
        limit=160, transfer=("builtin:questions@dev",), predict=("builtin:questions@dev",), languages=("invented",)
    )
    result = run(small("builtin:questions", folders / "ours", data=data), tmp_path / "out", progress=False)
    summary = result.rates[0]
    assert set(summary["metrics"]) == {"dev score", "dev f1", "dev exact_match"}
    assert set(summary["transfer"]) == {
        f"builtin:questions {language} {metric}"
        for language in ("average", "invented")
        for metric in ("f1", "exact_match")
    }
    answers = json.loads((tmp_path / "out/predictions/builtin-questions-dev-invented.json").read_text())
    best = json.loads((tmp_path / "out/predictions/builtin-questions-dev-invented-nbest.json").read_text())
    assert len(answers) == 1000
    assert all(best[name][0]["text"] == text for name, text in answers.items())
    assert all(sum(each["probability"] for each in some) == pytest.approx(1.0) for some in best.values())
    assert all(1 <= len(some) <= 3 for some in best.values())


def test_pairs_transfer_to_another_language(folders, tmp_path):
    data = Data(limit=96, transfer=("builtin:similarity",))
    result = run(small("builtin:similarity", folders / "ours", data=data), tmp_path / "out", progress=False)
    languages = {name.split()[1] for name in result.rates[0]["transfer"]}
    assert languages == {"average", "english", "invented", "verb-final"}
    assert {split["language"] for split in result.data if split["use"] == "builtin:similarity"} == languages - {
        "average"
    }


def test_the_best_weights_are_those_of_the_metric_that_is_asked_for(folders, tmp_path):
    """Read from the log: the score is the metric, and `highest` what each metric reached in any evaluation."""
    config = small("builtin:similarity", folders / "ours", data=Data(limit=160), batch=16, evaluate=2)
    config = replace(config, protocol=replace(config.protocol, metric="spearman"))
    (done,) = run(config, tmp_path / "out", progress=False, cpu=True).runs
    log = next((tmp_path / "out").glob("runs/*/log.jsonl")).read_text().splitlines()
    evaluations = [entry for entry in map(json.loads, log) if "score" in entry]
    assert len(evaluations) == 5
    assert done["history"] == [[entry["step"], entry["dev spearman"]] for entry in evaluations]
    assert done["score"] == done["metrics"]["dev"]["spearman"] == max(entry["dev spearman"] for entry in evaluations)
    for metric in ("pearson", "spearman"):
        assert done["highest"]["dev"][metric] == max(entry[f"dev {metric}"] for entry in evaluations)


def weights(folder):
    return load_file(folder / "model" / "model.safetensors")


def test_a_killed_run_ends_the_same(folders, glue, tmp_path):
    """Killed between two checkpoints, after the best weights so far were saved; then taken on in another process."""
    data = Data(train=(str(glue),), on_error="skip")
    schedule = {"epochs": 2, "batch": 16, "evaluate": 3, "checkpoint": 5}
    config = small("sst2", folders / "ours", rates=(3e-4,), data=data, **schedule)
    code = f"from headway.bench.tasks.finetune import *; run({config!r}, {str(tmp_path / 'killed')!r}, cpu=True)"
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "killed").glob("runs/*/checkpoints/step-0000001*")) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / "killed" / "result.json").exists()
    with pytest.raises(FileExistsError, match=r"stopped run\. Add --resume"):
        run(config, tmp_path / "killed", cpu=True)

    first = run(config, tmp_path / "killed", resume=True, progress=False, cpu=True)
    second = run(config, tmp_path / "whole", progress=False, cpu=True)
    assert first.runs[0]["history"] == second.runs[0]["history"]
    assert first.runs[0]["highest"] == second.runs[0]["highest"]
    assert first.score == second.score
    weights = [load_file(tmp_path / name / "model" / "model.safetensors") for name in ("killed", "whole")]
    assert weights[0].keys() == weights[1].keys()
    for name, value in weights[0].items():
        assert torch.equal(value, weights[1][name]), name
    log = next((tmp_path / "killed").glob("runs/*/log.jsonl")).read_text().splitlines()
    steps = [json.loads(line)["step"] for line in log]
    assert steps == sorted(steps)  # what was logged twice is there once


@pytest.fixture
def one_thread(monkeypatch):
    """Here and in processes that are started: sums are rounded otherwise with another number of threads."""
    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_sweeps_share_the_processes_and_jobs_change_nothing(folders, glue, tmp_path):
    """Each run alone, and all runs of two tasks by two processes: the same scores, and the same weights are kept."""

    words = Data(train=(str(glue),), on_error="skip", limit=96)
    configs = [
        small("sst2", folders / "ours", seeds=(0, 1), data=words, batch=16),
        small("builtin:similarity", folders / "ours", data=Data(limit=64), batch=16),
    ]

    def outs(name):
        return [tmp_path / name / "sst2", tmp_path / name / "pairs"]

    alone = [run(*each, progress=False, cpu=True) for each in zip(configs, outs("alone"), strict=True)]
    together = run_all(configs, outs("together"), progress=False, cpu=True, jobs=2)
    for one, other in zip(alone, together, strict=True):
        assert [each["history"] for each in one.runs] == [each["history"] for each in other.runs]
        assert one.data == other.data
        assert one.score == other.score
    assert alone[0].rates[0]["scores"].keys() == {"0", "1"}
    assert alone[0].runs[0]["history"] != alone[0].runs[1]["history"] or alone[0].runs[0]["score"] == 1.0
    for name in ("sst2", "pairs"):
        kept = [weights(tmp_path / how / name) for how in ("alone", "together")]
        assert kept[0].keys() == kept[1].keys()
        assert all(torch.equal(value, kept[1][key]) for key, value in kept[0].items())
        assert not list((tmp_path / "together" / name).glob("runs/*/model"))
    with pytest.raises(ValueError, match="jobs: expected at least 1, got 0"):
        run(configs[0], tmp_path / "other", jobs=0)
    with pytest.raises(ValueError, match="outs: expected a folder for each sweep, got"):
        run_all(configs, [tmp_path / "other"] * 2)


def test_a_sweep_has_its_result_before_the_next_one_begins(folders, glue, tmp_path, monkeypatch):
    from headway.bench.tasks.finetune import workers

    data = Data(train=(str(glue),), on_error="skip", limit=32)
    first = small("sst2", folders / "ours", data=data, batch=16)
    second = replace(first, task="sst2", grid=Grid(rates=(1e-4,), seeds=(0,)))
    train = workers.finetune_once

    def stops_in_the_second(config, *args, **options):
        if config == second.resolved("cpu"):
            raise RuntimeError("stopped here")
        return train(config, *args, **options)

    monkeypatch.setattr(workers, "finetune_once", stops_in_the_second)
    with pytest.raises(RuntimeError, match="stopped here"):
        run_all([first, second], [tmp_path / "first", tmp_path / "second"], progress=False, cpu=True)
    assert (tmp_path / "first" / "result.json").exists() and not (tmp_path / "second" / "result.json").exists()


def test_a_failing_run_stops_the_others_and_leaves_what_is_done(folders, glue, tmp_path):
    data = Data(train=(str(glue),), on_error="skip", limit=64)
    config = small("sst2", folders / "ours", rates=(1e-3, 1e30), epochs=5, data=data)
    with pytest.raises(RunStopped, match=r"run 'sst2, rate 1e\+30, seed 0' diverged"):
        run(config, tmp_path / "out", progress=False, cpu=True, jobs=2)
    assert (tmp_path / "out/runs/rate-0.001-seed-0/result.json").exists()
    assert not (tmp_path / "out/result.json").exists()


def test_a_finished_sweep_is_read_and_a_changed_one_refused(folders, glue, tmp_path):
    data = Data(train=(str(glue),), on_error="skip", limit=64)
    config = small("sst2", folders / "ours", data=data)
    result = run(config, tmp_path / "out", progress=False)
    assert run(config, tmp_path / "out", resume=True, progress=False) == result
    with pytest.raises(FileExistsError, match=r"finished run\. Add --resume"):
        run(config, tmp_path / "out", progress=False)
    with pytest.raises(
        ValueError, match=r"baselines: expected a sweep that is not finished, .*out\. Leave --baselines"
    ):
        run(config, tmp_path / "out", resume=True, progress=False, baselines=True)
    changed = replace(config, protocol=replace(config.protocol, batch=8))
    with pytest.raises(ValueError, match=r"protocol.batch was 32 and is 8"):
        run(changed, tmp_path / "out", resume=True, progress=False)


def test_a_sweep_whose_data_changed_is_refused(folders, glue, tmp_path):
    mine = shutil.copytree(glue, tmp_path / "glue")
    data = Data(train=(str(mine),), on_error="skip", limit=64)
    config = small("sst2", folders / "ours", data=data)
    before = run(config, tmp_path / "out", progress=False)
    (tmp_path / "out" / "result.json").unlink()  # as if it had been killed before
    table = mine / "SST-2" / "dev.tsv"
    rows = table.read_text()
    table.write_text(rows[:-2] + str(1 - int(rows[-2])) + "\n")  # the last label is another
    with pytest.raises(ValueError, match=r"resume: .*out began with other data than .*glue.* has now"):
        run(config, tmp_path / "out", resume=True, progress=False)
    table.write_text(rows)
    assert run(config, tmp_path / "out", resume=True, progress=False).score == before.score


def test_a_rate_that_breaks_the_weights_is_named(folders, glue, tmp_path):
    data = Data(train=(str(glue),), on_error="skip")
    with pytest.raises(RunStopped, match=r"rate 1e\+30, seed 0' diverged: .* became NaN or infinite at step \d+"):
        run(small("sst2", folders / "ours", rates=(1e30,), epochs=5, data=data), tmp_path / "out", progress=False)


@pytest.mark.parametrize(
    ("task", "name"), [("sst2", "ours"), ("builtin:similarity", "bert"), ("builtin:questions", "bert")]
)
def test_a_last_update_that_breaks_the_weights_is_not_scored(folders, glue, tmp_path, task, name):
    """Its loss is of the weights before, and NaN would be a class, and perhaps the right one."""
    data = Data(train=(str(glue),) if task == "sst2" else (), on_error="skip", limit=32)
    config = small(task, folders / name, rates=(1e30,), data=data, batch=64, warmup=0.0)
    with pytest.raises(RunStopped, match=r"rate 1e\+30, seed 0' diverged: .* became NaN or infinite at step 1\."):
        run(config, tmp_path / "out", progress=False, cpu=True)


def test_scores_that_are_not_finite_are_not_predicted(folders, glue, tmp_path, monkeypatch):
    data = Data(train=(str(glue),), predict=(str(glue),), on_error="skip", limit=32)
    config = small("sst2", folders / "ours", data=data)
    monkeypatch.setattr(
        predictions, "model_scores", lambda loss, encoded, *_, **__: [np.full(2, np.nan)] * len(encoded)
    )
    with pytest.raises(RunStopped, match=r"predict: scores of sst2 test in en became NaN or infinite"):
        run(config, tmp_path / "out", progress=False, cpu=True)
    assert not (tmp_path / "out/predictions").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rte", "--data", "nowhere"), "nowhere: expected the split train of rte"),
        (("rtee",), "task: expected one of cola"),
        (("rte", "--data", "foo=bar"), "No task is called 'foo'"),
        (("rte", "--data", "x", "--recipe", "slow"), "recipe: expected one of full, quick"),
        (("sst2", "--data", "GLUE"), "line 8: expected 2 columns with tabs between them, got 1"),
        (("builtin:entailment", "--set", "start.segments=both"), "segments: expected one of"),
        (("rte", "rte", "--data", "x"), "tasks: expected each once, got rte rte"),
        (("sst2", "--data", "GLUE/SST-2/train.tsv"), "it would be evaluated on itself. Pass --dev"),
        (
            ("sst2", "rte", "--data", "x", "--set", "spans.overlap=8"),
            "--set spans.overlap: not used for tasks that are no questions.",
        ),
        (
            ("sst2", "--data", "x", "--set", "start.segments=input"),
            "--set start.segments: not used for tasks of single texts.",
        ),
        (("sst2", "--data", "x", "--languages", "de"), "languages: expected some of what is transferred to"),
        (
            ("builtin:questions", "--baselines"),
            "baselines: expected a task of classes or numbers, got builtin:questions",
        ),
        (("builtin:entailment", "--data", "GLUE"), "data: expected none for builtin:entailment, which is made"),
    ],
)
def test_bad_arguments_are_named(folders, glue, tmp_path, arguments, message):
    arguments = [each.replace("GLUE", str(glue)) for each in arguments]
    options = ["--model", str(folders / "ours"), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, ["finetune", *arguments, *options])
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())


def test_the_command_says_what_came_out(folders, glue, tmp_path):
    out = str(tmp_path / "out")
    options = ["--recipe", "quick", "--seeds", "2", "--epochs", "1", "--set=data.limit=64", "--length", "64", "--cpu"]
    arguments = [
        "finetune",
        "sst2",
        "--model",
        str(folders / "ours"),
        "--data",
        str(glue),
        "--set",
        "data.on_error=skip",
        "--out",
        out,
    ]
    done = CliRunner().invoke(app, [*arguments, *options])
    assert done.exit_code == 0, done.stderr
    assert "rate 3e-05: median " in done.stdout and " of 2 runs (from " in done.stdout
    assert "left out 1 bad rows of sst2 train" in done.stdout
    assert f"wrote {out}: result.json" in done.stdout
    assert "run 2/2: rate 3e-05, seed 1: dev accuracy" in done.stderr
    again = CliRunner().invoke(app, [*arguments, *options, "--resume"])
    assert again.stdout == done.stdout


def test_several_tasks_have_a_folder_each(folders, tmp_path):
    options = ["--recipe", "quick", "--seeds", "1", "--epochs", "1", "--set=data.limit=32", "--length", "64", "--cpu"]
    arguments = ["finetune", "builtin:acceptability", "builtin:similarity", "--model", str(folders / "ours")]
    done = CliRunner().invoke(app, [*arguments, *options, "--quiet", "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.endswith(":")] == ["builtin:acceptability:", "builtin:similarity:"]
    assert f"wrote {tmp_path}/out/builtin-similarity: result.json" in done.stdout
    assert (tmp_path / "out" / "builtin-acceptability" / "model" / "model.safetensors").exists()


def test_help_has_examples():
    done = CliRunner().invoke(app, ["finetune", "--help"])
    assert done.exit_code == 0
    assert "headway finetune rte --model" in done.stdout
