"""Sliding-window attention: the formula by a dense mask in float64, for every kind of bias and mask."""

import pytest
import torch
from torch.testing import assert_close

from headway.bias import (
    Dense,
    EdgeKeys,
    LowRank,
    RelativeKeys,
    RelativeProducts,
    RelativeValues,
    SegmentTable,
    Toeplitz,
)
from headway.encodings import ENCODINGS
from headway.models import EncoderConfig, EncoderForMaskedLM, EncoderModel
from headway.models.local import local_attention

B, H, L, D = 2, 2, 13, 4
EXACT = {"rtol": 1e-9, "atol": 1e-9}
LENGTHS = torch.tensor([13, 6])
DOCUMENTS = torch.tensor([[0] * 5 + [1] * 8, [3] * 12 + [4]])
KEYS = torch.rand(B, 1, 1, L, generator=torch.Generator().manual_seed(5)) < 0.7
PAIRS = torch.rand(B, 1, L, L, generator=torch.Generator().manual_seed(6)) < 0.7
IDS = torch.arange(L)[None] % 3 // 2


def random(*shape, seed=1):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


BIASES = {
    "none": lambda: None,
    "toeplitz": lambda: Toeplitz(random(1, H, 2 * L - 1), L),
    "toeplitz of each sequence": lambda: Toeplitz(random(B, 1, 2 * L - 1), L),
    "relative keys": lambda: RelativeKeys(random(H, 5, D), 0, L, L),
    "toeplitz and relative keys": lambda: Toeplitz(random(1, 1, 2 * L - 1), L) + RelativeKeys(random(1, 3, D), 0, L, L),
    "products of keys": lambda: RelativeProducts.clipped(random(B, H, L, 2), random(H, 4, 2), L, L, 2, of_keys=True),
    "low rank": lambda: LowRank(random(1, H, L, 3), random(1, H, L, 3, seed=2)),
    "segments": lambda: SegmentTable(random(H, 2, 2), IDS, IDS),
    "dense": lambda: Dense(random(B, H, L, L)),
    "labels": lambda: EdgeKeys(random(H, 4, D), torch.arange(L * L).view(1, L, L) % 4),
    "toeplitz and low rank": lambda: Toeplitz(random(1, H, 2 * L - 1), L) + LowRank(*random(2, 1, 1, L, 2)),
}  # fmt: skip
MASKS = {
    "none": {},
    "lengths": {"lengths": LENGTHS},
    "mask of keys": {"mask": KEYS},
    "mask of pairs": {"mask": PAIRS},
    "documents": {"documents": DOCUMENTS},
    "lengths and documents": {"lengths": LENGTHS, "documents": DOCUMENTS},
}


def by_hand(q, k, v, window, bias, value_bias, masks):
    """softmax over |j - i| <= window, query by query; a query that may attend to nothing gives zeros."""
    dense = torch.zeros(B, H, L, L, dtype=torch.float64)
    if bias is not None:
        dense = dense + bias.dense(q, k_len=L, scale=0.5)
    extra = None if value_bias is None else value_bias.dense(q_len=L, k_len=L).expand(B, H, -1, -1, -1)
    out = torch.zeros_like(v)
    for b in range(B):
        for i in range(L):
            seen = [j for j in range(max(0, i - window), min(L, i + window + 1)) if may(b, i, j, **masks)]
            for h in range(H if seen else 0):
                scores = torch.stack([0.5 * (q[b, h, i] @ k[b, h, j]) + dense[b, h, i, j] for j in seen])
                values = [v[b, h, j] + (0 if extra is None else extra[b, h, i, j]) for j in seen]
                out[b, h, i] = scores.softmax(0) @ torch.stack(values)
    return out


def may(b, i, j, lengths=None, mask=None, documents=None):
    return (
        (lengths is None or j < lengths[b])
        and (mask is None or bool(mask[b, 0, 0 if mask.shape[2] == 1 else i, j]))
        and (documents is None or bool(documents[b, i] == documents[b, j]))
    )


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("window", [1, 3, 5])
def test_the_formula(bias, masks, window):
    q, k, v = random(3, B, H, L, D, seed=9).unbind(0)
    made = BIASES[bias]()
    want = by_hand(q, k, v, window, made, None, MASKS[masks])
    assert_close(local_attention(q, k, v, window, bias=made, scale=0.5, **MASKS[masks]), want, **EXACT)


