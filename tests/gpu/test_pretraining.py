"""Pretraining on a GPU: compiled, in bf16, with the fused optimizer; no step waits for the device."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from headway.bench.tasks.pretrain import EncoderChoice, Intervals, Optimisation, PretrainConfig, Text, run
from headway.bench.tasks.training import checkpoint
from headway.bench.tasks.training.loop import Training
from headway.bench.tasks.training.run_folder import RunFolder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the compiler's own code
    pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning"),
]


@pytest.fixture(scope="module")
def config():
    return PretrainConfig(
        model=EncoderChoice(preset="tiny", encoding="diet-rel"),
        text=Text(corpus=("builtin:5000",), length=64, validation=0.05, evaluation_rows=64),
        optimisation=Optimisation(steps=60, batch=32, learning_rate=1e-3, warmup=0.1),
        intervals=Intervals(log=10, evaluate=30, checkpoint=20),
    )


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory):
    """The folder of a finished run on the GPU."""
    return run(config, tmp_path_factory.mktemp("gpu") / "run", progress=False).folder


def weights(folder):
    return load_file(f"{folder}/model/model.safetensors")


def test_it_learns_in_bf16_and_compiled_as_in_float32_and_not(config, finished, tmp_path):
    plain = replace(config.optimisation, bf16=False, compile=False)
    exact = run(replace(config, optimisation=plain), tmp_path / "plain", progress=False)
    fast = run(config, finished, resume=True)
    assert fast.evaluation_loss == pytest.approx(exact.evaluation_loss, abs=0.1)
    assert fast.evaluation_loss < 4.7  # drawn weights: the logarithm of some 250 words, 5.5


def test_a_step_does_not_wait_for_the_device(config, tmp_path, monkeypatch):
    real = Training._step

    def watched(self, step, parts, count):
        torch.cuda.set_sync_debug_mode("error" if step >= 3 else "default")  # the first ones compile
        try:
            real(self, step, parts, count)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(Training, "_step", watched)
    short = replace(config.optimisation, steps=8)
    run(replace(config, optimisation=short), tmp_path / "run", progress=False)


def test_it_goes_on_from_a_checkpoint(config, finished, tmp_path, monkeypatch):
    real, calls = checkpoint.prune, iter(range(1))

    def interrupted(*arguments):
        if next(calls, None) is None:
            raise KeyboardInterrupt
        real(*arguments)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):  # noqa: PT012
        patched.setattr(checkpoint, "prune", interrupted)
        run(config, tmp_path / "run", progress=False)
    run(config, tmp_path / "run", progress=False, resume=True)
    whole, resumed = weights(finished), weights(tmp_path / "run")
    assert whole.keys() == resumed.keys()
    for name in whole:
        torch.testing.assert_close(resumed[name], whole[name], atol=2e-3, rtol=2e-2, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("accumulate", [1, 2])
def test_replayed_steps_are_the_plain_ones(config, tmp_path, monkeypatch, accumulate):
    """With dropout, compiled: a graph draws the numbers of the step, and of the part, that replays it."""
    replays, replay = [], torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: (replays.append(1), replay(graph)))
    config = replace(config, optimisation=replace(config.optimisation, accumulate=accumulate))
    run(config, tmp_path / "plain", progress=False, graphs=False)
    assert not replays
    run(config, tmp_path / "replayed", progress=False)
    assert len(replays) > 55 * accumulate  # of 60 steps
    found, wanted = (RunFolder(tmp_path / name).logged("loss") for name in ("replayed", "plain"))
    torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted), atol=2e-3, rtol=2e-3)
