"""Masking against a loop that asks each pair."""

import itertools

import pytest
import torch

from headway.attention.masking import Masking

B, H = 3, 2
CPU = torch.device("cpu")


def masking(causal, lengths, documents, mask, m, n):
    rows = torch.randint(3, (B, m)).sort().values
    columns = torch.randint(3, (1 if documents == "shared" else B, n)).sort().values
    shape = {"none": None, "full": (B, H, m, n), "keys": (B, 1, 1, n), "shared": (1, 1, m, n)}[mask]
    return Masking(
        q_len=m,
        k_len=n,
        causal=causal,
        lengths=torch.tensor([0, n // 2, n]) if lengths else None,
        q_documents=None if documents == "none" else rows,
        k_documents=None if documents == "none" else columns,
        mask=None if shape is None else torch.rand(shape) > 0.3,
    )


def may_attend(given, b, h, i, j):
    if given.causal and j - i > given.k_len - given.q_len:
        return False
    if given.lengths is not None and j >= given.lengths[b]:
        return False
    if given.q_documents is not None:
        row = given.q_documents[0 if len(given.q_documents) == 1 else b, i]
        if row != given.k_documents[0 if len(given.k_documents) == 1 else b, j]:
            return False
    if given.mask is None:
        return True
    index = [0 if size == 1 else n for size, n in zip(given.mask.shape, (b, h, i, j), strict=True)]
    return bool(given.mask[tuple(index)])


def by_loop(given):
    full = torch.zeros(B, H, given.q_len, given.k_len, dtype=torch.bool)
    for index in itertools.product(*map(range, full.shape)):
        full[index] = may_attend(given, *index)
    return full


CASES = list(
    itertools.product(
        [False, True], [False, True], ["none", "each", "shared"], ["none", "full", "keys", "shared"], [(4, 6), (6, 4)]
    )
)


@pytest.mark.parametrize(("causal", "lengths", "documents", "mask", "sizes"), CASES)
def test_tiles_and_key_ranges(causal, lengths, documents, mask, sizes):
    torch.manual_seed(0)
    m, n = sizes
    given = masking(causal, lengths, documents, mask, m, n)
    full = by_loop(given)
    assert given.empty == (not causal and not lengths and documents == "none" and mask == "none")
    assert given.only_causal == (causal and not lengths and documents == "none" and mask == "none")
    dense = given.dense(CPU)
    if given.empty:
        assert dense is None
        assert full.all()
    else:
        torch.testing.assert_close(dense.expand_as(full), full)
    for b0, b1, i0, i1 in ((0, B, 0, m), (0, 1, 0, 2), (1, 3, 1, m), (2, 3, m - 1, m), (0, 2, 2, 3)):
        rows = full[b0:b1, :, i0:i1]
        start, stop = given.key_range(b0, b1, i0, i1)
        assert 0 <= start <= stop <= n
        assert not rows[..., :start].any()
        assert not rows[..., stop:].any()
        for j0, j1 in ((0, n), (1, 3)):
            tile = given.tile(b0, b1, i0, i1, j0, j1, CPU)
            want = rows[..., j0:j1]
            assert want.all() if tile is None else torch.equal(tile.expand_as(want), want)


@pytest.mark.parametrize(("causal", "lengths", "documents", "mask", "sizes"), CASES)
def test_what_is_seen_in_some_sequence(causal, lengths, documents, mask, sizes):
    given = masking(causal, lengths, documents, mask, *sizes)
    seen, found = by_loop(given).any(0, keepdim=True), given.of_any(CPU)
    if found is None:
        assert not causal and not lengths and mask == "none"
        return
    assert found.shape[0] == 1
    assert (found | ~seen).all()
    if documents == "none" and not (lengths and mask in ("full", "keys")):
        torch.testing.assert_close(found.expand_as(seen), seen)


def test_key_ranges_are_tight_where_it_pays():
    """Blocks that nobody sees are what the loops skip."""
    causal = Masking(q_len=8, k_len=10, causal=True)
    assert [causal.key_range(0, 1, i, i + 2) for i in range(0, 8, 2)] == [(0, 4), (0, 6), (0, 8), (0, 10)]
    unseeing = Masking(q_len=8, k_len=5, causal=True)
    assert unseeing.key_range(0, 1, 0, 2) == (0, 0)
    lengths = Masking(q_len=8, k_len=10, lengths=torch.tensor([3, 0, 7]))
    assert [lengths.key_range(b, b + 1, 0, 8) for b in range(3)] == [(0, 3), (0, 0), (0, 7)]
    assert lengths.key_range(0, 3, 0, 8) == (0, 7)
    ids = torch.tensor([[0, 0, 0, 1, 1, 1, 2, 2]])
    packed = Masking(q_len=8, k_len=8, q_documents=ids, k_documents=ids)
    assert packed.key_range(0, 1, 3, 5) == (3, 6)
    assert packed.key_range(0, 1, 2, 4) == (0, 6)
    elsewhere = Masking(q_len=8, k_len=8, q_documents=ids + 5, k_documents=ids)
    assert elsewhere.key_range(0, 1, 0, 8) == (0, 0)
