"""The check finds nothing wrong with what is right, and finds whatever is broken on purpose."""

from contextlib import nullcontext

import pytest
import torch

from headway.attention.call import attention
from headway.bench.cost.contestant import Contestant, strengthen_weights
from headway.bench.cost.parity import parity, parity_problem
from headway.bench.cost.steps import MaskedBatch

PARTS = {"output", "inference", "gradients of the encoding", "other gradients"}


def gate(text, *, bf16=False, inference=None):
    torch.manual_seed(0)
    contestant = Contestant(text)
    model = contestant.build("tiny", length=33, dropout=0.1, segments="input")
    strengthen_weights(model, 33)
    words = MaskedBatch.random(2, 33, model.config.vocab_size, seed=0, device="cpu")
    inputs = words.inputs(segments=False)
    labels = words.masked_labels() if contestant.at_masked_places else words.all_labels()

    def hidden():
        with torch.no_grad():
            return (inference or model.base_model)(**inputs).last_hidden_state

    precision = (lambda: torch.autocast("cpu", torch.bfloat16)) if bf16 else nullcontext
    assert model.training
    errors = parity(model, inputs, labels, hidden, precision)
    assert model.training
    return errors


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("text", ["learned", "diet-rel", "diet-abs", "tupe-rel", "shaw"])
def test_what_is_right_is_green(text, bf16):
    errors = gate(text, bf16=bf16)
    assert set(errors) == PARTS
    assert parity_problem(errors) is None


@pytest.mark.parametrize(
    "options",
    ["", ":compile=false,graphs=false", ":mask=false", ":mask=false,kernels=cudnn", ":mask=false,head=masked"],
)
def test_transformers_is_held_to_the_same(options):
    errors = gate("transformers" + options)
    assert set(errors) == PARTS - {"gradients of the encoding"}
    assert parity_problem(errors) is None


def broken(monkeypatch, change):
    """All attention outside the plain formula goes wrong."""

    def call(q, k, v, **arguments):
        return change(q, k, v, arguments)

    def packed(qkv, **arguments):
        return call(*qkv.permute(2, 0, 3, 1, 4), **arguments)

    monkeypatch.setattr("headway.models.context.attention", call)
    monkeypatch.setattr("headway.models.context.self_attention", packed)


def lose_bias(q, k, v, arguments):
    return attention(q, k, v, **{**arguments, "bias": None})


def lose_scale(q, k, v, arguments):
    return attention(q, k, v, **{**arguments, "scale": 0.9 * q.shape[-1] ** -0.5})


def lose_gradient(q, k, v, arguments):
    return attention(q, k.detach(), v, **arguments)


def not_numbers(q, k, v, arguments):
    return attention(q, k, v, **arguments) * float("nan")


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("change", [lose_bias, lose_scale])
def test_a_wrong_output_is_red(change, bf16, monkeypatch):
    broken(monkeypatch, change)
    errors = gate("diet-rel", bf16=bf16)
    assert errors["output"] > 1 and errors["inference"] > 1
    assert "output" in parity_problem(errors) and "not timed" in parity_problem(errors)


@pytest.mark.parametrize("bf16", [False, True])
def test_a_wrong_gradient_is_red_though_the_output_is_right(bf16, monkeypatch):
    broken(monkeypatch, lose_gradient)
    errors = gate("diet-rel", bf16=bf16)
    assert errors["output"] <= 1 and errors["inference"] <= 1
    assert errors["other gradients"] > 1


def test_a_lost_gradient_of_the_encoding_is_red(monkeypatch):
    def detached(q, k, v, arguments):
        bias = arguments["bias"].detach()
        values = [t.requires_grad_() for t in bias.tensors.values()]
        kept = attention(q, k, v, **{**arguments, "bias": bias})
        return kept + 0 * sum(t.sum() for t in arguments["bias"].tensors.values()) + 0 * values[0].sum()

    broken(monkeypatch, detached)
    errors = gate("diet-rel")
    assert errors["output"] <= 1 and errors["other gradients"] <= 1
    assert errors["gradients of the encoding"] > 1


def test_inference_has_its_own_gate():
    other = Contestant("none").build("tiny", length=33, dropout=0.0, segments="input").base_model.eval()
    errors = gate("diet-rel", inference=other)
    assert errors["inference"] > 1 and errors["output"] <= 1


def test_what_is_no_number_is_red(monkeypatch):
    broken(monkeypatch, not_numbers)
    errors = gate("diet-rel")
    assert errors["output"] is None
    assert "output not finite" in parity_problem(errors)
