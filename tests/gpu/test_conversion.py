"""Converted models on the fused kernels: on a GPU, or interpreted on the CPU (TRITON_INTERPRET=1).

Against float64, outputs and gradients may miss by three times what the eager path misses in the same dtype, plus one
rounding step of the number itself and of a typical gradient: those of the keys' offsets are 0 but for rounding.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial

import pytest
import torch
from transformers import BertConfig, BertModel

from headway.attention import call
from headway.pretrained.conversion import BIASES, convert
from headway.pretrained.conversion.converted import encoding_of
from headway.pretrained.fusing import interface

CUDA = torch.cuda.is_available()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if CUDA else "cpu"
DTYPES = [torch.bfloat16, torch.float32] if CUDA else [torch.float32]
LAYERS, WIDTH = 2, 64 if CUDA else 16
SIZES = {"vocab_size": 60, "num_hidden_layers": LAYERS, "num_attention_heads": 2, "hidden_size": 2 * WIDTH}

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not (CUDA or INTERPRETED), reason="no GPU, and TRITON_INTERPRET is not 1"),
    pytest.mark.filterwarnings("ignore:.*no current CUDA context.*:UserWarning"),
]


@pytest.fixture
def fused(monkeypatch):
    """Lengths of the queries that the fused kernels were asked about."""
    asked = []
    own = call.BACKENDS["triton"]

    def plan(request):
        made = own(request)
        return made if isinstance(made, str) else replace(made, run=lambda request: spy(request, made))

    def spy(request, made):
        asked.append(request.q.shape[-2])
        return made.run(request)

    monkeypatch.setitem(call.BACKENDS, "triton", plan)
    return asked


def converted(to, mode, length):
    """A small random BERT, its bias drawn large enough to be missed."""
    torch.manual_seed(0)
    config = BertConfig(**SIZES, intermediate_size=3 * WIDTH, max_position_embeddings=length, initializer_range=0.2)
    model = convert(BertModel(config).eval(), to, mode=mode, start=None if to == "alibi" else "random")
    with torch.no_grad():
        for parameter in encoding_of(model).parameters():
            parameter.normal_()
    return model.to(DEVICE)


def batch(length):
    """Ids, padding, and what the outputs are weighed by; rows of padding count for nothing."""
    ids = torch.randint(5, 60, (3, length), device=DEVICE)
    mask = (torch.arange(length) < torch.tensor([[length], [2 * length // 3], [1]])).long().to(DEVICE)
    weigh = torch.randn(3, length, 2 * WIDTH, dtype=torch.float64, device=DEVICE) * mask[..., None]
    return ids, mask, weigh


def outcome(model, dtype, ids, mask, weigh):
    """The states that count, and the gradients of all parameters, in float64."""
    model = model.to(dtype)
    model.zero_grad()
    output = model(ids, attention_mask=mask)
    states = output.last_hidden_state.double() * (weigh != 0)
    ((states * weigh).sum() + output.pooler_output.double().sum()).backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert all(gradient is not None for gradient in found.values())
    return {"states": states.detach(), **{name: gradient.double().clone() for name, gradient in found.items()}}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("length", [60, 200] if CUDA else [24])
@pytest.mark.parametrize("mode", ["supplement", "replace"] if CUDA else ["replace"])
@pytest.mark.parametrize("to", BIASES)
def test_a_converted_model_runs_fused_and_agrees_with_eager(monkeypatch, fused, to, mode, length, dtype):
    model, inputs = converted(to, mode, length).to(dtype), batch(length)
    if not CUDA:  # where nobody would choose the interpreter
        monkeypatch.setattr(interface, "attention", partial(call.attention, backend="triton"))
    mine = outcome(model, dtype, *inputs)
    assert fused == [length] * LAYERS
    monkeypatch.setattr(interface, "attention", partial(call.attention, backend="eager"))
    eager, truth = (outcome(model, kept, *inputs) for kept in (dtype, torch.float64))
    assert fused == [length] * LAYERS
    typical = torch.stack([gradient.norm() for name, gradient in truth.items() if name != "states"]).median()
    missed = {}
    for name, true in truth.items():
        assert torch.isfinite(mine[name]).all(), name
        size = true.norm() + typical
        if name.endswith("key.bias"):  # its gradient is zero, a sum of many that cancel
            size = 10 * (size + truth[name.replace("bias", "weight")].norm())
        allowed = 3 * (eager[name] - true).norm() + torch.finfo(dtype).eps * size
        error = (mine[name] - true).norm()
        if not error <= allowed:
            missed[name] = f"error {error:.2e}, allowed {allowed:.2e}"
    assert not missed, missed
