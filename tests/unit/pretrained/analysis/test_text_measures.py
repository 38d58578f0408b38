"""Ranks of matrices whose rank is known, and Theorem 1 of Chen et al. (2021b) on models."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from headway.pretrained.analysis.loading import read
from headway.pretrained.analysis.scores import input_parts, text_scores
from headway.pretrained.analysis.text_measures import measure_texts, ranks

IDS = np.array([7, 3, 9, 9, 30, 2, 41, 8, 11, 25, 6, 4, 19, 33, 28, 45])
SEGMENTS = np.array([0] * 9 + [1] * 7)


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("rank", [0, 1, 3, 10])
def test_the_rank_of_a_product(rank):
    matrix = random(10, rank) @ random(rank, 10, seed=1)
    found = ranks(matrix[None])
    assert found.numerical.tolist() == [rank] == [np.linalg.matrix_rank(matrix)]
    assert found.relative[0] == rank
    assert found.effective[0] <= rank + 1e-9


def test_effective_rank_is_the_exponential_of_the_entropy():
    """Equal singular values: their number. Shares 1/2, 1/4, 1/4: 2^1.5."""
    rotation = np.linalg.qr(random(8, 8))[0]
    equal = rotation @ np.diag([3.0] * 5 + [0.0] * 3) @ rotation.T
    uneven = rotation @ np.diag([2.0, 1.0, 1.0] + [0.0] * 5) @ rotation.T
    assert_allclose(ranks(np.stack([equal, uneven])).effective, [5.0, 2.0**1.5], rtol=1e-9)


def test_the_relative_rank_leaves_out_what_is_small():
    found = ranks(np.diag([1.0, 0.5, 1e-2, 1e-4, 1e-9]))
    assert found.numerical == 5
    assert found.relative == 3


def test_positions_in_the_input_leave_rank_d_h(bert):
    """Theorem 1, first part: d_h is 8, the text has 16 tokens."""
    scores = text_scores(read(bert()), IDS, SEGMENTS)
    for layer in scores["whole"]:
        assert (ranks(layer).numerical == 8).all()
    assert len(scores["words"]) == len(scores["positions"]) == 1
    assert (ranks(scores["words"][0]).numerical == 8).all()
    assert (ranks(scores["positions"][0]).numerical == 8).all()


@pytest.mark.parametrize(("rank", "reached"), [(3, 11), (5, 13), (8, 16)])
def test_positions_in_the_scores_reach_d_h_plus_d_p(own, rank, reached):
    """Theorem 1, second part, with DIET-ABS, in every layer."""
    scores = text_scores(read(own(f"diet-abs:rank={rank}")), IDS)
    for layer in range(2):
        assert (ranks(scores["positions"][layer]).numerical == rank).all()
        assert (ranks(scores["words"][layer]).numerical == 8).all()
        assert (ranks(scores["whole"][layer]).numerical == reached).all()


def test_what_is_added_to_scores_is_their_part_of_positions(own):
    model = own("diet-rel", segments="per-head")
    scores = text_scores(read(model), IDS, SEGMENTS)
    for layer in range(2):
        bias = model.encoding.bias(layer, 16, 16).dense()[0].detach().numpy()
        table = model.segments.table[layer].detach().numpy()
        assert_allclose(scores["positions"][layer], bias, rtol=1e-12)
        added = table[:, SEGMENTS[:, None], SEGMENTS[None, :]]
        assert_allclose(scores["whole"][layer], scores["words"][layer] + bias + added, rtol=1e-9, atol=1e-12)


def test_whole_scores_are_those_of_the_attention_that_the_model_reports(own):
    model = own("learned+diet-abs", segments="per-head")
    with torch.no_grad():
        reported = model(
            input_ids=torch.tensor(IDS)[None], token_type_ids=torch.tensor(SEGMENTS)[None], output_attentions=True
        ).attentions
    for layer, whole in enumerate(text_scores(read(model), IDS, SEGMENTS)["whole"]):
        weights = torch.softmax(torch.from_numpy(whole), -1)
        torch.testing.assert_close(weights, reported[layer][0], rtol=1e-8, atol=1e-12)


def test_input_parts_by_hand(bert):
    """LayerNorm's centring, its spread on the whole input, its weight; projections without biases."""
    model = bert()
    words, positions = input_parts(read(model), IDS, SEGMENTS)
    e, attention = model.embeddings, model.encoder.layer[0].attention.self
    with torch.no_grad():
        parts = {"words": e.word_embeddings.weight[IDS], "positions": e.position_embeddings.weight[:16]}
        whole = parts["words"] + parts["positions"] + e.token_type_embeddings.weight[SEGMENTS]
        spread = (whole.var(-1, unbiased=False, keepdim=True) + model.config.layer_norm_eps).sqrt()
        for name, found in (("words", words), ("positions", positions)):
            x = (parts[name] - parts[name].mean(-1, keepdim=True)) / spread * e.LayerNorm.weight
            q = (x @ attention.query.weight.T).view(16, 3, 8).transpose(0, 1)
            k = (x @ attention.key.weight.T).view(16, 3, 8).transpose(0, 1)
            assert_allclose(found, (q @ k.transpose(1, 2) / 8**0.5).numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("make", ["bert", "albert", "gpt2"])
def test_the_parts_of_the_input_add_up(request, make):
    """The query of the sum is the sum of the queries, whatever norms and widths lie between."""
    fixture = request.getfixturevalue(make)
    reading = read(fixture if make == "gpt2" else fixture())
    first = reading.layers[0]
    words = reading.words[IDS].astype(float)
    summed = reading.summed(words)
    constant = reading.summed(np.zeros_like(words)) - reading.positions[:16]  # the segment's row, where there is one

    def query(part):
        if reading.norm is not None:
            part = reading.norm.part(part, reading.norm.spread(summed))
        if reading.project is not None:
            part = reading.project.part(part)
        if first.norm is not None:
            part = first.norm.part(part, first.norm.spread(reading.embedded(summed)))
        return first.queries(part, bias=False)

    assert_allclose(
        query(words) + query(reading.positions[:16]) + query(constant), query(summed), rtol=1e-9, atol=1e-11
    )


def test_turned_queries_have_no_parts(own):
    assert list(text_scores(read(own("rope")), IDS)) == ["whole"]


def test_ranks_over_texts(own, bert, tokenizer):
    texts = ["position belongs in the heads", "and not in the input, they say"]
    found = measure_texts(read(own("diet-abs:rank=8")), tokenizer, texts, length=20).ranks
    assert found.lengths.tolist() == [20, 20]
    assert found.each["whole"].numerical.shape == (2, 2, 3)
    assert_allclose(found.average["whole"].effective, found.each["whole"].effective.mean(0))
    assert found.within_theorem is None
    assert found.beyond_head_dim == 1.0
    plain = measure_texts(read(bert()), tokenizer, texts, length=20).ranks
    assert plain.each["words"].numerical.shape == (2, 1, 3)
    assert plain.within_theorem is True
    assert plain.beyond_head_dim == 0.0
