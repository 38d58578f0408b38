"""What a comparison may be, and what the machine fills in."""

import pytest
import torch

from headway.bench.cost import CostConfig


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"encodings": ("nne",)}, "expected one of none.*got 'nne'"),
        ({"baseline": "lerned"}, "got 'lerned'"),
        ({"models": ("bert",)}, "models: expected some of bert-base, bert-small, tiny, got 'bert'"),
        ({"lengths": ()}, "lengths: expected whole numbers"),
        ({"lengths": (0,)}, "lengths: expected whole numbers of at least 2"),
        ({"batch": 0}, "batch: expected a whole number of at least 1, got 0"),
        ({"rounds": 0}, "rounds: expected a whole number"),
        ({"modes": ("train",)}, "modes: expected some of training, inference"),
        ({"device": "gpu"}, "device: expected auto, cpu, cuda or cuda:N, got 'gpu'"),
        ({"segments": "both"}, "segments: expected one of none, input, per-head"),
        ({"dropout": 1.0}, "dropout: expected a probability"),
        ({"minutes": 0}, "minutes: expected more than 0"),
        ({"minutes": float("inf")}, "minutes: expected more than 0, got inf"),
        ({"minutes": float("nan")}, "minutes: expected more than 0, got nan"),
        ({"models": ("tiny", "tiny")}, "models: each value may be given once"),
        ({"lengths": (128, 64, 128)}, "lengths: each value may be given once"),
        ({"modes": ("training", "training")}, "modes: each value may be given once"),
    ],
)
def test_bad_values_say_what_is_right(given, message):
    with pytest.raises(ValueError, match=message):
        CostConfig(**given)


def test_the_baseline_is_always_among_the_rows():
    assert CostConfig(encodings=("shaw", "t5", "shaw"), baseline="learned").rows == ("learned", "shaw", "t5")
    assert CostConfig(encodings=("shaw", "none")).rows == ("shaw", "none")


def test_on_a_cpu():
    config = CostConfig(device="cpu").resolved(cores=8)
    assert (config.models, config.bf16, config.compile, config.together) == (("tiny",), False, False, 1)
    assert (config.batch_of(128), config.batch_of(512), config.batch_of(4096)) == (8, 2, 1)


def test_on_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    config = CostConfig().resolved(cores=16)
    assert (config.device, config.models, config.bf16, config.compile) == ("cuda", ("bert-base",), True, True)
    assert config.together == 8
    assert (config.batch_of(128), config.batch_of(512)) == (256, 64)
    assert CostConfig(device="cuda:1", bf16=False).resolved(cores=16).bf16 is False


def test_a_gpu_that_is_not_here(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device: 'cuda' needs a GPU"):
        CostConfig(device="cuda").resolved(cores=2)
