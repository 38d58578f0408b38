"""Layers of a model that share a bias, which is multiplied out once for all of them, against float64."""

from __future__ import annotations

import copy
import importlib

import pytest
import torch
from oracle import CUDA, DEVICE

import headway as hw

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("small_tiles"),
    pytest.mark.skipif(not CUDA, reason="only the Hopper kernels take what layers share as a matrix"),
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own code
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("length", [100, 300])
@pytest.mark.parametrize("encoding", ["t5", "tupe-rel", "diet-abs"])
def test_layers_that_share_a_bias(one_tile, encoding, length, compiled, monkeypatch):
    """Multiplied out once, they come no further from float64 than multiplied out in every layer."""
    context = importlib.import_module("headway.models.context")
    sizes = {"hidden_size": 128, "num_attention_heads": 2, "num_hidden_layers": 3, "max_position_embeddings": 300}
    config = hw.preset("tiny", encoding=f"{encoding}:sharing=layer", vocab_size=50, **sizes)
    model = hw.EncoderModel(config).to(DEVICE).eval()
    for parameter in model.encoding.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    words = torch.randint(50, (5, length), device=DEVICE)
    upstream = torch.randn(5, length, 128, device=DEVICE)
    once, shared = context.for_layers, []

    def result(model, half):
        torch._dynamo.reset()
        run = torch.compile(model, fullgraph=True) if compiled and half else model
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            hidden = run(words).last_hidden_state
        grads = torch.autograd.grad(hidden, list(model.encoding.parameters()), upstream.to(hidden.dtype))
        return [t.double() for t in (hidden, *grads)]

    def recorded(*arguments, **kinds):
        shared.append(once(*arguments, **kinds))
        return shared[-1]

    truth = result(copy.deepcopy(model).double(), half=False)
    monkeypatch.setattr(context, "for_layers", once if compiled else recorded)
    of_once = result(model, half=True)
    monkeypatch.setattr(context, "for_layers", lambda bias, *sizes, **kinds: bias)
    of_each = result(model, half=True)
    for right, mine, theirs in zip(truth, of_once, of_each, strict=True):
        assert (mine - right).norm() <= 1.5 * (theirs - right).norm() + 0.01 * right.norm()
    if not compiled:
        assert isinstance(shared[0], hw.Dense) == (length <= 128 or encoding != "t5")
