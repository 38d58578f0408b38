"""Patterns of attention: shares against loops, and kinds of heads that were planted."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from headway.pretrained.analysis import matrices
from headway.pretrained.analysis.matrices import Whole
from headway.pretrained.analysis.patterns import (
    KINDS,
    Thresholds,
    attention_patterns,
    average_patterns,
    softmax,
    stack_patterns,
)

N = 40
OFFSET = np.arange(N)[None, :] - np.arange(N)[:, None]


def patterns(scores, **options):
    return attention_patterns(Whole(scores), **options)


PLANTED = {
    "previous": 8.0 * (OFFSET == -1),
    "next": 8.0 * (OFFSET == 1),
    "first": 8.0 * (np.arange(N) == 0) + 0.0 * OFFSET,
    "local": -0.1 * OFFSET**2.0,
    "broad": np.zeros((N, N)),
    "other": 4.0 * (np.abs(OFFSET) == 12),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_planted_kinds_are_told(kind):
    assert patterns(PLANTED[kind]).kinds().tolist() == [kind]
    assert kind in KINDS


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("tile", [1, 1 << 20])
def test_shares_are_those_of_loops(monkeypatch, tile, causal):
    monkeypatch.setattr(matrices, "TILE_ENTRIES", tile)
    n = 9
    scores = np.random.default_rng(0).normal(size=(2, n, n))
    found = patterns(scores, causal=causal, radius=2)
    for h in range(2):
        weights = np.zeros((n, n))
        for i in range(n):
            keys = range(i + 1) if causal else range(n)
            total = sum(np.exp(scores[h, i, j]) for j in keys)
            for j in keys:
                weights[i, j] = np.exp(scores[h, i, j]) / total
        for k in range(-(n - 1), n):
            share = np.mean([weights[i, i + k] for i in range(n) if 0 <= i + k < n])
            assert_allclose(found.by_offset[h, k + n - 1], share, rtol=1e-10, atol=1e-15)
        rows = range(1, n) if causal else range(n)  # a causal model's first query has no choice
        entropies = []
        for i in rows:
            nonzero = [w for w in weights[i] if w > 0]
            entropies.append(-sum(w * np.log(w) for w in nonzero) / np.log(i + 1 if causal else n))
        assert_allclose(found.entropy[h], np.mean(entropies), rtol=1e-9)
        assert_allclose(found.previous[h], np.mean([weights[i, i - 1] for i in range(1, n)]), rtol=1e-9)
        assert_allclose(found.own[h], np.mean([weights[i, i] for i in range(n)]), rtol=1e-9)
        assert_allclose(found.next[h], np.mean([weights[i, i + 1] for i in range(n - 1)]), rtol=1e-9, atol=1e-15)
        assert_allclose(found.first[h], np.mean([weights[i, 0] for i in range(1, n)]), rtol=1e-9)
        near = [sum(weights[i, j] for j in range(n) if abs(j - i) <= 2) for i in range(n)]
        assert_allclose(found.local[h], np.mean(near), rtol=1e-9)
        far = [sum(weights[i, j] * abs(j - i) for j in range(n)) for i in range(n)]
        assert_allclose(found.distance[h], np.mean(far), rtol=1e-9)


def test_attention_to_everything_alike():
    found = patterns(np.zeros((N, N)))
    assert_allclose(found.entropy, 1.0)
    assert_allclose(found.by_offset, 1 / N)
    assert_allclose(patterns(np.zeros((N, N)), causal=True).entropy, 1.0)


def test_the_offset_is_key_minus_query():
    found = patterns(PLANTED["next"])
    assert found.offsets[found.by_offset[0].argmax()] == 1


def test_thresholds_decide():
    scores = 3.5 * (OFFSET == -1)  # about 0.46 of the attention
    assert patterns(scores).kinds().tolist() == ["previous"]
    assert patterns(scores).kinds(Thresholds(token=0.6, local=0.9)).tolist() == ["other"]


def test_large_scores_do_not_overflow():
    assert patterns(1e4 * PLANTED["previous"]).kinds().tolist() == ["previous"]


def test_softmax_over_earlier_keys_alone():
    weights = softmax(np.zeros((1, 3, 4)), np.array([1, 2, 3]))
    assert_allclose(weights[0], [[1 / 2, 1 / 2, 0, 0], [1 / 3, 1 / 3, 1 / 3, 0], [1 / 4] * 4])


def test_layers_are_stacked():
    both = stack_patterns([patterns(PLANTED["previous"]), patterns(PLANTED["broad"])])
    assert both.kinds().tolist() == [["previous"], ["broad"]]
    assert both.by_offset.shape == (2, 1, 2 * N - 1)


def test_texts_of_different_lengths_are_averaged_over_pairs():
    long, short = patterns(PLANTED["previous"]), patterns(PLANTED["previous"][:10, :10])
    both = average_patterns([long, short])
    assert both.length == N
    at = {k: k + N - 1 for k in (-1, -20)}
    expected = (long.by_offset[0, at[-1]] * (N - 1) + short.by_offset[0, 8] * 9) / (N - 1 + 9)
    assert_allclose(both.by_offset[0, at[-1]], expected, rtol=1e-12)
    assert_allclose(both.by_offset[0, at[-20]], long.by_offset[0, at[-20]], rtol=1e-12)  # the short one has none
    assert_allclose(both.previous, (long.previous + short.previous) / 2, rtol=1e-12)
