"""Linformer and DIET-ABS-LIN: Eq. (4) of Chen et al. (2021b) in plain loops, with and without padding."""

import math

import pytest
import torch
from torch.testing import assert_close

from headway.attention.linformer import projected
from headway.models import EncoderConfig, EncoderForMaskedLM, EncoderModel

SIZES = {
    "vocab_size": 23,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 9,
    "attention": "linformer",
    "projected_length": 3,
}
EXACT = {"rtol": 1e-10, "atol": 1e-10}


def build(kind=EncoderModel, **options):
    torch.manual_seed(0)
    model = kind(EncoderConfig(**{**SIZES, **options})).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def by_hand(model, words, kept, e, f, left=None, right=None):
    """The output of a one-layer model; e, f: (H, P, n), left: (H, n, R), right: (H, P, R), kept: what is no padding."""
    layer = model.layers[0]
    x = model.words(words)
    if hasattr(model.encoding, "table"):
        x = x + model.encoding.table[: len(words)]
    x = model.norm(x + model.segments.table[0])
    weight, bias = layer.attention.qkv.weight, layer.attention.qkv.bias
    heads = []
    for h in range(2):
        rows = [slice(8 * part + 4 * h, 8 * part + 4 * h + 4) for part in range(3)]
        q, k, v = (x @ weight[r].T + bias[r] for r in rows)
        out = torch.zeros(len(words), 4, dtype=torch.float64)
        for i in range(len(words)):
            scores, values = [], []
            for p in range(3):
                key = sum(e[h, p, j] * k[j] for j in kept)
                values.append(sum(f[h, p, j] * v[j] for j in kept))
                score = q[i] @ key / math.sqrt(4)
                scores.append(score if left is None else score + left[h, i] @ right[h, p])
            weights = torch.stack(scores).softmax(0)
            out[i] = sum(w * value for w, value in zip(weights, values, strict=True))
        heads.append(out)
    mixed = layer.attention.output(torch.cat(heads, -1))
    x = layer.attention_norm(x + mixed)
    return layer.norm(x + layer.down(torch.nn.functional.gelu(layer.up(x))))


SHARED = {"none": (2, 2), "head": (2, 1), "key-value": (1, 1), "layer": (1, 1)}


@pytest.mark.parametrize("sharing", SHARED)
def test_the_baseline(sharing):
    """Wang et al. with a learned encoding at the input; every way of sharing the projections."""
    model = build(num_hidden_layers=1, projection_sharing=sharing)
    assert model.projection.matrix.shape == (1, *SHARED[sharing], 3, 9)
    e, f = (model.projection.matrix[0, part].expand(2, 3, 9) for part in (0, -1))
    words = torch.randint(1, 23, (7,))
    want = by_hand(model, words, range(7), e, f)
    assert_close(model(words[None]).last_hidden_state[0], want, **EXACT)


@pytest.mark.parametrize("sharing", ["none", "head", "layer"])
def test_diet_abs_lin(sharing):
    model = build(num_hidden_layers=1, encoding=f"diet-abs:rank=5,sharing={sharing}")
    left, right = model.encoding.left, model.encoding.right
    heads = 1 if sharing == "head" else 2
    assert left.shape == (1, heads, 9, 5)
    assert right.shape == (1, heads, 3, 5)  # one row for each projected key, none unused
    e = model.projection.matrix[0, 0].expand(2, 3, 9)
    words = torch.randint(1, 23, (7,))
    want = by_hand(model, words, range(7), e, e, left[0].expand(2, 9, 5), right[0].expand(2, 3, 5))
    assert_close(model(words[None]).last_hidden_state[0], want, **EXACT)


@pytest.mark.parametrize("encoding", ["none", "sinusoidal", "learned", "diet-abs", "learned+diet-abs"])
def test_padding_has_no_part_in_the_mixtures(encoding):
    model = build(encoding=encoding)
    words = torch.randint(1, 23, (2, 8))
    alone = model(words[1:, :5]).last_hidden_state
    lengths = torch.tensor([8, 5])
    mask = torch.arange(8) < lengths[:, None]
    for padded in (
        {"attention_mask": mask.long()},
        {"attention_mask": mask[:, None, None, :]},
        {"lengths": lengths},
    ):
        assert_close(model(words, **padded).last_hidden_state[1:, :5], alone, **EXACT)
    holes = mask.clone()
    holes[1, 2] = False
    changed = words.clone()
    changed[1, 2] = words[1, 2] % 22 + 1
    one, other = (model(w, attention_mask=holes).last_hidden_state[1] for w in (words, changed))
    assert_close(one[[0, 1, 3, 4]], other[[0, 1, 3, 4]], **EXACT)


def test_weights_are_of_the_projected_keys():
    weights = build()(torch.randint(1, 23, (2, 8)), output_attentions=True).attentions
    assert [w.shape for w in weights] == [(2, 2, 8, 3)] * 2
    assert_close(weights[0].sum(-1), torch.ones(2, 2, 8, dtype=torch.float64), **EXACT)


@pytest.mark.parametrize("sharing", SHARED)
@pytest.mark.parametrize("encoding", ["none", "learned", "diet-abs", "learned+diet-abs"])
def test_every_parameter_is_trained(encoding, sharing):
    model = build(EncoderForMaskedLM, encoding=encoding, projection_sharing=sharing).train()
    words = torch.randint(1, 23, (2, 9))
    model(words, token_type_ids=torch.randint(2, (2, 9)), labels=words).loss.backward()
    still = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum()]
    assert still == []


@pytest.mark.parametrize("encoding", ["shaw", "rope", "abs-scalar", "learned:segments=per-head"])
def test_what_cannot_act_says_so(encoding):
    with pytest.raises(NotImplementedError, match=r"diet-abs.*or attention='full'"):
        EncoderConfig(**{**SIZES, "encoding": encoding})


def test_packed_texts_and_masks_between_queries_say_so():
    model, words = build(), torch.randint(1, 23, (2, 8))
    with pytest.raises(NotImplementedError, match=r"documents: .*Pad each text"):
        model(words, documents=torch.zeros(2, 8, dtype=torch.long))
    with pytest.raises(NotImplementedError, match=r"attention_mask: .*\(2, 1, 8, 8\)"):
        model(words, attention_mask=torch.ones(2, 8, 8, dtype=torch.bool))


def test_longer_than_the_projection_says_so():
    with pytest.raises(ValueError, match="expected at most 9"):
        projected(torch.randn(1, 2, 10, 4), torch.randn(1, 3, 9))
    with pytest.raises(ValueError, match="expected at most 9"):
        build(encoding="sinusoidal")(torch.ones(1, 10, dtype=torch.long))
