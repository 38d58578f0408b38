"""A step of fine-tuning against the same step written out with a padded batch and its own optimizer."""

from __future__ import annotations

import copy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import BertConfig, BertForSequenceClassification

from headway.bench.data.transfer.encoded import Resident, flat
from headway.bench.recording import own_stream
from headway.bench.tasks.finetune.config import Data, Start
from headway.bench.tasks.finetune.model import TransferLoss
from headway.bench.tasks.finetune.recipes import full
from headway.bench.tasks.finetune.training_step import SharedModel, TrainingStep, is_recordable
from headway.bench.tasks.training.optimizer import adamw, rates_as_tensors, set_rate
from headway.models import EncoderForSequenceClassification, preset

CPU = torch.device("cpu")
SIZES = {"hidden_size": 32, "intermediate_size": 64, "vocab_size": 50, "num_hidden_layers": 2}
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def sequences():
    rng = np.random.default_rng(0)
    tokens = [rng.integers(5, 50, length).tolist() for length in (4, 9, 20, 33, 7)]
    segments = [[0] * (len(row) - 2) + [1] * 2 for row in tokens]
    return flat(tokens, segments, labels=np.array([0, 1, 1, 0, 1]), pad=0), tokens, segments


def made(**settings):
    torch.manual_seed(0)
    config = preset("tiny", encoding="learned:segments=per-head", num_labels=2, **{**SIZES, **STILL, **settings})
    return EncoderForSequenceClassification(config).train()


def step_of(model, encoded):
    loss = TransferLoss(model, "classes").train()
    optimizer = adamw(loss, weight_decay=0.1)
    return TrainingStep(loss, optimizer, Resident(encoded, CPU), batch=2, clip=0.05, bf16=False, record=False)


def test_two_steps_are_those_of_the_formula():
    encoded, tokens, segments = sequences()
    model = made()
    other = copy.deepcopy(model)
    step = step_of(model, encoded)
    decaying = [p for p in other.parameters() if p.dim() > 1 and p is not other.encoder.encoding.table]
    decaying = [p for p in decaying if not any(p is q for q in other.encoder.segments.parameters())]
    spared = [p for p in other.parameters() if not any(p is q for q in decaying)]
    groups = [{"params": decaying, "weight_decay": 0.1}, {"params": spared, "weight_decay": 0.0}]
    plain = torch.optim.AdamW(groups, betas=(0.9, 0.999), eps=1e-6)
    for chosen, rate in (((2, 0), 1e-3), ((3, 1), 5e-4)):
        loss, norm = step(np.array(chosen), rate=rate, seed=1)
        longest = max(len(tokens[at]) for at in chosen)
        ids = torch.tensor([tokens[at] + [0] * (longest - len(tokens[at])) for at in chosen])
        kinds = torch.tensor([segments[at] + [0] * (longest - len(segments[at])) for at in chosen])
        scores = other(input_ids=ids, token_type_ids=kinds, attention_mask=(ids != 0).long()).logits
        expected = F.cross_entropy(scores, torch.from_numpy(encoded.labels[list(chosen)]))
        expected.backward()
        torch.testing.assert_close(loss, expected.detach())
        torch.testing.assert_close(norm, torch.nn.utils.clip_grad_norm_(other.parameters(), 0.05))
        assert norm > 0.05
        for group in plain.param_groups:
            group["lr"] = rate
        plain.step()
        plain.zero_grad()
        for (name, value), right in zip(model.named_parameters(), other.parameters(), strict=True):
            if not name.endswith("qkv.bias"):  # a key's bias has no gradient but rounding, which Adam blows up
                torch.testing.assert_close(value, right, atol=1e-5, rtol=1e-4, msg=name)


def test_dropout_is_of_the_seed_alone():
    encoded, *_ = sequences()
    chosen = np.array([0, 2])
    losses = []
    for seed in (1, 1, 2):
        step = step_of(made(hidden_dropout_prob=0.3), encoded)
        torch.rand(seed)  # what was drawn before does not matter
        losses.append(step(chosen, rate=1e-3, seed=seed)[0].item())
    assert losses[0] == losses[1] != losses[2]


def test_steps_of_our_encoders_are_recorded_up_to_their_length():
    ours = made(max_position_embeddings=64)
    assert is_recordable(ours, length=64) and not is_recordable(ours, length=65)
    config = BertConfig(num_attention_heads=4, max_position_embeddings=64, **SIZES)
    assert not is_recordable(BertForSequenceClassification(config), length=64)


def test_a_cpu_needs_no_stream():
    with own_stream(CPU):
        assert torch.ones(2).sum() == 2


def test_rates_that_are_held_follow_set_rate_in_place():
    words, table = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.AdamW([{"params": [words]}, {"params": [table], "times": 10.0}], lr=0.0)
    rates_as_tensors(optimizer, CPU)
    held = [group["lr"] for group in optimizer.param_groups]
    set_rate(optimizer, 0.5)
    assert [rate.item() for rate in held] == [0.5, 5.0]
    assert all(group["lr"] is rate for group, rate in zip(optimizer.param_groups, held, strict=True))


def shared(model, **protocol):
    config = full("rte", Start(model="m"), Data(train=("glue",)))
    config = replace(config, protocol=replace(config.protocol, **protocol))
    data = SimpleNamespace(train=flat([[5, 6, 7]], [[0, 0, 1]], labels=np.array([1]), pad=0))
    return SharedModel(config, model, data, SimpleNamespace(device=torch.device("cpu")), graphs=False)


def test_positions_and_segments_have_a_rate_of_their_own():
    model = EncoderForSequenceClassification(
        preset("tiny", encoding="diet-rel:segments=per-head", num_labels=2, **SIZES)
    )
    times = {}
    for group in shared(model, position_rate=10.0).optimizer.param_groups:
        times |= {id(parameter): group.get("times", 1.0) for parameter in group["params"]}
    for name, parameter in model.named_parameters():
        of_encoding = name.startswith(("encoder.encoding.", "encoder.segments."))
        assert times[id(parameter)] == (10.0 if of_encoding else 1.0), name


def test_a_rate_of_positions_that_are_not_ours_is_refused():
    model = BertForSequenceClassification(BertConfig(num_attention_heads=2, **SIZES))
    shared(model)
    with pytest.raises(ValueError, match=r"position_rate: got 10, but this model has no encoding"):
        shared(model, position_rate=10.0)
