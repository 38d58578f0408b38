"""LayerNorm: torch's, except that under autocast its output has autocast's dtype."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from headway.models import EncoderForMaskedLM, preset
from headway.models.norm import LayerNorm


def pair(dtype=torch.float32):
    torch.manual_seed(0)
    ours, theirs = LayerNorm(24).to(dtype), nn.LayerNorm(24).to(dtype)
    with torch.no_grad():
        ours.weight.normal_()
        ours.bias.normal_()
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs, torch.randn(5, 24, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_it_is_torchs_without_autocast(dtype):
    ours, theirs, x = pair(dtype)
    assert torch.equal(ours(x), theirs(x))


def test_under_autocast_it_is_torchs_rounded_once():
    ours, theirs, x = pair()
    with torch.autocast("cpu", torch.bfloat16):
        got, want = ours(x), theirs(x)
    assert want.dtype == torch.float32
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, want.bfloat16())


def test_autocast_leaves_double_alone():
    ours, _, x = pair(torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        assert ours(x).dtype == torch.float64


def test_a_model_under_autocast_keeps_half_precision_between_layers():
    model = EncoderForMaskedLM(preset("tiny", vocab_size=50, encoding="diet-rel")).eval()
    words = torch.randint(5, 50, (2, 12))
    with torch.autocast("cpu", torch.bfloat16):
        states = model(words, output_hidden_states=True).hidden_states
    assert {state.dtype for state in states} == {torch.bfloat16}
    exact = model(words, output_hidden_states=True).hidden_states
    assert_close(states[-1].float(), exact[-1], rtol=0.05, atol=0.05)
