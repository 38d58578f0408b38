"""Fine-tuning on a GPU: steps replayed as CUDA graphs are the plain ones, and wait for nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import BertConfig, BertModel

from headway.bench.data.text.tokenizers import train_tokenizer
from headway.bench.tasks.finetune import Data, Grid, Start, run
from headway.bench.tasks.finetune.recipes import quick
from headway.bench.tasks.finetune.training_step import TrainingStep
from headway.bench.tasks.training.run_folder import RunFolder
from headway.encodings import ENCODINGS
from headway.models import EncoderForMaskedLM, preset

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning"),
]
WIDE = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 256}


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """The folder of an encoder that is not pretrained."""
    tokenizer = train_tokenizer("builtin:200", kind="word")
    root = tmp_path_factory.mktemp("models")

    def made(encoding):
        folder = root / encoding
        if not folder.exists():
            torch.manual_seed(0)
            words = {"vocab_size": len(tokenizer), "max_position_embeddings": 64}
            if encoding == "bert":
                model = BertModel(BertConfig(**words, **WIDE))
            else:
                model = EncoderForMaskedLM(preset("tiny", encoding=f"{encoding}:segments=none", **words, **WIDE))
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        return Start(model=str(folder))

    return made


def asked(start, *, seeds=(0,), bf16=False):
    config = quick("builtin:entailment", start, Data(limit=640))
    protocol = replace(config.protocol, epochs=4, length=64, batch=16, bf16=bf16)
    return replace(config, grid=Grid(rates=(3e-4,), seeds=seeds), protocol=protocol)


def losses(out):
    return RunFolder(next(out.glob("runs/*"))).logged("loss")


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_replayed_steps_are_the_plain_ones(start, tmp_path, monkeypatch, encoding):
    """With dropout: a graph draws the numbers of the step that replays it."""
    replays, replay = [], torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: (replays.append(1), replay(graph)))
    run(asked(start(encoding)), tmp_path / "plain", progress=False, graphs=False)
    assert not replays
    run(asked(start(encoding)), tmp_path / "replayed", progress=False)
    assert len(replays) > 140  # of 160 steps
    torch.testing.assert_close(
        torch.tensor(losses(tmp_path / "replayed")), torch.tensor(losses(tmp_path / "plain")), atol=0.01, rtol=0.01
    )


def test_a_step_does_not_wait_for_the_device(start, tmp_path, monkeypatch):
    real, calls = TrainingStep.__call__, []

    def watched(self, chosen, **others):
        calls.append(1)
        torch.cuda.set_sync_debug_mode("error" if len(calls) > 100 else "default")  # recording waits
        try:
            return real(self, chosen, **others)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(TrainingStep, "__call__", watched)
    run(asked(start("diet-rel"), bf16=True), tmp_path / "out", progress=False)
    assert len(calls) == 160


def test_processes_share_the_gpu(start, tmp_path):
    result = run(asked(start("tisa"), seeds=(0, 1, 2), bf16=True), tmp_path / "out", progress=False, jobs=3)
    assert [each["seed"] for each in result.runs] == [0, 1, 2]
    assert all(each["steps"] == 160 for each in result.runs)


def test_an_encoder_of_transformers_goes_the_plain_way(start, tmp_path):
    run(asked(start("bert"), bf16=True), tmp_path / "out", progress=False)
    found = losses(tmp_path / "out")
    assert len(found) == 4 and found[-1] < found[0]
