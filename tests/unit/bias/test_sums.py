"""Sums flatten, and terms of one structure fold into one."""

import operator
import pickle
from functools import reduce

import pytest
import torch
from torch.testing import assert_close

from headway.bias import (
    Dense,
    EdgeKeys,
    EdgeValues,
    LowRank,
    RelativeKeys,
    RelativeProducts,
    RelativeValues,
    SegmentTable,
    Sum,
    Toeplitz,
    ValueSum,
)

B, H, LQ, LK, D = 2, 3, 4, 6, 2


def rand(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def toeplitz(*sizes, **options):
    return Toeplitz(rand(*(sizes or (1, H)), LQ + LK - 1), **options)


def low_rank(rank, left=(1, H), right=(1, H)):
    return LowRank(rand(*left, LQ, rank), rand(*right, LK, rank))


IDS = torch.randint(3, (B, LQ)), torch.randint(3, (B, LK))


def segments(heads=H, ids=IDS, count=3):
    return SegmentTable(rand(heads, count, count), *ids)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def test_toeplitz_folds_to_one_toeplitz():
    a, b = toeplitz(1, H), toeplitz(B, 1)
    total = a + b
    assert type(total) is Toeplitz
    assert total.shape == (B, H, None, None)
    assert_close(total.bind(LQ, LK).dense(), a.bind(LQ, LK).dense() + b.bind(LQ, LK).dense())


def test_toeplitz_folds_keep_the_known_query_length():
    bound, free = toeplitz(q_len=LQ), toeplitz()
    for total in (bound + free, free + bound):
        assert total.lengths == (LQ, LK)
        assert_close(total.dense(), bound.dense() + free.bind(LQ, LK).dense())


def test_toeplitz_of_different_lengths_does_not_fold():
    with pytest.raises(ValueError, match=r"different query lengths, 4 and 3"):
        toeplitz(q_len=4) + toeplitz(q_len=3)
    with pytest.raises(ValueError, match=r"have 9 and 7 offsets"):
        toeplitz() + Toeplitz(rand(1, H, 7))


def test_low_rank_folds_to_the_sum_of_ranks():
    a, b = low_rank(2), low_rank(3)
    total = a + b
    assert type(total) is LowRank
    assert total.rank == 5
    assert_close(total.dense(), a.dense() + b.dense())


@pytest.mark.parametrize("sizes", [((1, 1), (1, H)), ((B, H), (1, H))])
def test_low_rank_of_different_sharing_stays_apart(sizes):
    a, b = low_rank(2), low_rank(3, *sizes)  # folding would copy the shared factor
    total = a + b
    assert type(total) is Sum
    assert_close(total.dense(), a.dense() + b.dense())


def test_low_rank_of_another_dtype_stays_apart():
    assert type(low_rank(2) + low_rank(2).to(torch.float32)) is Sum


def test_segment_tables_with_the_same_ids_fold():
    a, b = segments(H), segments(1)
    total = a + b
    assert type(total) is SegmentTable
    assert total.q_segments is IDS[0]
    assert_close(total.dense(), a.dense() + b.dense())


@pytest.mark.parametrize("other", [{"ids": (IDS[0].clone(), IDS[1])}, {"ids": (IDS[0], IDS[1].clone())}, {"count": 4}])
def test_other_segment_tables_stay_apart(other):
    a, b = segments(), segments(**other)
    total = a + b
    assert type(total) is Sum
    assert_close(total.dense(), a.dense() + b.dense())


@pytest.mark.parametrize("kind", [RelativeKeys, RelativeValues])
def test_relative_tables_of_one_clip_fold(kind):
    a, b = kind(rand(H, 5, D), q_start=1), kind(rand(1, 5, D), q_start=1)
    total = a + b
    assert type(total) is kind
    assert total.q_start == 1
    assert_close(total.table, a.table + b.table)


@pytest.mark.parametrize("kind", [RelativeKeys, RelativeValues])
@pytest.mark.parametrize(("rows", "width", "q_start"), [(3, D, 0), (5, D, 1), (5, 1, 0)])
def test_other_relative_tables_stay_apart(kind, rows, width, q_start):
    total = kind(rand(H, 5, D)) + kind(rand(H, rows, width), q_start=q_start)
    assert isinstance(total, Sum | ValueSum)
    assert len(total.terms) == 2


def test_products_of_the_same_vectors_and_rows_fold():
    vectors, rows = rand(B, H, LQ, D), torch.randint(-1, 4, (LQ + LK - 1,))
    a, b = (RelativeProducts(vectors, rand(heads, 4, D), rows) for heads in (H, 1))
    total = a + b
    assert type(total) is RelativeProducts
    assert total.vectors is vectors
    assert_close(total.dense(), a.dense() + b.dense())


@pytest.mark.parametrize("other", ["vectors", "rows", "count", "side"])
def test_other_products_stay_apart(other):
    vectors, rows = rand(B, H, LQ, D), torch.randint(-1, 4, (2 * LQ - 1,))
    a = RelativeProducts(vectors, rand(H, 4, D), rows)
    b = RelativeProducts(
        vectors.clone() if other == "vectors" else vectors,
        rand(H, 5 if other == "count" else 4, D),
        rows.clone() if other == "rows" else rows,
        of_keys=other == "side",
    )
    total = a + b
    assert type(total) is Sum
    assert_close(total.dense(), a.dense() + b.dense())


def test_dense_folds():
    a, b = Dense(rand(1, H, LQ, LK)), Dense(rand(B, 1, LQ, LK))
    assert type(a + b) is Dense
    assert_close((a + b).dense(), a.dense() + b.dense())


def test_edges_stay_apart():
    labels = torch.randint(4, (1, LQ, LK))
    assert type(EdgeKeys(rand(H, 4, D), labels) + EdgeKeys(rand(H, 4, D), labels)) is Sum
    assert type(EdgeValues(rand(H, 4, D), labels) + EdgeValues(rand(H, 4, D), labels)) is ValueSum


def test_sums_flatten_and_fold_into_the_first_of_a_kind():
    a, b, c, d = toeplitz(), segments(), toeplitz(), low_rank(1)
    for total in ((a + b) + (c + d), a + (b + (c + d)), sum([a, b, c, d]), reduce(operator.add, [a, b, c, d])):
        assert [type(term) for term in total.terms] == [Toeplitz, SegmentTable, LowRank]
        expected = sum(part.bind(LQ, LK).dense() for part in (a, b, c, d))
        assert_close(total.bind(LQ, LK).dense(), expected)


def test_the_constructor_flattens_too():
    a, b, c = toeplitz(), segments(), low_rank(1)
    total = Sum(Sum(a, b), c)
    assert list(total.terms) == [a, b, c]
    assert_close(total.rebuilt(list(total.tensors.values())).dense(), total.dense())


def test_an_unbound_toeplitz_takes_its_lengths_from_the_others():
    free, ids = toeplitz(), segments()
    total = free + ids
    assert total.lengths == (LQ, LK)
    assert_close(total.dense(), free.bind(LQ, LK).dense() + ids.dense())
    assert_close(total.tile(1, 3, 2, 6).dense(), total.dense()[:, :, 1:3, 2:6])


def test_an_unbound_sum_takes_its_lengths_from_q_and_k_len():
    free, keys, q = toeplitz(), RelativeKeys(rand(H, 5, D)), rand(B, H, LQ, D)
    expected = free.bind(LQ, LK).dense() + keys.dense(q, k_len=LK)
    assert_close((free + keys).dense(q, k_len=LK), expected)
    assert_close((keys + free).dense(q, k_len=LK), expected)


def test_sum_of_none():
    bias = toeplitz()
    assert sum([bias]) is bias
    assert bias + None is bias
    assert None + bias is bias


def test_requires_grad_and_needs_query_look_at_every_term():
    plain = toeplitz() + segments()
    assert not plain.requires_grad and not plain.needs_query
    assert (plain + low_rank(1).rebuilt([rand(1, H, LQ, 1).requires_grad_(), rand(1, H, LK, 1)])).requires_grad
    assert (plain + RelativeKeys(rand(H, 3, D))).needs_query


def test_a_bound_frozen_sum_stays_frozen():
    total = (toeplitz(q_len=LQ) + segments()).frozen()
    assert total.bind(LQ, LK) is total
    assert total.dense_once(torch.float32) is total.dense_once(torch.float32)
    assert total.dense_once(torch.float64) is not total.dense_once(torch.float32)
    unbound = (toeplitz() + segments()).frozen()
    assert unbound.bind(LQ, LK).is_frozen and unbound.bind(LQ, LK) is unbound.bind(LQ, LK)
    assert_close(unbound.bind(LQ, LK).dense_once(torch.float64), unbound.bind(LQ, LK).dense())


def test_a_sum_of_frozen_and_learned_terms_follows_the_learned_one():
    kept, table = toeplitz(q_len=LQ).frozen(), rand(H, 3, 3).requires_grad_()
    total = kept + SegmentTable(table, *IDS)
    with torch.no_grad():
        table.add_(1)
    assert_close(total.dense_once(torch.float64), total.dense())


def test_large_ids_survive_a_change_to_half_precision():
    labels = torch.tensor([[[257, 2049]]])
    for dtype in (torch.bfloat16, torch.float16):
        assert EdgeKeys(rand(1, 3000, D), labels).to(dtype).labels.tolist() == labels.tolist()
        assert (toeplitz() + SegmentTable(rand(1, 3, 3), *IDS)).to(dtype).tensors["1.q_segments"].dtype == torch.int64


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: toeplitz() + RelativeValues(rand(1, 3, D)), "two score biases or two value biases to add, got Toe"),
        (lambda: RelativeValues(rand(1, 3, D)) + toeplitz(), "got RelativeValues and Toeplitz"),
        (lambda: (toeplitz() + segments()) + RelativeValues(rand(1, 3, D)), "got Sum and RelativeValues"),
        (lambda: toeplitz() + rand(1, 1, LQ, LK), "got Toeplitz and Tensor. Wrap a matrix as Dense"),
        (lambda: 1 + toeplitz(), "expected another bias to add, got int. Wrap a matrix as Dense"),
        (lambda: "bias" + toeplitz(), "expected another bias to add, got str"),
    ],
)
def test_what_is_no_bias_is_not_added(make, message):
    with pytest.raises(TypeError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: toeplitz(1, 2) + toeplitz(1, 3), "equal head sizes or 1, got 2 and 3"),
        (lambda: toeplitz(2, 1) + toeplitz(3, 1), "equal batch sizes or 1, got 2 and 3"),
        (lambda: toeplitz(1, 2) + segments(3), "equal head sizes or 1, got 2 and 3"),
        (lambda: Sum(toeplitz(1, 2), segments(3)), "equal head sizes or 1, got 2 and 3"),
        (lambda: Dense(rand(1, 1, 4, 6)) + Dense(rand(1, 1, 5, 6)), "different query lengths, 4 and 5"),
        (lambda: Dense(rand(1, 1, 4, 6)) + Dense(rand(1, 1, 4, 7)), "different key lengths, 6 and 7"),
        (lambda: toeplitz(q_len=3) + segments(), "different query lengths, 3 and 4"),
        (lambda: Sum(toeplitz()), "Sum: expected at least two terms, got 1"),
        (lambda: ValueSum(), "ValueSum: expected at least two terms, got 0"),
    ],
)
def test_what_does_not_fit_is_not_added(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_sums_that_earlier_versions_pickled_still_load():
    total = toeplitz(q_len=LQ) + segments()
    old = pickle.dumps(total, protocol=0).replace(b"headway.bias.base\n", b"headway.bias.sums\n")
    assert b"headway.bias.sums" in old
    assert_close(pickle.loads(old).dense(), total.dense())
