"""Random and Factorized Random Synthesizer (Tay et al. 2021): softmax(R) V and softmax(R_1 R_2^T) V, by loops."""

import pytest
import torch
from torch.testing import assert_close

from headway.models import EncoderConfig, EncoderForMaskedLM, EncoderModel

EXACT = {"rtol": 1e-10, "atol": 1e-10}
SIZES = {
    "vocab_size": 29,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 16,
    "attention": "synthesizer",
}


def scores_by_hand(enc, layer, head, i, j):
    """The score of one pair of positions."""
    if enc.rank is None:
        return enc.matrix[layer, head, i, j].item()
    return sum(enc.left[layer, head, i, r].item() * enc.right[layer, head, j, r].item() for r in range(enc.rank))


@pytest.mark.parametrize("rank", [None, 3])
@pytest.mark.parametrize(("q_len", "k_len", "q_start"), [(7, 7, 0), (1, 7, 6), (3, 7, 2)])
def test_the_scores(build, rank, q_len, k_len, q_start):
    enc = build("synthesizer", rank=rank)
    for layer in range(2):
        bias = enc.bias(layer, q_len, k_len, q_start).dense()
        for head in range(2):
            for i in range(q_len):
                for j in range(k_len):
                    assert bias[0, head, i, j].item() == pytest.approx(
                        scores_by_hand(enc, layer, head, q_start + i, j), abs=1e-12
                    )


@pytest.mark.parametrize("rank", [None, 3])
def test_positions_are_counted_in_each_packed_text(build, rank):
    enc = build("synthesizer", rank=rank)
    documents = torch.tensor([[4, 4, 4, 1, 1], [0, 0, 0, 0, 7]])
    packed = enc.bias(1, 5, 5, documents=documents).dense()
    assert packed.shape == (2, 2, 5, 5)
    for row, start, stop in ((0, 0, 3), (0, 3, 5), (1, 0, 4), (1, 4, 5)):
        alone = enc.bias(1, stop - start, stop - start).dense()[0]
        assert_close(packed[row, :, start:stop, start:stop], alone, **EXACT)


def test_parameters(build):
    assert sum(p.numel() for p in build("synthesizer").parameters()) == 2 * 2 * 16 * 16
    assert sum(p.numel() for p in build("synthesizer", rank=3).parameters()) == 2 * 2 * 2 * 16 * 3
    with pytest.raises(ValueError, match="rank: expected None"):
        build("synthesizer", rank=0)


def build_model(encoding, kind=EncoderModel, **options):
    torch.manual_seed(0)
    model = kind(EncoderConfig(**SIZES, encoding=encoding, **options)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize(
    "encoding", ["synthesizer", "synthesizer:rank=3", "diet-rel", "learned+synthesizer", "tupe-abs"]
)
@pytest.mark.parametrize("count", [7, 4])
def test_a_layer_mixes_values_by_the_softmax_of_the_encoding_alone(encoding, count):
    model = build_model(encoding, num_labels=2)
    tokens = torch.randint(1, 29, (1, 7), generator=torch.Generator().manual_seed(1))
    states = model(tokens, lengths=torch.tensor([count]), output_hidden_states=True).hidden_states
    layer, x = model.layers[0], states[0][0]
    v = layer.attention.v(x).view(7, 2, 4)
    bias = model.encoding.bias(0, 7, 7).dense()[0]
    mixed = torch.zeros(7, 8, dtype=torch.float64)
    for i in range(7):
        for h in range(2):
            weights = torch.stack([bias[h, i, j] for j in range(count)]).softmax(0)
            mixed[i, 4 * h : 4 * h + 4] = sum(w * v[j, h] for j, w in enumerate(weights))
    x = layer.attention_norm(x + layer.attention.output(mixed))
    want = layer.norm(x + layer.down(torch.nn.functional.gelu(layer.up(x))))
    assert_close(states[1][0], want, **EXACT)


@pytest.mark.parametrize("encoding", ["synthesizer", "synthesizer:rank=3,sharing=layer", "diet-rel:segments=per-head"])
def test_every_parameter_is_trained_and_there_are_no_queries(encoding):
    model = build_model(encoding, EncoderForMaskedLM).train()
    tokens = torch.randint(1, 29, (2, 16))
    model(tokens, token_type_ids=torch.randint(2, (2, 16)), labels=tokens).loss.backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum()] == []
    assert not any("qkv" in name for name, _ in model.named_parameters())


def test_packed_texts_are_as_if_alone():
    for encoding in ("synthesizer", "synthesizer:rank=3"):
        model = build_model(encoding)
        texts = [torch.randint(1, 29, (1, n), generator=torch.Generator().manual_seed(n)) for n in (6, 7)]
        packed = model(torch.cat(texts, 1), documents=torch.tensor([[0] * 6 + [1] * 7])).last_hidden_state
        for text, part in zip(texts, (packed[:, :6], packed[:, 6:]), strict=True):
            assert_close(part, model(text).last_hidden_state, **EXACT)


@pytest.mark.parametrize("encoding", ["shaw", "rope", "transformer-xl", "learned+rope"])
def test_encodings_of_queries_are_refused(encoding):
    with pytest.raises(NotImplementedError, match="synthesizer has no q and k for"):
        EncoderConfig(**SIZES, encoding=encoding)


@pytest.mark.parametrize("encoding", ["none", "learned"])
def test_without_scores_there_is_nothing_to_attend_by(encoding):
    with pytest.raises(ValueError, match="synthesizer has no scores but those of the encoding"):
        EncoderConfig(**SIZES, encoding=encoding)
