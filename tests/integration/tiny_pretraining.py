"""Pretraining runs that take a second."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.bench.tasks.pretrain import EncoderChoice, Intervals, Optimisation, PretrainConfig, Text, run

STEPS = 24
TINY = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
WITHOUT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def plan(**changes):
    return Optimisation(**{"steps": STEPS, "batch": 8, "learning_rate": 1e-2, "warmup": 0.1, **changes})


def tiny(data, *, model=None, seed=0, intervals=None, **changes):
    return PretrainConfig(
        model=EncoderChoice(preset="tiny", encoding="diet-rel", changes={**TINY, **(model or {})}),
        text=Text(data=data, length=32, evaluation_rows=48),
        optimisation=plan(**changes),
        intervals=intervals or Intervals(log=4, evaluate=8, checkpoint=4),
        seed=seed,
    )


def pretrain(config, out, **options):
    return run(config, out, progress=False, cpu=True, **options)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Tokenizer and shards that the tests of a file share, made by a run of one step."""
    folder = tmp_path_factory.mktemp("first")
    text = Text(corpus=("builtin:2000",), length=32, validation=0.1, evaluation_rows=48)
    pretrain(replace(tiny("none"), text=text, optimisation=plan(steps=1)), folder / "run")
    return str(folder / "run" / "data")
