"""Scores of segments and curves of biases, against the models that hold them."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from headway.pretrained.analysis.head_measures import bias_curves
from headway.pretrained.analysis.loading import read
from headway.pretrained.analysis.scores import has_segments, segment_attention, segment_scores


def test_per_head_segments_are_the_table(own):
    """Chen et al. (2021b), Eq. (2)."""
    model = own("diet-rel", segments="per-head")
    for layer in range(2):
        assert_allclose(segment_scores(read(model), layer), model.segments.table[layer].detach(), rtol=1e-12)


def test_segments_in_the_input_by_hand(bert):
    model = bert()
    e = model.embeddings
    with torch.no_grad():
        mean = e.word_embeddings.weight.mean(0) + e.position_embeddings.weight.mean(0)
        x = e.LayerNorm(mean + e.token_type_embeddings.weight)  # (2, E)
        for layer in range(2):
            attention = model.encoder.layer[layer].attention.self
            q, k = (part(x).view(2, 3, 8).transpose(0, 1) for part in (attention.query, attention.key))
            expected = (q @ k.transpose(1, 2) / 8**0.5).numpy()
            assert_allclose(segment_scores(read(model), layer), expected, rtol=1e-9)


@pytest.mark.parametrize("kind", ["bert", "input", "per-head"])
def test_attention_of_positions_and_segments_is_what_the_model_reports_for_average_words(bert, own, kind):
    """Fig. 6: 32 tokens, the second segment from 16 on."""
    model = bert(attn_implementation="eager") if kind == "bert" else own("learned+diet-rel", segments=kind)
    ids = torch.tensor([[0] * 16 + [1] * 16])
    words = model.get_input_embeddings().weight.mean(0).expand(1, 32, -1)
    with torch.no_grad():
        reported = model(inputs_embeds=words, token_type_ids=ids, output_attentions=True).attentions[0][0]
    assert_allclose(segment_attention(read(model), 0), reported.numpy(), rtol=1e-8, atol=1e-12)


def test_models_without_segments_say_so(own):
    reading = read(own("diet-rel"))
    assert not has_segments(reading)
    with pytest.raises(ValueError, match="two segments or more"):
        segment_scores(reading, 0)


def test_curves_of_t5_are_its_bias(t5):
    for stack, module in (("encoder", t5.encoder), ("decoder", t5.decoder)):
        curves = bias_curves(read(t5, stack=stack), 200)
        bias = module.block[0].layer[0].SelfAttention.compute_bias(200, 200)[0].detach().numpy()
        causal = stack == "decoder"
        assert curves.offsets.tolist() == list(range(-199, 1 if causal else 200))
        for layer in range(2):  # all layers share the first one's table
            for h in range(3):
                for at, offset in enumerate(curves.offsets.tolist()):
                    i, j = max(0, -offset), max(0, offset)
                    assert_allclose(curves.mean[layer, h, at], bias[h, i, j], rtol=1e-9, atol=1e-12)
        assert_allclose(curves.std, 0.0, atol=1e-7)
        assert_allclose(curves.r2, 1.0, rtol=1e-9)


def test_curves_of_tisa_are_its_formula(own):
    model = own("tisa")
    curves = bias_curves(read(model), 60)  # beyond the 40 positions of training
    e = model.encoding
    for layer in range(2):
        for h in range(3):
            a, b, c = (p[layer, h].detach().numpy() for p in (e.amplitude, e.sharpness, e.center))
            expected = [(a * np.exp(-np.abs(b) * (k - c) ** 2)).sum() for k in range(-59, 60)]
            assert_allclose(curves.mean[layer, h], expected, rtol=1e-9, atol=1e-12)


def test_curves_of_low_rank_biases_are_means_over_pairs(own):
    model = own("diet-abs:sharing=layer")
    curves = bias_curves(read(model))
    bias = model.encoding.bias(0, 40, 40).dense()[0].detach().numpy()
    for h in range(3):
        for k in (-39, -3, 0, 8):
            assert_allclose(curves.mean[1, h, k + 39], np.diag(bias[h], k).mean(), rtol=1e-9)
            assert_allclose(curves.std[1, h, k + 39], np.diag(bias[h], k).std(), rtol=1e-7, atol=1e-9)
    assert (curves.r2 < 0.9).all()


def test_curves_that_meet_the_query_take_that_of_average_words(own):
    model = own("shaw")
    curves = bias_curves(read(model), 30)
    words = model.words.weight.mean(0)
    q = model.layers[1].attention.qkv(model.norm(words))[:24].view(3, 8)
    for h in range(3):
        expected = [
            (q[h] @ model.encoding.key_table[1, h, np.clip(k, -16, 16) + 16]).item() / 8**0.5 for k in range(-29, 30)
        ]
        assert_allclose(curves.mean[1, h], expected, rtol=1e-9)


def test_a_model_that_adds_nothing_has_no_curves(bert):
    assert bias_curves(read(bert())) is None
