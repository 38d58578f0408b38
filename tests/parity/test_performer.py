"""Kernelised attention with a Toeplitz bias: the dense formula in float64, its gradients, and what it approximates."""

import math

import pytest
import torch
from torch.testing import assert_close

from headway.bias import Toeplitz
from headway.models import EncoderConfig, EncoderForMaskedLM, EncoderModel, performer
from headway.models.performer import RandomFeatures, kernelised_attention

B, H, D, M = 2, 2, 4, 6
EXACT = {"rtol": 1e-8, "atol": 1e-8}


def random(*shape, seed=1):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def features_of(normalised, count=M, width=D):
    torch.manual_seed(3)
    return RandomFeatures(2, H, count, width, normalised).double()


def by_hand(q, k, v, features, layer, values, lengths, normalised):
    """Luo et al. (2021): the sum over keys of exp(b[j - i]) phi(q[i]) . phi(k[j]) v[j], over that without v."""

    def phi(x, h):
        x = x / x.norm() if normalised else x * D**-0.25
        return torch.stack([torch.exp(w @ x - x @ x / 2) / math.sqrt(M) for w in features.directions[layer, h]])

    out, n = torch.zeros_like(v), q.shape[2]
    for b in range(B):
        for h in range(H):
            for i in range(n):
                total, weights = 0.0, 0.0
                for j in range(n if lengths is None else int(lengths[b])):
                    factor = 1.0 if values is None else torch.exp(values[0, min(h, values.shape[1] - 1), j - i + n - 1])
                    weight = factor * (phi(q[b, h, i], h) @ phi(k[b, h, j], h))
                    total, weights = total + weight * v[b, h, j], weights + weight
                out[b, h, i] = total / weights
    return out


@pytest.fixture(params=["by blocks", "by FFT"])
def either_way(request, monkeypatch):
    """Both ways to compute the sums, some queries or some features at a time."""
    monkeypatch.setattr(performer, "TRANSFORM_FROM", 1 if request.param == "by FFT" else 1 << 30)
    monkeypatch.setattr(performer, "BLOCK", 3)
    monkeypatch.setattr(performer, "CHANNELS", 2 * (D + 1))


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("heads", [None, 1, H])
@pytest.mark.parametrize("length", [1, 5, 8])
def test_the_formula(normalised, heads, length):
    q, k, v = random(3, B, H, length, D, seed=9).unbind(0)
    features, values = features_of(normalised), None if heads is None else random(1, heads, 2 * length - 1, seed=4)
    bias = None if values is None else Toeplitz(values, length)
    for lengths in (None, torch.tensor([length, max(1, length - 2)])):
        keep = None if lengths is None else torch.arange(length) < lengths[:, None]
        for layer in range(2):
            want = by_hand(q, k, v, features, layer, values, lengths, normalised)
            assert_close(kernelised_attention(q, k, v, features, layer, bias=bias, keep=keep), want, **EXACT)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("normalised", [True, False])
def test_gradients(normalised):
    q, k, v = random(3, B, H, 5, D, seed=9).unbind(0)
    features = features_of(normalised)
    tensors = [t.clone().requires_grad_() for t in (q, k, v, random(1, H, 9, seed=4))]
    lengths = torch.tensor([5, 3])
    keep = torch.arange(5) < lengths[:, None]

    def loss(out):
        return (out * random(B, H, 5, D, seed=7)).sum()

    got = torch.autograd.grad(
        loss(kernelised_attention(*tensors[:3], features, 1, bias=Toeplitz(tensors[3], 5), keep=keep)), tensors
    )
    want = torch.autograd.grad(loss(by_hand(*tensors[:3], features, 1, tensors[3], lengths, normalised)), tensors)
    for one, other in zip(got, want, strict=True):
        assert_close(one, other, **EXACT)


def test_long_texts_are_transformed(monkeypatch):
    called = []
    for name in ("_direct_sums", "_transformed_sums"):
        made = getattr(performer, name)
        monkeypatch.setattr(performer, name, lambda *given, made=made, name=name: called.append(name) or made(*given))
    monkeypatch.setattr(performer, "TRANSFORM_FROM", 8)
    outs = []
    for length in (7, 8):
        q, k, v = random(3, B, H, 8, D, seed=9)[..., :length, :].unbind(0)
        values = random(1, H, 15)[..., 8 - length : 7 + length]
        outs.append(kernelised_attention(q, k, v, features_of(True), 0, bias=Toeplitz(values, length)))
    assert called == ["_direct_sums", "_transformed_sums"]
    assert not torch.allclose(outs[0], outs[1][:, :, :7])  # the last key counts


@pytest.mark.usefixtures("either_way")
def test_many_features_approximate_softmax_attention_with_the_bias():
    """Choromanski et al. (2021): the mean of phi(q) . phi(k) is exp(q . k / sqrt(D))."""
    q, k, v = (0.5 * t for t in random(3, B, H, 9, D, seed=9).unbind(0))
    bias = Toeplitz(random(1, H, 17), 9)
    exact = (q @ k.mT / 2 + bias.dense()).softmax(-1) @ v
    errors = [
        (kernelised_attention(q, k, v, features_of(False, count), 0, bias=bias) - exact).abs().mean().item()
        for count in (4, 64, 16384)
    ]
    assert errors[0] > 3 * errors[1] > 9 * errors[2] and errors[2] < 0.002


