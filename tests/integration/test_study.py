"""A whole study: from a plan in a file to a page; killed, continued, refused where it must be."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from headway.bench.judge import WORST_FIRST
from headway.cli.study import report, study

ROOT = Path(__file__).parents[2]
app = typer.Typer(rich_markup_mode=None)
app.command()(study)
app.command()(report)

PLAN = textwrap.dedent(
    """
    from dataclasses import replace
    from headway.bench.study.plan import RowClaim, Column, Plan, Row
    from headway.bench.study.plans.recipes import builtin_finetuning
    from headway.bench.study.plans.translation_tables import builtin_translation
    from headway.bench.tasks.finetune import Grid
    from headway.bench.tasks.pretrain import EncoderChoice, Optimisation, PretrainConfig, Intervals, Text

    SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


    def plan(size, data):
        task = "builtin:acceptability"
        tuning = builtin_finetuning(task, rate=1e-3, epochs=1, limit=96)
        return Plan(
            name="small",
            size=size,
            title="A small study",
            rows=(Row(name="none", encoding="none"), Row(name="diet-rel", encoding="diet-rel", position_rate=10.0)),
            columns=(
                Column(name="Words", source="pretrain", value="masked_accuracy"),
                Column(name="Acceptability", source="finetune", task=task, chance=0.0),
                Column(name="64 tokens", source="lengths", value="64", scale=1.0, higher=False),
                Column(name="Mean", source="mean", task="Words,Acceptability"),
            ),
            baseline="none",
            pretrain=PretrainConfig(
                model=EncoderChoice(preset="tiny", changes=SIZES),
                text=Text(corpus=("builtin:600",), length=32, validation=0.1, evaluation_rows=32),
                optimisation=Optimisation(steps=STEPS, batch=8, learning_rate=3e-3),
                intervals=Intervals(log=5, evaluate=1000, checkpoint=10),
            ),
            finetune={task: replace(tuning, grid=Grid(rates=(1e-3, 2e-3), seeds=(0, 1)))},
            analyse=True,
            lengths=(32, 64),
            claims=(RowClaim(says="position helps", column="Words", better=("diet-rel",), than=("none",)),),
        )
    """
)


def call(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments])


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    (folder / "plan.py").write_text(PLAN.replace("STEPS", "20"))
    return folder


@pytest.fixture(scope="module")
def done(root):
    """The study, once, in two slices."""
    first = call("study", root / "plan.py", "--out", root / "out", "--jobs", 2, "--cpu", "--rows", "none")
    assert first.exit_code == 0, first.stderr
    results = json.loads((root / "out" / "results.json").read_text())
    assert {job["state"] for job in results["jobs"] if job["row"] == "diet-rel"} == {"left"}
    assert {job["state"] for job in results["jobs"] if job["row"] != "diet-rel"} == {"done"}
    return call("study", root / "plan.py", "--out", root / "out", "--jobs", 2, "--cpu")


@pytest.mark.slow
def test_a_study_runs_to_its_page(root, done):
    assert done.exit_code == 0, done.stderr
    results = json.loads((root / "out" / "results.json").read_text())
    assert all(job["state"] == "done" for job in results["jobs"]) and len(results["jobs"]) == 10
    words, tuned, longer, mean = results["cells"]
    assert words["none"]["summary"]["runs"] == 1 and tuned["diet-rel"]["summary"]["runs"] == 2
    assert tuned["diet-rel"]["rate"] in (1e-3, 2e-3)
    assert tuned["diet-rel"]["test"]["verdict"] == "too few seeds"
    assert 0 < longer["none"]["summary"]["median"] != longer["diet-rel"]["summary"]["median"]
    assert list(mean["none"]["values"]) == ["0"]  # pretraining has one seed
    assert results["claims"][0]["verdict"] in WORST_FIRST
    assert results["analysis"]["diet-rel"]["offsets"][0] == -31
    assert results["environment"]["torch"]
    assert (root / "out" / "report.html").stat().st_size > 20_000
    assert "A small study" in done.stdout and f"wrote {root / 'out' / 'report.html'}" in done.stdout
    assert "10/10 done" in done.stderr


@pytest.mark.slow
def test_nothing_is_done_twice_and_a_changed_study_does_what_is_new(root, done):
    before = {path: path.stat().st_mtime_ns for path in (root / "out" / "jobs").glob("*/result.json")}
    again = call("study", root / "plan.py", "--out", root / "out", "--jobs", 2, "--cpu")
    assert again.exit_code == 0 and "10 of 10 jobs are done already" in again.stderr
    assert {path: path.stat().st_mtime_ns for path in before} == before

    more = root / "more.py"
    more.write_text(PLAN.replace("STEPS", "20"))
    dry = call("study", more, "--out", root / "other", "--store", root / "out" / "jobs", "--dry-run")
    assert dry.exit_code == 0 and "10 jobs, 0 to do" in dry.stdout
    assert not (root / "other").exists()
    more.write_text(PLAN.replace("STEPS", "21"))
    dry = call("study", more, "--out", root / "other", "--store", root / "out" / "jobs", "--dry-run")
    assert "10 jobs, 8 to do" in dry.stdout and "(measured)" in dry.stdout  # text and simple classifiers stay


@pytest.mark.slow
def test_the_report_is_made_of_saved_results_alone(root, done, tmp_path):
    shutil.copy(root / "out" / "results.json", tmp_path)
    made = call("report", tmp_path)
    assert made.exit_code == 0
    assert made.stdout.split("wrote")[0] == done.stdout.split("wrote")[0]
    assert (tmp_path / "table.csv").read_text() == (root / "out" / "table.csv").read_text()
    linked = re.findall(r'href="([^"#]*/report.html)"', (root / "out" / "report.html").read_text())
    assert len(linked) == 2 and all((root / "out" / each).is_file() for each in linked)
    assert "jobs/" not in (tmp_path / "report.html").read_text().split("Reproduce")[0]


@pytest.mark.slow
def test_what_was_kept_is_the_whole_study_on_another_machine(root, done, tmp_path):
    kept = tmp_path / "kept"
    assert call("report", root / "out", "--keep", kept).exit_code == 0
    there = tmp_path / "there"  # nothing of the store is there
    same = call("study", root / "plan.py", "--out", there, "--kept", kept, "--cpu")
    assert same.exit_code == 0 and "10 of 10 jobs are done already" in same.stderr
    assert not list((there / "jobs").glob("*"))
    assert (there / "table.csv").read_text() == (root / "out" / "table.csv").read_text()
    assert call("report", there, "--keep", tmp_path / "again").exit_code == 0
    for path in kept.rglob("*.json*"):
        if path.name != "results.json":  # which names the folders
            assert (tmp_path / "again" / path.relative_to(kept)).read_bytes() == path.read_bytes()
    (root / "changed.py").write_text(PLAN.replace("STEPS", "20").replace("lengths=(32, 64)", "lengths=(64,)"))
    dry = call("study", root / "changed.py", "--out", tmp_path / "new", "--kept", kept, "--dry-run", "--cpu")
    assert "10 jobs, 2 to do" in dry.stdout and dry.stdout.count("kept ") == 8


@pytest.mark.slow
def test_an_output_folder_of_another_study_is_refused(root, done):
    refused = call("study", "cost", "--out", root / "out", "--cpu")
    assert refused.exit_code == 2
    assert "which is of study small (quick)" in " ".join(refused.stderr.split())
    other = root / "files"
    other.mkdir(exist_ok=True)
    (other / "thesis.txt").write_text("precious")
    refused = call("study", root / "plan.py", "--out", other)
    assert refused.exit_code == 2 and "which holds other files" in " ".join(refused.stderr.split())


@pytest.mark.slow
def test_killed_at_any_moment_it_ends_the_same(root, done, tmp_path):
    script = "import typer; from headway.cli.study import study; typer.run(study)"
    options = ["--out", str(tmp_path / "out"), "--jobs", "2", "--cpu"]
    command = [sys.executable, "-c", script, str(root / "plan.py"), *options]
    for wanted in ("text-*/result.json", "pretrain-*/run/checkpoints/*", "finetune-*/run/runs/*/result.json"):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 240
        while not list((tmp_path / "out" / "jobs").glob(wanted)) and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
    last = call("study", root / "plan.py", "--out", tmp_path / "out", "--jobs", 2, "--cpu")
    assert last.exit_code == 0, last.stderr
    cells = [json.loads((folder / "out" / "results.json").read_text())["cells"] for folder in (root, tmp_path)]
    assert cells[0] == cells[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["glu"], "plan: expected one of quick, encodings, glue"),
        (["none.py"], "plan: expected a Python file"),
        (["glue", "--size", "big"], "size: expected one of quick, gpu, paper"),
        (["quick", "--size", "gpu"], "size: expected quick"),
        (["cost", "--executor", "slurm"], "executor: expected local or ray"),
        (["cost", "--rows", "diet"], "rows: the plan has no diet. Its rows are "),
        (["cost", "--rows", "diet", "--dry-run"], "rows: the plan has no diet. Its rows are "),
        (["cost", "--jobs", "0"], "jobs: expected at least 1, got 0"),
        (["cost", "--jobs", "0", "--dry-run"], "jobs: expected at least 1, got 0"),
    ],
)
def test_bad_arguments_are_named(tmp_path, arguments, message):
    refused = call("study", *arguments, "--out", tmp_path / "out")
    assert refused.exit_code == 2
    assert message in " ".join(refused.stderr.split())
    assert not (tmp_path / "out" / "jobs").exists()


def test_a_plan_with_an_unknown_encoding_lists_them(tmp_path):
    path = tmp_path / "plan.py"
    path.write_text(PLAN.replace("STEPS", "1").replace('encoding="diet-rel"', 'encoding="diet"'))
    refused = call("study", path, "--out", tmp_path / "out")
    assert refused.exit_code == 2
    assert "encoding: expected one of none, sinusoidal" in " ".join(refused.stderr.split())


def test_a_report_needs_a_study(tmp_path):
    refused = call("report", tmp_path)
    assert refused.exit_code == 2
    assert "expected the folder of a study with results.json" in " ".join(refused.stderr.split())


def test_the_example_plan_builds():
    dry = call("study", ROOT / "examples" / "study_plan.py", "--dry-run", "--cpu", "--jobs", 2)
    assert dry.exit_code == 0
    assert "11 jobs, 11 to do" in dry.stdout and "with 2 at once" in dry.stdout
    one = call("study", ROOT / "examples" / "study_plan.py", "--dry-run", "--cpu", "--rows", "t5")
    assert "pretrain t5" in one.stdout and "pretrain diet" not in one.stdout and "5 jobs" in one.stdout


def test_a_full_disk_is_told_before_anything_begins(tmp_path, monkeypatch):
    monkeypatch.setattr("headway.bench.study.study.free_bytes", lambda path: 1000)
    stopped = call("study", "parameters", "--out", tmp_path / "out", "--cpu")
    assert stopped.exit_code == 1
    assert "Make room, or name another --store" in stopped.stderr


ALBERT_PLAN = textwrap.dedent(
    """
    from dataclasses import replace
    from headway.bench.study.plan import Column, Plan, Row
    from headway.bench.study.plans.recipes import builtin_finetuning
    from headway.bench.tasks.finetune import Grid

    TASK = "builtin:acceptability"


    def plan(size, data):
        tuning = builtin_finetuning(TASK, rate=1e-3, epochs=1, limit=64)
        return Plan(
            name="converted",
            size=size,
            title="TISA in an ALBERT",
            rows=(
                Row(name="as it is", encoding="learned"),
                Row(name="beside", encoding="learned+tisa:kernels=1"),
                Row(name="alone", encoding="tisa:kernels=1"),
                Row(name="neither", encoding="none"),
            ),
            columns=(Column(name="Acceptability", source="finetune", task=TASK),),
            baseline="as it is",
            original="ORIGINAL",
            finetune={TASK: replace(tuning, grid=Grid(rates=(1e-3,), seeds=(0,)))},
        )
    """
)


@pytest.mark.slow
def test_a_pretrained_model_takes_the_place_of_pretraining(tmp_path):
    import torch
    from transformers import AlbertConfig, AlbertForMaskedLM

    from headway.bench.data import train_tokenizer

    tokenizer = train_tokenizer("builtin:200", kind="word")
    sizes = {"hidden_size": 16, "embedding_size": 8, "intermediate_size": 16, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = AlbertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, num_hidden_layers=2, **sizes)
    AlbertForMaskedLM(config).save_pretrained(tmp_path / "albert")
    tokenizer.save_pretrained(tmp_path / "albert")
    (tmp_path / "plan.py").write_text(ALBERT_PLAN.replace("ORIGINAL", str(tmp_path / "albert")))
    done = call("study", tmp_path / "plan.py", "--out", tmp_path / "out", "--jobs", 2, "--cpu")
    assert done.exit_code == 0, done.stderr
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [job["state"] for job in results["jobs"]] == ["done"] * 9
    counts = {
        json.loads((path.parent / "job.json").read_text())["label"]: json.loads(path.read_text())["result"][
            "parameters"
        ]
        for path in (tmp_path / "out" / "jobs").glob("convert-*/result.json")
    }
    assert counts["convert beside"] - counts["convert as it is"] == 3 * 2 * 2  # S = 1, two layers, two heads
    assert counts["convert as it is"] - counts["convert neither"] == 63 * 8  # the position table but one row
