"""q, k and v in one tensor: the same attention, and its gradient in one tensor."""

import pytest
import torch

import headway as hw


def apart(qkv):
    return qkv.permute(2, 0, 3, 1, 4)


def biases(length):
    values, factors = torch.randn(1, 3, 2 * length - 1), torch.randn(2, 1, 3, length, 4)
    table = torch.randn(1, 5, 8)
    return {
        "none": (None, None),
        "toeplitz": (hw.Toeplitz(values.double()), None),
        "low rank": (hw.LowRank(*factors.double()), None),
        "relative": (hw.RelativeKeys(table.double()), hw.RelativeValues(table.double())),
    }


@pytest.mark.parametrize("backend", ["auto", "eager", "blockwise"])
@pytest.mark.parametrize("kind", ["none", "toeplitz", "low rank", "relative"])
def test_as_attention_of_the_three(kind, backend):
    bias, value_bias = biases(20)[kind]
    qkv = torch.randn(2, 20, 3, 3, 8, dtype=torch.float64, requires_grad=True)
    options = {"causal": True, "lengths": torch.tensor([20, 7]), "scale": 0.2, "backend": backend}
    output = hw.self_attention(qkv, bias, value_bias, **options)
    expected = hw.attention(*apart(qkv), bias, value_bias, **options)
    assert torch.equal(output, expected)
    upstream = torch.randn_like(output)
    assert torch.equal(*(torch.autograd.grad(o, qkv, upstream)[0] for o in (output, expected)))


def test_under_autocast_as_attention_of_the_three():
    qkv = torch.randn(2, 20, 3, 3, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        output, expected = hw.self_attention(qkv), hw.attention(*apart(qkv))
    assert output.dtype == torch.bfloat16
    assert torch.equal(output, expected)
    assert torch.equal(*(torch.autograd.grad(o.sum(), qkv)[0] for o in (output, expected)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own code
def test_compiled_whole():
    qkv = torch.randn(2, 20, 3, 3, 8, requires_grad=True)
    values = torch.randn(1, 3, 39, requires_grad=True)

    def run(qkv, values):
        return hw.self_attention(qkv, hw.Toeplitz(values))

    expected = torch.autograd.grad(run(qkv, values).square().sum(), (qkv, values))
    found = torch.autograd.grad(torch.compile(run, fullgraph=True)(qkv, values).square().sum(), (qkv, values))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "given", [torch.zeros(2, 20, 9, 8), torch.zeros(2, 3, 20, 3, 8), [1, 2]], ids=["three axes", "length", "list"]
)
def test_another_shape_is_refused(given):
    with pytest.raises(ValueError, match=r"expected q, k and v beside one another, \(B, L, 3, H, D\)"):
        hw.self_attention(given)


@pytest.mark.parametrize(("encoding", "packed"), [("none", True), ("diet-rel", True), ("shaw", True), ("rope", False)])
def test_an_encoder_hands_over_what_it_projected_unless_it_turns_it(encoding, packed, monkeypatch):
    from headway.models import EncoderConfig, EncoderModel, context

    calls = []
    own = context.self_attention
    monkeypatch.setattr(
        context, "self_attention", lambda qkv, **options: calls.append(qkv.shape) or own(qkv, **options)
    )
    config = EncoderConfig(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, encoding=encoding)
    EncoderModel(config)(torch.randint(5, 50, (2, 12)))
    assert calls == ([(2, 12, 3, 2, 16)] * 2 if packed else [])
