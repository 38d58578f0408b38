"""Laws of biases, for random kinds, sizes and parameters."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
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
    Toeplitz,
)

B, H, D = 2, 3, 2
CLOSE = {"rtol": 1e-10, "atol": 1e-10}
LAWS = settings(max_examples=30)
lengths = st.integers(1, 9)
sharing = st.sampled_from([(1, 1), (1, H), (B, 1), (B, H)])


def rand(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def products(batch, heads, m, n, of_keys=False):
    rows = torch.randint(-1, 4, (m + n - 1,))
    return RelativeProducts(rand(batch, heads, n if of_keys else m, 3), rand(1, 4, 3), rows, of_keys)


@st.composite
def score_biases(draw, m, n):
    batch, heads = draw(sharing)
    torch.manual_seed(draw(st.integers(0, 2**16)))
    make = {
        "dense": lambda: Dense(rand(batch, heads, m, n)),
        "toeplitz": lambda: Toeplitz(rand(batch, heads, m + n - 1), q_len=m),
        "low rank": lambda: LowRank(rand(1, heads, m, 2), rand(batch, 1, n, 2)),
        "segments": lambda: SegmentTable(rand(heads, 3, 3), torch.randint(3, (batch, m)), torch.randint(3, (1, n))),
        "relative": lambda: RelativeKeys(rand(heads, 5, D), int(torch.randint(-3, 4, ())), m, n),
        "products of queries": lambda: products(batch, heads, m, n),
        "products of keys": lambda: products(batch, heads, m, n, of_keys=True),
        "edges": lambda: EdgeKeys(rand(heads, 4, D), torch.randint(4, (batch, m, n))),
    }
    return make[draw(st.sampled_from(sorted(make)))]()


@st.composite
def value_biases(draw, m, n):
    batch, heads = draw(sharing)
    torch.manual_seed(draw(st.integers(0, 2**16)))
    if draw(st.booleans()):
        return RelativeValues(rand(heads, draw(st.sampled_from([1, 3, 9])), D), draw(st.integers(-3, 3)), m, n)
    return EdgeValues(rand(heads, 4, D), torch.randint(4, (batch, m, n)))


@st.composite
def tiles(draw, m, n):
    i0, j0 = draw(st.integers(0, m - 1)), draw(st.integers(0, n - 1))
    return i0, draw(st.integers(i0 + 1, m)), j0, draw(st.integers(j0 + 1, n))


def matrix(bias, q):
    """Dense, with every axis in full."""
    return bias.dense(q).expand(B, H, *bias.lengths)


@LAWS
@given(data=st.data(), m=lengths, n=lengths)
def test_addition_commutes_and_associates(data, m, n):
    a, b, c = (data.draw(score_biases(m, n)) for _ in range(3))
    q = rand(B, H, m, D)
    want = matrix(a, q) + matrix(b, q) + matrix(c, q)
    for total in ((a + b) + c, a + (b + c), (c + a) + b, b + (c + a), sum([c, b, a])):
        assert_close(matrix(total, q), want, **CLOSE)


@LAWS
@given(data=st.data(), m=lengths, n=lengths)
def test_addition_of_value_biases(data, m, n):
    a, b, c = (data.draw(value_biases(m, n)) for _ in range(3))
    want = a.dense() + b.dense() + c.dense()
    weights = torch.rand(B, H, m, n, dtype=torch.float64)
    weighted = torch.einsum("bhij,bhijd->bhid", weights, want.expand(B, H, m, n, D))
    for total in ((a + b) + c, c + (b + a), sum([b, a, c])):
        assert_close(total.dense().expand_as(want), want, **CLOSE)
        assert_close(total.weigh(weights), weighted, **CLOSE)


@LAWS
@given(data=st.data(), m=lengths, n=lengths)
def test_a_tile_of_a_sum_is_the_sum_of_tiles(data, m, n):
    a, b = data.draw(score_biases(m, n)), data.draw(score_biases(m, n))
    where = data.draw(tiles(m, n))
    i0, i1, j0, j1 = where
    q = rand(B, H, m, D)
    part = q[:, :, i0:i1]
    want = (matrix(a, q) + matrix(b, q))[:, :, i0:i1, j0:j1]
    assert_close(matrix((a + b).tile(*where), part), want, **CLOSE)
    assert_close(matrix(a.tile(*where) + b.tile(*where), part), want, **CLOSE)


@LAWS
@given(data=st.data(), m=lengths, n=lengths)
def test_a_tile_of_a_tile_is_a_tile(data, m, n):
    bias = data.draw(score_biases(m, n))
    i0, i1, j0, j1 = data.draw(tiles(m, n))
    a, b, c, d = data.draw(tiles(i1 - i0, j1 - j0))
    part = rand(B, H, b - a, D)
    twice = bias.tile(i0, i1, j0, j1).tile(a, b, c, d)
    once = bias.tile(i0 + a, i0 + b, j0 + c, j0 + d)
    assert twice.shape == once.shape
    assert_close(matrix(twice, part), matrix(once, part), rtol=0, atol=0)


@LAWS
@given(data=st.data(), m=lengths, n=lengths)
def test_a_value_tile_is_a_slice(data, m, n):
    bias = data.draw(value_biases(m, n)) + data.draw(value_biases(m, n))
    i0, i1, j0, j1 = data.draw(tiles(m, n))
    assert_close(bias.tile(i0, i1, j0, j1).dense(), bias.dense()[:, :, i0:i1, j0:j1], **CLOSE)


@LAWS
@given(data=st.data(), m=st.integers(2, 9), n=st.integers(2, 9))
def test_what_depends_on_the_offset_is_equal_along_diagonals(data, m, n):
    start, rows = data.draw(st.integers(-3, 3)), data.draw(st.sampled_from([1, 3, 7, 41]))
    torch.manual_seed(data.draw(st.integers(0, 2**16)))
    same = rand(B, H, 1, D).expand(-1, -1, m, -1)  # what meets the query is invariant where the queries are equal
    for dense in (
        Toeplitz(rand(1, H, m + n - 1)).bind(m, n).dense(),
        RelativeKeys(rand(H, rows, D), start, m, n).dense(same),
        RelativeProducts.of_every_offset(same, rand(H, m + n - 1, D)).dense(),
        RelativeValues(rand(H, rows, D), start, m, n).dense(),
    ):
        assert_close(dense[:, :, 1:, 1:], dense[:, :, :-1, :-1], rtol=0, atol=0)


@LAWS
@given(m=lengths, n=lengths, shift=st.integers(0, 5), clip=st.integers(0, 4))
def test_a_later_start_is_a_later_row(m, n, shift, clip):
    """Cached decoding: queries from `shift` on, by q_start or by slicing the whole."""
    q, table = rand(B, H, shift + m, D), rand(H, 2 * clip + 1, D)
    whole = RelativeKeys(table).dense(q, k_len=n)
    assert_close(RelativeKeys(table, q_start=shift).dense(q[:, :, shift:], k_len=n), whole[:, :, shift:], **CLOSE)


@LAWS
@given(m=lengths, n=lengths, rank=st.integers(1, 4), parts=st.integers(1, 3))
def test_rank(m, n, rank, parts):
    total = sum(LowRank(rand(1, H, m, rank), rand(1, H, n, rank)) for _ in range(parts))
    ranks = torch.linalg.matrix_rank(total.dense(), atol=1e-9)
    assert total.rank == rank * parts
    assert (ranks == min(m, n, rank * parts)).all()  # at most that, and for random factors exactly


@LAWS
@given(m=lengths, n=lengths, segments=st.integers(1, 4))
def test_a_table_of_segments_has_the_rank_of_its_segments(m, n, segments):
    ids = torch.randint(segments, (B, m)), torch.randint(segments, (B, n))
    bias = SegmentTable(rand(H, segments, segments), *ids)
    assert (torch.linalg.matrix_rank(bias.dense(), atol=1e-9) <= segments).all()
    assert_close(bias.as_low_rank().dense(), bias.dense(), **CLOSE)


@LAWS
@given(data=st.data(), m=lengths, n=lengths, other=lengths)
def test_only_its_own_lengths_fit(data, m, n, other):
    bias = data.draw(score_biases(m, n))
    assert bias.bind(m, n).shape == bias.shape
    if other != m:
        with pytest.raises(ValueError, match=f"length {other} .from q., got {m}"):
            bias.bind(other, n)
    if other != n:
        with pytest.raises(ValueError, match=f"length {other} .from k., got {n}"):
            bias.bind(m, other)