def test_directions_are_orthogonal_and_as_long_as_normal_vectors():
    directions = features_of(True, count=500, width=100).directions  # five groups of 100
    products = directions[0, 0, :100] @ directions[0, 0, :100].mT
    assert_close(products - products.diagonal().diag(), torch.zeros_like(products), rtol=0, atol=1e-4)
    assert directions.norm(dim=-1).mean().item() == pytest.approx(10.0, rel=0.02)
    assert not torch.equal(directions[0, 0], directions[0, 1]) and not torch.equal(directions[0], directions[1])


@pytest.mark.usefixtures("either_way")
def test_large_scores_do_not_overflow():
    q, k, v = (30 * t.float() for t in random(3, B, H, 9, D, seed=9).unbind(0))
    bias = Toeplitz(50 * random(1, H, 17).float(), 9)
    for normalised in (True, False):
        out = kernelised_attention(q, k, v, features_of(normalised).float(), 0, bias=bias)
        assert torch.isfinite(out).all()


SIZES = {
    "vocab_size": 29,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 16,
    "attention": "performer",
    "num_features": 5,
    "attention_probs_dropout_prob": 0.0,
}
TAKEN = ["none", "learned", "sinusoidal", "rope", "t5", "tisa", "alibi", "diet-rel", "rel-scalar", "learned+tisa"]


def build(encoding, kind=EncoderModel, **options):
    torch.manual_seed(0)
    model = kind(EncoderConfig(**{**SIZES, "encoding": encoding, **options})).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("encoding", TAKEN)
def test_padding_changes_nothing_and_order_is_seen_as_declared(encoding):
    model = build(encoding)
    tokens = torch.randint(1, 29, (2, 9), generator=torch.Generator().manual_seed(1))
    alone = model(tokens[1:, :5]).last_hidden_state
    mask = torch.arange(9) < torch.tensor([9, 5])[:, None]
    for padded in ({"attention_mask": mask.long()}, {"lengths": torch.tensor([9, 5])}):
        assert_close(model(tokens, **padded).last_hidden_state[1:, :5], alone, **EXACT)
    order = [1, 0, 2, 3, 5, 4, 6, 8, 7]
    one, other = model(tokens).last_hidden_state[:, order], model(tokens[:, order]).last_hidden_state
    assert torch.allclose(one, other, atol=1e-8) != model.encoding.sees_order


@pytest.mark.parametrize("encoding", TAKEN)
def test_weights_on_request_belong_to_the_same_output(encoding):
    model, tokens = build(encoding), torch.randint(1, 29, (2, 9))
    plain, asked = model(tokens), model(tokens, output_attentions=True)
    assert_close(asked.last_hidden_state, plain.last_hidden_state, **EXACT)
    layer, x = model.layers[0], model.norm(model._context(e := model.words(tokens), None, None, None, None).embed(e))
    v = layer.attention.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)[2]
    mixed = layer.attention.output((asked.attentions[0] @ v).transpose(1, 2).flatten(2))
    first = model(tokens, output_hidden_states=True).hidden_states[1]
    x = layer.attention_norm(x + mixed)
    assert_close(layer.norm(x + layer.down(torch.nn.functional.gelu(layer.up(x)))), first, **EXACT)


@pytest.mark.parametrize("encoding", ["diet-rel", "learned+tisa", "t5:sharing=layer"])
def test_every_parameter_is_trained(encoding):
    model = build(encoding, EncoderForMaskedLM).train()
    tokens = torch.randint(1, 29, (2, 16))
    model(tokens, token_type_ids=torch.randint(2, (2, 16)), labels=tokens).loss.backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum()] == []


def test_directions_are_saved_with_the_model(tmp_path):
    model, tokens = build("diet-rel"), torch.randint(1, 29, (2, 9))
    model.save_pretrained(tmp_path)
    torch.manual_seed(99)
    again = EncoderModel.from_pretrained(tmp_path, dtype=torch.float64)
    assert torch.equal(again.features.directions, model.features.directions)
    assert torch.equal(again(tokens).last_hidden_state, model(tokens).last_hidden_state)


@pytest.mark.parametrize("encoding", ["shaw", "transformer-xl", "diet-abs", "tupe-rel", "learned:segments=per-head"])
def test_what_is_no_number_of_an_offset_is_refused(encoding):
    with pytest.raises(NotImplementedError, match=r"performer multiplies its weights.*or attention='full'"):
        EncoderConfig(**SIZES, encoding=encoding)


def test_packed_texts_and_masks_between_queries_are_refused():
    model, tokens = build("diet-rel"), torch.randint(1, 29, (2, 8))
    with pytest.raises(NotImplementedError, match="documents: performer sums over all keys"):
        model(tokens, documents=torch.zeros(2, 8, dtype=torch.long))
    with pytest.raises(NotImplementedError, match=r"attention_mask: .*\(2, 1, 8, 8\)"):
        model(tokens, attention_mask=torch.ones(2, 8, 8, dtype=torch.bool))
