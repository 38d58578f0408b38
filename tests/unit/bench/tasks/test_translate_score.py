"""Scores against sacrebleu's own command, and comparisons that see a difference where there is one."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from headway.bench.tasks.translate.score import compare, score

REFERENCES = [f"The dog number {n} runs quickly over the green hill." for n in range(60)]
GOOD = [text.replace("quickly", "fast") if n % 3 == 0 else text for n, text in enumerate(REFERENCES)]
BAD = [text.replace("runs", "ran").replace("green hill", "red hill") for text in REFERENCES]


def test_scores_are_those_of_the_sacrebleu_command(tmp_path):
    for name, lines in (("good", GOOD), ("reference", REFERENCES)):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines))
    command = [sys.executable, "-m", "sacrebleu", tmp_path / "reference", "-i", tmp_path / "good", "-m", "bleu", "chrf"]
    done = subprocess.run([*command, "-w", "6"], capture_output=True, text=True, check=True)
    bleu, chrf = json.loads(done.stdout)
    found = score(GOOD, [REFERENCES])
    assert found.bleu == pytest.approx(bleu["score"], abs=1e-6)
    assert found.chrf == pytest.approx(chrf["score"], abs=1e-6)
    assert found.bleu_signature == bleu["signature"]
    assert found.chrf_signature == chrf["signature"]
    assert found.sentences == 60


def test_lower_case_is_the_option_of_the_sacrebleu_command(tmp_path):
    texts = [text.upper() if n % 2 else text for n, text in enumerate(GOOD)]
    for name, lines in (("system", texts), ("reference", REFERENCES)):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines))
    command = [sys.executable, "-m", "sacrebleu", tmp_path / "reference", "-i", tmp_path / "system", "-lc", "-w", "6"]
    wanted = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    found = score(texts, [REFERENCES], lowercase=True)
    assert found.bleu == pytest.approx(wanted["score"], abs=1e-6)
    assert found.bleu_signature == wanted["signature"] and "case:lc" in found.bleu_signature
    assert found.bleu > score(texts, [REFERENCES]).bleu + 20
    rows = compare({"one": GOOD, "upper": texts}, [REFERENCES], samples=20, lowercase=True)
    assert {row.p_value for row in rows} == {None, 1.0}


def test_exact_match_is_any_reference_word_for_word():
    found = score(["a b", "c", "d"], [["a  b ", "x", "D"], ["y", "c", "z"]])
    assert found.exact_match == pytest.approx(2 / 3)
    assert score(REFERENCES, [REFERENCES]).bleu == pytest.approx(100)


def test_a_paired_bootstrap_tells_systems_apart():
    rows = {(row.system, row.metric): row for row in compare({"good": GOOD, "same": GOOD, "bad": BAD}, [REFERENCES])}
    good, same, bad = (rows[name, "BLEU"] for name in ("good", "same", "bad"))
    assert good.p_value is None
    assert bad.p_value is not None and bad.p_value < 0.01
    assert same.p_value == 1.0, "no difference is no evidence of one"
    assert good.score == pytest.approx(score(GOOD, [REFERENCES]).bleu)
    assert abs(good.mean - good.score) < good.interval < 10
    assert {metric for _, metric in rows} == {"BLEU", "chrF2"}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: score([], [[]]), "translations: expected at least one, got none"),
        (lambda: score(["a"], [["a"], ["a", "b"]]), r"references\[1\]: expected 1 lines, .* got 2"),
        (lambda: compare({"one": ["a"]}, [["a"]]), "systems: expected at least two to compare, got 1"),
        (lambda: compare({"one": ["a"], "two": ["a"]}, [["a"]], samples=0), "samples: expected at least 1, got 0"),
        (lambda: compare({"one": ["a"], "two": ["a"]}, [["a"]], jobs=0), "jobs: expected at least 1, got 0"),
        (lambda: compare({"one": ["a"], "two": ["a", "b"]}, [["a"]]), r"references\[0\] for two: expected 2 lines"),
    ],
)
def test_what_cannot_be_scored(call, message):
    with pytest.raises(ValueError, match=message):
        call()
