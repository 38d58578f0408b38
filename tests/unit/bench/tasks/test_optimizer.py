"""Which parameters decay, which have a rate of their own, and that AdamW is BERT's."""

from __future__ import annotations

import pytest
import torch

from headway.bench.tasks.training.optimizer import adamw, fusible, parameter_groups, set_rate
from headway.encodings import ENCODINGS
from headway.models import EncoderForMaskedLM, preset


def model(**choices):
    small = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 40}
    return EncoderForMaskedLM(preset("tiny", **small, **choices))


def decay_by_name(built):
    every = parameter_groups(built, 0.01, 1.0)
    decays = {id(parameter): group["weight_decay"] for group in every for parameter in group["params"]}
    assert len(decays) == sum(len(group["params"]) for group in every)
    return {name: decays[id(parameter)] for name, parameter in built.named_parameters()}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_parameter_is_in_one_group_and_only_matrices_of_the_model_decay(encoding):
    built = model(encoding=f"{encoding}:segments=per-head")
    decays = decay_by_name(built)
    assert decays["encoder.words.weight"] == 0.01
    for name, parameter in built.named_parameters():
        of_encoding = name.startswith(("encoder.encoding.", "encoder.segments."))
        vector = name.endswith(".bias") or "norm" in name
        assert decays[name] == (0.0 if of_encoding or vector else 0.01), name
        assert not (vector and parameter.dim() > 1 and not of_encoding)


def test_a_frozen_parameter_is_in_no_group():
    built = model(encoding="learned")
    built.encoder.words.weight.requires_grad_(False)
    listed = {id(parameter) for group in parameter_groups(built, 0.01, 1.0) for parameter in group["params"]}
    assert id(built.encoder.words.weight) not in listed


def test_a_step_is_adamw_by_hand():
    built = torch.nn.Linear(2, 1).double()
    weight, bias = built.weight.detach().clone(), built.bias.detach().clone()
    optimizer = adamw(built, weight_decay=0.1)
    optimizer.param_groups[0]["lr"] = optimizer.param_groups[1]["lr"] = 0.5
    built.weight.grad, built.bias.grad = torch.full_like(weight, 3.0), torch.full_like(bias, -2.0)
    optimizer.step()
    # The first step of Adam moves each weight by the rate, against the sign of its gradient, up to epsilon.
    torch.testing.assert_close(built.weight.detach(), weight * (1 - 0.5 * 0.1) - 0.5 * 3.0 / (3.0 + 1e-6))
    torch.testing.assert_close(built.bias.detach(), bias + 0.5 * 2.0 / (2.0 + 1e-6))


def test_whole_tensors_of_one_device_are_updated_by_one_kernel():
    built = model(encoding="learned")
    assert fusible(built) and adamw(built, weight_decay=0.1).defaults["fused"]
    built.prediction.norm.to("meta")
    assert not fusible(built)


def test_encodings_take_their_own_rate():
    built = model(encoding="diet-rel")
    optimizer = adamw(built, weight_decay=0.01, position_rate=10.0)
    set_rate(optimizer, 0.5)
    rates = {id(parameter): group["lr"] for group in optimizer.param_groups for parameter in group["params"]}
    for name, parameter in built.named_parameters():
        assert rates[id(parameter)] == (5.0 if name.startswith(("encoder.encoding.", "encoder.segments.")) else 0.5), (
            name
        )
