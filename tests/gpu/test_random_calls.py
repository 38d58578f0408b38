"""A few random calls in every run of the tests, and that `random_calls.py` reports what is wrong."""

from __future__ import annotations

import importlib
import json
import os
import shlex
from dataclasses import replace

import pytest
import random_calls
import torch
from call_drawing import drawn_calls
from call_judging import attempt
from call_running import inputs_of
from oracle import CUDA, DEVICE
from random_calls import main, replay_command

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
FUSED = "triton" if CUDA else "matrix"  # what the calls below run on: on the CPU not interpreted, which is slow

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not (CUDA or INTERPRETED), reason="no GPU, and TRITON_INTERPRET is not 1"),
    pytest.mark.filterwarnings("ignore:.*no current CUDA context.*:UserWarning"),
]

TINY = {"backend": "triton", "dtype": "float32", "width": 16, "v_width": 24, "dropout": 0.0, "batch": 2, "heads": 1,
        "key_heads": 1, "q_len": 5, "k_len": 18}  # fmt: skip
PLAIN = {"backend": FUSED, "dtype": "float32", "width": 16, "v_width": 16, "terms": ["toeplitz"], "values": [],
         "dropout": 0.0, "grads": "all", "lengths": False, "mask": False, "documents": False, "scale": None,
         "batch": 2, "heads": 2, "q_len": 20, "k_len": 24}  # fmt: skip


def calls_of(family):
    """On a GPU ten calls; interpreted, two tiny ones."""
    fixed, count = ({}, 10) if CUDA else (TINY, 2)
    return drawn_calls(2026, 0, family, fixed, DEVICE)[:count]


def plain_call():
    return drawn_calls(7, 0, 0, PLAIN, DEVICE)[0]


@pytest.mark.parametrize("family", range(4 if CUDA else 8))
def test_random_calls(family):
    for spec in calls_of(family):
        failures = attempt(spec, DEVICE).failures
        assert not failures, f"{failures}\n{replay_command(spec, DEVICE)}"


@pytest.mark.skipif(CUDA, reason="the backends of the CPU")
@pytest.mark.parametrize("backend", ["auto", "matrix", "blockwise", "sdpa", "native"])
def test_random_calls_of_cpu_backends(backend):
    for family in range(2):
        for spec in drawn_calls(2026, 1, family, {"backend": backend, "batch": 2, "q_len": 33}, "cpu")[:2]:
            failures = attempt(spec, "cpu").failures
            assert not failures, f"{failures}\n{replay_command(spec, 'cpu')}"


def test_dropout_is_compared_with_the_weights_it_keeps():
    verdict = attempt({**plain_call(), "dropout": 0.4}, DEVICE)
    assert verdict.failures == []
    assert verdict.ratio > 0


def replaced(monkeypatch, change):
    """Let `change` replace what the backend gives."""
    backends = importlib.import_module("headway.attention.call").BACKENDS
    real = backends[FUSED]

    def plan(request):
        made = real(request)
        return made if isinstance(made, str) else replace(made, run=lambda request: change(made.run(request)))

    monkeypatch.setitem(backends, FUSED, plan)


def test_an_error_of_one_percent_is_reported(monkeypatch):
    assert attempt(plain_call(), DEVICE).failures == []
    replaced(monkeypatch, lambda output: 1.01 * output)
    failures = attempt(plain_call(), DEVICE).failures
    assert any(failure.startswith("output: error") for failure in failures)
    assert any(failure.startswith("gradient of q: error") for failure in failures)


def test_one_wrong_row_is_reported(monkeypatch):
    def change(output):
        wrong = torch.zeros_like(output)
        wrong[0, 0, 3] = 1e-3
        return output + wrong

    replaced(monkeypatch, change)
    assert any("output" in failure for failure in attempt(plain_call(), DEVICE).failures)


def test_other_bits_in_the_second_run_are_reported(monkeypatch):
    runs = []

    def change(output):
        runs.append(output)
        return output * (1 + torch.finfo(output.dtype).eps * len(runs))

    replaced(monkeypatch, change)
    verdict = attempt(plain_call(), DEVICE)
    assert not verdict.repeats
    assert verdict.failures[0].startswith("a second run gives other bits: output")


def test_what_nobody_wrote_is_reported(monkeypatch):
    replaced(monkeypatch, lambda output: output + 0 * torch.empty_like(output))
    assert "output: not finite" in attempt(plain_call(), DEVICE).failures


def test_a_call_that_auto_cannot_run_is_reported(monkeypatch):
    def refuse(output):
        raise NotImplementedError("no kernel")

    replaced(monkeypatch, refuse)
    assert attempt(plain_call(), DEVICE).failures[0].startswith("NotImplementedError at test_random_calls.py")


def test_a_printed_call_has_the_same_inputs_again(capsys):
    spec = calls_of(1)[1]
    printed = shlex.split(replay_command(spec, DEVICE))
    again = json.loads(printed[printed.index("--replay") + 1])
    assert again == spec
    tensors = []
    for inputs in (inputs_of(spec, DEVICE), inputs_of(again, DEVICE)):
        masks = [t for t in inputs.options.values() if isinstance(t, torch.Tensor)]
        tensors.append([*inputs.qkv, *inputs.parameters, inputs.upstream, *masks])
    for one, other in zip(*tensors, strict=True):
        assert torch.equal(one, other)
    assert main(["--device", DEVICE, "--replay", json.dumps(plain_call())]) == 0
    assert "passed" in capsys.readouterr().out


def test_options_can_be_held_fixed():
    """The calls in which the kernels for a low-rank bias once failed are among those that are drawn."""
    fixed = random_calls.fixed_options(
        ["dtype=bfloat16", "width=24", "batch=3", "k_len=257", 'terms=["low rank"]', "rank=70"]
    )
    for spec in drawn_calls(1, 0, 0, fixed, "cuda"):
        assert (spec["dtype"], spec["width"], spec["batch"], spec["k_len"]) == ("bfloat16", 24, 3, 257)
        assert [(term["kind"], term["rank"]) for term in spec["terms"]] == [("low rank", 70)]
    with pytest.raises(ValueError, match=r"--fix: expected one of dtype, .*, got 'widht'"):
        random_calls.fixed_options(["widht=24"])


def test_a_process_that_dies_is_reported_with_its_call(monkeypatch, tmp_path, capsys):
    script = tmp_path / "dies.py"
    script.write_text(f"print({json.dumps(json.dumps({'begin': plain_call(), 'family': 0}))}, flush=True)\nexit(7)\n")
    monkeypatch.setattr(random_calls, "__file__", str(script))
    assert main(["--device", DEVICE, "--seconds", "1", "--workers", "1"]) == 1
    printed = capsys.readouterr().out
    assert "the process died with code 7" in printed
    assert replay_command(plain_call(), DEVICE) in printed