@pytest.mark.parametrize("masks", ["none", "lengths", "documents"])
@pytest.mark.parametrize("window", [2, 6, 12, 40])
def test_values_of_offsets_and_windows_as_long_as_the_text(masks, window):
    q, k, v = random(3, B, H, L, D, seed=9).unbind(0)
    bias, value_bias = BIASES["relative keys"](), RelativeValues(random(H, 7, D, seed=4), 0, L, L)
    want = by_hand(q, k, v, window, bias, value_bias, MASKS[masks])
    got = local_attention(q, k, v, window, bias=bias, value_bias=value_bias, scale=0.5, **MASKS[masks])
    assert_close(got, want, **EXACT)


@pytest.mark.parametrize("bias", ["toeplitz", "low rank", "relative keys"])
def test_gradients(bias):
    q, k, v = random(3, B, H, L, D, seed=9).unbind(0)
    made = BIASES[bias]()
    tensors = [t.clone().requires_grad_() for t in (q, k, v, *made.tensors.values())]

    def gradients(attend):
        q, k, v, *parts = tensors
        return torch.autograd.grad((attend(q, k, v, made.rebuilt(parts)) * random(B, H, L, D, seed=3)).sum(), tensors)

    got = gradients(lambda q, k, v, made: local_attention(q, k, v, 3, bias=made, scale=0.5, lengths=LENGTHS))
    want = gradients(lambda q, k, v, made: by_hand(q, k, v, 3, made, None, {"lengths": LENGTHS}))
    for one, other in zip(got, want, strict=True):
        assert_close(one, other, **EXACT)


SIZES = {
    "vocab_size": 29,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 16,
}


def build(encoding, kind=EncoderModel, **options):
    torch.manual_seed(0)
    model = kind(EncoderConfig(**SIZES, encoding=encoding, **options)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize(
    "encoding", [*ENCODINGS, "learned+tisa", "diet-rel:segments=per-head", "shaw:segments=per-head"]
)
def test_a_local_model_is_a_full_one_with_a_mask(encoding):
    local, full = build(encoding, attention="local", window=3), build(encoding)
    tokens = torch.randint(1, 29, (2, 13), generator=torch.Generator().manual_seed(1))
    ids = torch.tensor([[0] * 5 + [1] * 8] * 2)
    near = ((torch.arange(13) - torch.arange(13)[:, None]).abs() <= 3)[None]
    for lengths in (None, LENGTHS):
        inside = slice(None) if lengths is None else torch.arange(13) < lengths[:, None]
        mask = near if lengths is None else near & (torch.arange(13) < lengths[:, None])[:, None]
        want = full(tokens, attention_mask=mask, token_type_ids=ids, output_attentions=True)
        got = local(tokens, lengths=lengths, token_type_ids=ids)
        assert_close(got.last_hidden_state[inside], want.last_hidden_state[inside], **EXACT)
        weights = local(tokens, lengths=lengths, token_type_ids=ids, output_attentions=True).attentions
        for one, other in zip(weights, want.attentions, strict=True):
            assert_close(one, other, **EXACT)


def test_packed_texts_are_as_if_alone():
    model = build("diet-abs", attention="local", window=2)
    texts = [torch.randint(1, 29, (1, n), generator=torch.Generator().manual_seed(n)) for n in (6, 7)]
    packed = model(torch.cat(texts, 1), documents=torch.tensor([[0] * 6 + [1] * 7])).last_hidden_state
    for text, part in zip(texts, (packed[:, :6], packed[:, 6:]), strict=True):
        assert_close(part, model(text).last_hidden_state, **EXACT)


def test_every_parameter_is_trained():
    model = build("diet-rel:segments=per-head", EncoderForMaskedLM, attention="local", window=2).train()
    tokens = torch.randint(1, 29, (2, 16))
    model(tokens, token_type_ids=torch.randint(2, (2, 16)), labels=tokens).loss.backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum()] == []
    values = model.encoder.encoding.values.grad
    assert (values[..., 13:18] != 0).all() and not values[..., :13].any() and not values[..., 18:].any()


def test_memory_grows_with_the_window_not_with_the_square_of_the_length():
    """No tensor of the forward pass has as many elements as there are pairs."""
    length, largest = 2048, 0

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), options=None):
            nonlocal largest
            out = function(*arguments, **(options or {}))
            if isinstance(out, torch.Tensor):
                largest = max(largest, out.numel())
            return out

    q = torch.randn(1, 1, length, 4)
    with Watch():
        local_attention(q, q, q, 16, bias=Toeplitz(torch.randn(1, 1, 2 * length - 1), length))
    assert largest < length * length / 16
