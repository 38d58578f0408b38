"""`headway claims` as people use it: on the committed results, on none, on broken ones, on what commands write."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headway.cli import app

ROOT = Path(__file__).parents[2]
VERDICTS = {"supported", "not seen", "contradicted", "not tested", "not testable"}


@pytest.fixture(autouse=True, scope="module")
def in_the_checkout():
    """The folder of results is named as from there."""
    with contextlib.chdir(ROOT):
        yield


def claims(*words, columns=100):
    return CliRunner(env={"COLUMNS": str(columns)}).invoke(app, ["claims", *words])


def read(*words):
    done = claims("--json", *words)
    assert done.exit_code == 0, done.stderr
    return {entry["key"]: entry for entry in json.loads(done.stdout)["claims"]}


@pytest.fixture(scope="module")
def ledger():
    return read()


def test_every_claim_has_a_verdict_or_the_command_that_would_give_one(ledger):
    assert len(ledger) >= 20
    for entry in ledger.values():
        assert entry["verdict"] in VERDICTS
        assert entry["verdict"] != "not tested" or entry["missing"], entry["key"]
        for part in entry["comparisons"]:
            assert (part["difference"] is None) == (part["verdict"] == "not tested")
            assert not (part["interval"] and part["noise_band"])


@pytest.mark.parametrize("length", [128, 512])
def test_committed_timings_decide_what_position_costs(ledger, length):
    """By hand from the raw seconds, not through the library."""
    parts = {part["compares"]: part for part in ledger["diet-cost"]["comparisons"]}
    part = parts[f"diet-rel:sharing=none against learned: ms of a training step at n = {length}"]
    ((source,), (block,)) = part["sources"], part["over"]
    record = json.loads((ROOT / source).read_text())
    seconds = {
        row["row"]: row["training"]["seconds"]
        for row in record["measurements"]
        if f"{row['model']}, n = {row['length']}" == block and row["problem"] is None
    }
    ratios = [100 * (own / other - 1) for own, other in zip(seconds["diet-rel"], seconds["learned"], strict=True)]
    assert block.endswith(f"n = {length}") and len(ratios) >= 5
    assert part["difference"] == pytest.approx(sum(ratios) / len(ratios))


def test_the_table_fits_its_terminal():
    done = claims(columns=100)
    assert done.exit_code == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 100
    for word in ("per-head-glue", "the paper", "Table 1", "headway claims CLAIM"):
        assert word in done.stdout


def test_one_claim_in_full_and_only_some_verdicts():
    done = claims("diet-cost")
    assert done.exit_code == 0, done.stderr
    for word in ("verdict", "numbers", "asked", "95 % interval over", "round 0:", "from ", ".json"):
        assert word in done.stdout
    some = read("--only", "supported,not-seen")
    assert {entry["verdict"] for entry in some.values()} <= {"supported", "not seen"}


def test_the_rule_is_told():
    assert "noise band" in claims("--rule").stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--results", "nowhere"], "results: expected a folder of results, got nowhere"),
        (["per-hed-glue"], "Did you mean 'per-head-glue'?"),
        (
            ["--only", "true"],
            "--only: expected some of contradicted, not seen, not tested, not testable, supported, got true",
        ),
    ],
)
def test_mistakes_are_explained(words, message):
    done = claims(*words, columns=1000)
    assert done.exit_code == 2
    assert message in done.stderr and "Traceback" not in done.stderr


def test_a_broken_file_is_named(tmp_path):
    folder = Path("results") / "pretraining_wiki" / "learned"
    shutil.copytree(ROOT / folder, tmp_path / folder)
    path = tmp_path / folder / "result.json"
    path.write_text(path.read_text()[:40])
    done = claims("--results", str(tmp_path / "results"), columns=1000)
    assert done.exit_code == 2
    assert f"{path}: expected JSON" in done.stderr


def test_a_verdict_follows_the_results(tmp_path):
    """The same claim, from the committed run and from one with another loss."""
    for name in ("none", "tisa"):
        folder = Path("results") / "pretraining_wiki" / name
        shutil.copytree(ROOT / folder, tmp_path / folder)
    results = ("--results", str(tmp_path / "results"))
    assert read(*results)["tisa-over-words"]["verdict"] == "supported"
    path = tmp_path / "results" / "pretraining_wiki" / "tisa" / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "evaluation_loss": 9.0}))
    assert read(*results)["tisa-over-words"]["verdict"] == "contradicted"
    shutil.rmtree(path.parent)
    assert read(*results)["tisa-over-words"]["verdict"] == "not tested"


@pytest.mark.slow
def test_what_the_commands_write_is_read(tmp_path):
    """Pretraining, fine-tuning, analysis and translation, tiny, in the layout that the readers expect."""
    from headway.bench.claims.readers import read_results

    results = tmp_path / "results"

    def run(*words):
        done = CliRunner().invoke(app, [str(word) for word in words])
        assert done.exit_code == 0, done.output
        return done

    for encoding in ("learned", "tisa"):
        run("pretrain", "--encoding", encoding, "--corpus", "builtin:300", "--steps", "2", "--cpu", "--quiet",
            "--out", results / "pretraining_wiki" / encoding)  # fmt: skip
    model = results / "pretraining_wiki" / "learned" / "model"
    run("finetune", "builtin:entailment", "--model", model, "--recipe", "quick", "--seeds", "1",
        "--learning-rate", "1e-3", "--epochs", "1", "--set", "data.limit=32", "--cpu", "--quiet",
        "--transfer", "builtin:entailment", "--out", results / "glue_wiki" / "learned" / "entailment")  # fmt: skip
    shutil.copytree(results / "glue_wiki", results / "xtreme_wiki")
    (tmp_path / "text.txt").write_text("the dog sees a cat . " * 60)
    run("analyze", model, "--text", tmp_path / "text.txt", "--positions", "32", "--texts", "1", "--text-length", "24",
        "--no-figures", "--quiet", "--out", results / "analysis" / "learned")  # fmt: skip
    corpus = results / "translation" / "builtin"
    for encoding in ("sinusoidal", "shaw"):
        run("translate", "train", "--encoding", encoding, "--source", "builtin:300", "--steps", "2", "--set",
            "intervals.evaluate=2", "--cpu", "--quiet", "--out", corpus / encoding)  # fmt: skip
    texts = {"sinusoidal": "a dog sees a cat .\n" * 8, "shaw": "a dog sees the cat .\n" * 8}
    for encoding, text in texts.items():
        (corpus / encoding / "test.hyp").write_text(text)
    run("translate", "score", *(corpus / each / "test.hyp" for each in texts), "--reference",
        corpus / "shaw" / "test.hyp", "--samples", "50", "--out", corpus / "scores.json")  # fmt: skip
    counted = run("list", "--parameters", "--json").stdout
    (results / "parameters").mkdir()
    (results / "parameters" / "bert-base.json").write_text(counted)

    found = read_results(results)
    assert not found.notes
    measures = {sample.measure for sample in found.samples}
    assert measures >= {"loss", "glue", "xtreme", "cosine", "head r2", "score rank", "bleu", "English parameters"}
    assert {sample.setting.encoding.name for sample in found.samples if sample.measure == "bleu"} == set(texts)
    assert ("shaw", "sinusoidal", "builtin") in found.errors
    verdicts = read("--results", str(results))
    assert verdicts["shaw-bleu"]["verdict"] == "supported" and verdicts["parameters"]["verdict"] == "supported"


def test_the_command_as_a_process():
    environment = {**os.environ, "COLUMNS": "80", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "headway", "claims", "--only", "contradicted"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80 and "diet-cost" in done.stdout
