"""Every command and every example of the README and the pages around it runs, and its tables are complete."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headway.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "docs" / "index.md", ROOT / "docs" / "cpu.md"]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[tuple[str, str]]:
    return [
        (f"{page.name}:{page.read_text()[: match.start()].count(chr(10)) + 1}", match[2])
        for page in PAGES
        for match in BLOCK.finditer(page.read_text())
        if match[1] == language
    ]


def commands() -> list[tuple[str, str]]:
    """Where each command stands first, and the command, in the order of the pages."""
    found: dict[str, str] = {}
    for place, block in blocks("sh"):
        for line in block.splitlines():
            if line.strip() and not line.startswith("#"):
                found.setdefault(line.split("  #")[0].strip(), place)
    return [(place, command) for command, place in found.items()]


@pytest.mark.parametrize(
    ("place", "code"),
    [
        each for each in blocks("python") if not each[0].startswith("index")
    ],  # those go on from one another: test_docs.py
    ids=lambda x: x if ":" in x[:40] else "",
)
def test_python_example_runs(place, code):
    exec(compile(code, place, "exec"), {"__name__": "readme"})


# What makes a command quick enough for a test; that it runs is what is tested.
QUICK = {
    "examples.compare_encodings": ["--steps", "2", "--out", "runs/compare"],
    "benchmarks.": ["--quick", "--out", "runs/benchmarks"],
    "headway pretrain": ["--steps", "4", "--corpus", "builtin:300"],
    "headway cost": ["--encodings", "none,diet-rel", "--rounds", "1", "--length", "16", "--batch", "2"],
    "headway analyze": ["--positions", "48", "--texts", "2", "--text-length", "32", "--no-figures"],
    "headway translate train": ["--source", "builtin:300", "--steps", "2", "--set", "intervals.evaluate=2"],
    "headway translate decode": ["--beam", "2"],
    "headway finetune": ["--seeds", "1", "--learning-rate", "1e-3", "--epochs", "1", "--set", "data.limit=200"],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Where this module's commands write, in place of runs/: one may read what another wrote."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory):
    """What commands name and a test has not: a pretrained model of the Hub, and a text."""
    from transformers import BertConfig, BertForMaskedLM

    from headway.bench.data import Language, open_corpus, train_tokenizer

    folder = tmp_path_factory.mktemp("stand-ins")
    tokenizer = train_tokenizer([open_corpus("builtin:300")], kind="word", out=folder / "bert")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(folder / "bert")
    words = (" ".join(sentence.words) for sentence in Language().sentences(1000))
    (folder / "book.txt").write_text("\n".join(words))
    return {"bert-base-uncased": str(folder / "bert"), "book.txt": str(folder / "book.txt")}


@pytest.mark.filterwarnings("default")  # as for a user, to whom warnings are no errors
@pytest.mark.parametrize(("place", "command"), commands(), ids=lambda x: x[:40])
def test_command_runs(place, command, runs, stand_ins, monkeypatch):
    """Commands of headway run in this process, which has imported torch already; others in processes of their own."""
    words = shlex.split(command)
    if words[0] == "pip":
        return  # test_packaging.py installs
    if words[0] == "make":
        # This test runs inside `make test`; that the others resolve is what can be checked without doing it all twice.
        done = subprocess.run(["make", "--dry-run", *words[1:]], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return
    assert words[0] in ("headway", "python"), f"{place}: {command} is not run by any test"
    words += [word for part, extra in QUICK.items() if part in command for word in extra]
    words = [str(runs / word.removeprefix("runs/")) if word.startswith("runs/") else word for word in words]
    words = [stand_ins.get(word, word) for word in words]
    if words[0] == "headway":
        monkeypatch.chdir(ROOT)
        done = CliRunner().invoke(app, words[1:], catch_exceptions=False)
        status = done.exit_code
    else:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, *words[1:]]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
        status = done.returncode
    assert status == 0, done.stderr
    assert done.stdout.strip() or "wrote" in done.stderr  # what goes to a pipe has its own channel


def test_the_tables_have_every_encoding_and_structure():
    from headway import bias
    from headway.encodings import ENCODINGS

    rows = "\n".join(line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("|"))
    structures = set(bias.__all__) - {"Bias", "Structured", "Sum", "ValueBias", "ValueSum"}
    missing = [name for name in (*ENCODINGS, *structures) if f"`{name}" not in rows]
    assert not missing


def test_tables_and_pictures_come_from_the_committed_results():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.report", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
