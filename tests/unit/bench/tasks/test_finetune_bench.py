"""What all runs of a sweep train with."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from headway.bench.data.transfer.encoded import flat
from headway.bench.tasks.finetune.bench import Bench
from headway.bench.tasks.finetune.config import Data, Start
from headway.bench.tasks.finetune.recipes import full
from headway.models import EncoderForSequenceClassification, preset

SIZES = {"hidden_size": 32, "intermediate_size": 64, "vocab_size": 50, "num_hidden_layers": 2}


def bench(model, **protocol):
    config = full("rte", Start(model="m"), Data(train=("glue",)))
    config = replace(config, protocol=replace(config.protocol, **protocol))
    data = SimpleNamespace(train=flat([[5, 6, 7]], [[0, 0, 1]], labels=np.array([1]), pad=0))
    return Bench(config, model, data, SimpleNamespace(device=torch.device("cpu")), graphs=False)


def test_positions_and_segments_have_a_rate_of_their_own():
    model = EncoderForSequenceClassification(
        preset("tiny", encoding="diet-rel", segments="per-head", num_labels=2, **SIZES)
    )
    times = {}
    for group in bench(model, position_rate=10.0).optimizer.param_groups:
        times |= {id(parameter): group.get("times", 1.0) for parameter in group["params"]}
    for name, parameter in model.named_parameters():
        of_encoding = name.startswith(("encoder.encoding.", "encoder.segments."))
        assert times[id(parameter)] == (10.0 if of_encoding else 1.0), name


def test_a_rate_of_positions_that_are_not_ours_is_refused():
    model = BertForSequenceClassification(BertConfig(num_attention_heads=2, **SIZES))
    bench(model)
    with pytest.raises(ValueError, match=r"position_rate: expected 1 .* got 10"):
        bench(model, position_rate=10.0)
