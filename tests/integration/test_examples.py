"""Every example runs offline, ends well, and says what it promises."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LONGER = {"compare_encodings"}  # a whole encoder with data and training; run by the tests of the README
PLANS = {"study_plan"}  # no script: a plan for `headway study`
SAYS = {  # example -> options that keep it short, and a line of what it prints
    "attention_in_your_model": ([], "shaw: whole and token by token differ by"),
    "learned_bias_training": ([], "the head looks at offset -3"),
    "hugging_face_trainer": (["--steps", "3"], "diet-rel:segments=input: "),
    "analyse_a_model": ([], "head 0 looks at offset -1"),
    "convert_a_model": ([], "loaded again as ConvertedBertForMaskedLM: (1, 192,"),
    "fuse_a_text_encoder": ([], "vectors of fused and plain model differ by less than 1e-4: True"),
    "fuse_a_deberta_classifier": (["--steps", "10"], "differ from the plain model's by less than 1e-3: True"),
    "fuse_a_bloom": ([], "64 tokens, the same from the fused and the plain model: True"),
    "translate_built_in": (["--steps", "8"], "50 test sentences: BLEU"),
}
SLOW = {"translate_built_in"}


def names() -> set[str]:
    return {path.stem for path in (ROOT / "examples").glob("[!_]*.py")}


@pytest.mark.filterwarnings("default")  # as for a user, to whom warnings are no errors
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in SAYS])
def test_example_runs(name, tmp_path, monkeypatch, capsys):
    """As `python -m examples.NAME` does, in this process, which has imported torch already."""
    options, line = SAYS[name]
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, *options])
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    runpy.run_module(f"examples.{name}", run_name="__main__")
    assert line in capsys.readouterr().out
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"


def test_the_plan_of_the_examples_is_one():
    from headway.bench.study.plans import find_plan

    assert find_plan(str(ROOT / "examples" / "study_plan.py")).rows


def test_every_example_is_run_and_short():
    assert names() == set(SAYS) | LONGER | PLANS
    for name in names() - LONGER:
        assert len((ROOT / "examples" / f"{name}.py").read_text().splitlines()) < 80, name


@pytest.mark.parametrize("name", sorted(SAYS))
def test_example_says_how_to_run_it(name):
    assert f"python -m examples.{name}" in (ROOT / "examples" / f"{name}.py").read_text()
