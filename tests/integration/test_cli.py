"""The command line as a user meets it."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from headway.cli import app
from headway.cli.errors import exit_with_message

ROOT = Path(__file__).parents[2]


def headway(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "headway", *arguments], capture_output=True, text=True)


def test_help_names_the_commands():
    done = headway("--help")
    assert done.returncode == 0
    assert "list" in done.stdout


def test_version():
    import headway as package

    assert headway("--version").stdout.strip() == f"headway {package.__version__}"


def test_list_shows_every_encoding():
    from headway.encodings import ENCODINGS

    done = headway("list")
    assert done.returncode == 0, done.stderr
    for name in ENCODINGS:
        assert name.split("-")[0] in done.stdout


def test_list_as_json_counts_the_parameters_of_bert_base():
    rows = {row["name"]: row for row in json.loads(CliRunner().invoke(app, ["list", "--json"]).stdout)}
    layers, heads, width, length = 12, 12, 64, 512
    assert rows["none"]["parameters"] == rows["rope"]["parameters"] == rows["alibi"]["parameters"] == 0
    assert rows["learned"]["parameters"] == length * heads * width
    assert rows["diet-rel"]["parameters"] == layers * heads * (2 * length - 1)
    assert rows["diet-abs"]["parameters"] == 2 * layers * heads * length * width
    assert rows["abs-scalar"]["parameters"] == layers * heads * length * width
    assert rows["tisa"]["parameters"] == 3 * 5 * heads * layers  # TISA Sec. 4.2: 3 S H L
    assert rows["t5"]["parameters"] == 32 * heads
    assert rows["shaw"]["parameters"] == 2 * layers * heads * 33 * width
    assert not rows["learned"]["extends"]
    assert rows["tisa"]["extends"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("list", "--layers", "0"), "num_layers"),
        (("list", "--parameters", "--heads", "8"), "is a paper's table"),
        (("list", "--parameters", "--criteria"), "is a paper's table"),
        (("cost", "--seed", "-1"), "--seed"),
        (("translate", "decode", "x", "--model", "m", "--sample", "--seed", "4294967296"), "--seed"),
        (("lst",), "lst"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_numbers_that_broke_end_a_command_without_a_traceback(capsys):
    with pytest.raises(typer.Exit) as ended, exit_with_message():
        raise FloatingPointError("scores: expected numbers, got NaN.")
    assert ended.value.exit_code == 1
    assert capsys.readouterr().err == "headway: scores: expected numbers, got NaN.\n"


@pytest.mark.parametrize(
    ("arguments", "headers"),
    [
        (["list"], ["encoding", "acts on", "sharing", "extends", "parameters", "paper"]),
        (["list", "--parameters"], ["model", "English", "multilingual"]),
        (["study", "--list"], ["plan", "what it compares"]),
        (["claims"], ["claim", "the paper, and ours"]),
        (["report", "STUDY"], ["Loss", "Masked words", "SST-2"]),
    ],
    ids=lambda each: " ".join(each) if len(each) < 3 else "",
)
def test_tables_fit_80_columns_with_whole_headers(arguments, headers, tmp_path, monkeypatch):
    shutil.copy(ROOT / "results" / "studies" / "encodings" / "results.json", tmp_path)
    monkeypatch.chdir(ROOT)
    arguments = [str(tmp_path) if each == "STUDY" else each for each in arguments]
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    table = [line for line in done.stdout.splitlines() if not line.startswith(("supported", "wrote", "not ", "contra"))]
    assert not [line for line in table if len(line) > 80]
    assert "…" not in done.stdout
    for header in headers:
        assert header in done.stdout


def test_output_that_nobody_reads_ends_quietly():
    """As in `headway list | head -1`: the reader is gone before the table is written."""
    command = f"{shlex.quote(sys.executable)} -m headway list --json | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode in (0, 1) and done.stderr == ""


def test_ctrl_c_ends_a_command_with_a_message_and_status_130(capsys):
    with pytest.raises(typer.Exit) as ended, exit_with_message(when_stopped="stopped; go on with --resume"):
        raise KeyboardInterrupt
    assert ended.value.exit_code == 130
    assert capsys.readouterr().err == "\nstopped; go on with --resume\n"
