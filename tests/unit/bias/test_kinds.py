"""Every kind of bias keeps the contract, in its shared and in its batch-dependent form."""

import pytest
import torch

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
from headway.testing import BiasContract, ValueBiasContract


def at(tensor, *index):
    """One number of a tensor whose size-1 axes are shared."""
    return tensor[tuple(0 if size == 1 else n for size, n in zip(tensor.shape, index, strict=True))].item()


def row(offset, clip):
    return max(-clip, min(clip, offset)) + clip


def met(self, q, table, n, b, h, i):
    """scale * q_i . table[n]"""
    vector = table[0 if table.shape[0] == 1 else h, n]
    return self.scale * sum(q[b, h, i, d].item() * vector[d].item() for d in range(self.width))


def vector(table, n, h):
    return table[0 if table.shape[0] == 1 else h, n].tolist()


class TestDense(BiasContract):
    def make(self, dtype, requires_grad):
        shape = (self.batch, self.num_heads, self.q_len, self.k_len)
        return Dense(torch.randn(shape, dtype=dtype, requires_grad=requires_grad))

    def by_hand(self, bias, q, i, j, b, h):
        return bias.matrix[b, h, i, j].item()


class TestSharedDense(TestDense):
    def make(self, dtype, requires_grad):
        return Dense(torch.randn(1, 1, self.q_len, self.k_len, dtype=dtype, requires_grad=requires_grad))

    def by_hand(self, bias, q, i, j, b, h):
        return bias.matrix[0, 0, i, j].item()


class TestToeplitz(BiasContract):
    sizes = (1, 3)
    q_len_given = False

    def make(self, dtype, requires_grad):
        values = torch.randn(*self.sizes, self.q_len + self.k_len - 1, dtype=dtype, requires_grad=requires_grad)
        return Toeplitz(values, self.q_len if self.q_len_given else None)

    def by_hand(self, bias, q, i, j, b, h):
        values = bias.values[0 if self.sizes[0] == 1 else b, 0 if self.sizes[1] == 1 else h].tolist()
        by_offset = dict(zip(range(-(self.q_len - 1), self.k_len), values, strict=True))
        return by_offset[j - i]


class TestBoundToeplitz(TestToeplitz):
    q_len_given = True


class TestSharedToeplitz(TestToeplitz):
    sizes = (1, 1)


class TestToeplitzOfEachSequence(TestToeplitz):
    sizes = (2, 3)


class TestLowRank(BiasContract):
    left, right = (1, 3), (1, 3)
    rank = 4

    def make(self, dtype, requires_grad):
        left = torch.randn(*self.left, self.q_len, self.rank, dtype=dtype, requires_grad=requires_grad)
        right = torch.randn(*self.right, self.k_len, self.rank, dtype=dtype, requires_grad=requires_grad)
        return LowRank(left, right)

    def by_hand(self, bias, q, i, j, b, h):
        return sum(at(bias.left, b, h, i, r) * at(bias.right, b, h, j, r) for r in range(self.rank))


class TestLowRankOfRankOne(TestLowRank):
    left, right, rank = (1, 1), (1, 1), 1

    def by_hand(self, bias, q, i, j, b, h):
        return bias.left[0, 0, i, 0].item() * bias.right[0, 0, j, 0].item()


class TestLowRankWithOneSharedFactor(TestLowRank):
    left, right = (2, 1), (1, 3)


class TestSegmentTable(BiasContract):
    heads, rows, columns = 3, 2, 2

    def make(self, dtype, requires_grad):
        table = torch.randn(self.heads, 4, 4, dtype=dtype, requires_grad=requires_grad)
        ids = [torch.randint(4, size) for size in ((self.rows, self.q_len), (self.columns, self.k_len))]
        return SegmentTable(table, *ids)

    def by_hand(self, bias, q, i, j, b, h):
        of_query = bias.q_segments[0 if self.rows == 1 else b, i].item()
        of_key = bias.k_segments[0 if self.columns == 1 else b, j].item()
        return bias.table[0 if self.heads == 1 else h, of_query, of_key].item()

    def test_it_is_low_rank(self):
        bias, _ = self.made()
        torch.testing.assert_close(bias.as_low_rank().dense(), bias.dense())
        assert bias.as_low_rank().rank == 4


class TestSharedSegmentTable(TestSegmentTable):
    heads, rows, columns = 1, 1, 1


class TestSegmentTableWithOneQuerySequence(TestSegmentTable):
    rows = 1


class TestSegmentTableOfSmallIntegers(TestSegmentTable):
    def make(self, dtype, requires_grad):
        bias = super().make(dtype, requires_grad)
        return SegmentTable(bias.table, bias.q_segments.to(torch.uint8), bias.k_segments.int())


class TestRelativeKeys(BiasContract):
    heads, clip, q_start = 3, 2, 0

    def make(self, dtype, requires_grad):
        table = torch.randn(self.heads, 2 * self.clip + 1, self.width, dtype=dtype, requires_grad=requires_grad)
        return RelativeKeys(table, q_start=self.q_start)

    def by_hand(self, bias, q, i, j, b, h):
        return met(self, q, bias.table, row(j - (i + self.q_start), self.clip), b, h, i)


class TestSharedRelativeKeys(TestRelativeKeys):
    heads = 1


class TestRelativeKeysOfOneVector(TestRelativeKeys):
    clip = 0


class TestRelativeKeysFurtherThanTheText(TestRelativeKeys):
    clip = 20


class TestRelativeKeysOfLaterQueries(TestRelativeKeys):
    q_start = 4


class TestRelativeProducts(BiasContract):
    rows, heads, own_heads, own_batch, of_keys = 4, 3, 3, 2, False

    def make(self, dtype, requires_grad):
        own = self.k_len if self.of_keys else self.q_len
        vectors = torch.randn(self.own_batch, self.own_heads, own, 5, dtype=dtype, requires_grad=requires_grad)
        table = torch.randn(self.heads, self.rows, 5, dtype=dtype, requires_grad=requires_grad)
        rows = torch.randint(-1, self.rows, (self.q_len + self.k_len - 1,))
        rows[self.q_len - 1] = self.rows - 1  # not only -1, which would be a bias of zeros
        return RelativeProducts(vectors, table, rows, self.of_keys)

    def by_hand(self, bias, q, i, j, b, h):
        by_offset = dict(zip(range(-(self.q_len - 1), self.k_len), bias.rows.tolist(), strict=True))
        vectors = bias.vectors[0 if self.own_batch == 1 else b, 0 if self.own_heads == 1 else h]
        own = vectors[j if self.of_keys else i].tolist()
        n = by_offset[j - i]
        return 0.0 if n == -1 else sum(x * y for x, y in zip(own, vector(bias.offset_vectors, n, h), strict=True))


class TestRelativeProductsOfKeys(TestRelativeProducts):
    of_keys = True


class TestRelativeProductsThatHeadsShare(TestRelativeProducts):
    heads, own_batch, rows = 1, 1, 40


class TestRelativeProductsOfVectorsThatHeadsShare(TestRelativeProducts):
    own_heads, of_keys, rows = 1, True, 1


@pytest.mark.parametrize("of_keys", [False, True])
@pytest.mark.parametrize(("q_len", "k_len", "q_start"), [(5, 7, 0), (2, 9, 7), (6, 3, 0), (1, 1, 0)])
@pytest.mark.parametrize(("left", "right"), [(0, 0), (2, 1), (0, 3), (9, 12)])
def test_rows_of_clipped_offsets(left, right, q_len, k_len, q_start, of_keys):
    vectors = torch.randn(2, 3, k_len if of_keys else q_len, 4)
    table = torch.randn(3, left + 1 + right, 4)
    for zero_beyond in (False, True):
        bias = RelativeProducts.clipped(
            vectors, table, q_len, k_len, left, q_start=q_start, zero_beyond=zero_beyond, of_keys=of_keys
        )
        dense = bias.dense()
        for i in range(q_len):
            for j in range(k_len):
                offset = j - (i + q_start)
                own = vectors[:, :, j if of_keys else i]
                expected = (own * table[:, max(-left, min(offset, right)) + left]).sum(-1)
                if zero_beyond and not -left <= offset <= right:
                    expected = torch.zeros_like(expected)
                torch.testing.assert_close(dense[:, :, i, j], expected)


def test_rows_of_every_offset():
    vectors, table = torch.randn(2, 3, 5, 4), torch.randn(3, 11, 4)
    bias = RelativeProducts.of_every_offset(vectors, table)
    assert bias.lengths == (5, 7)
    torch.testing.assert_close(bias.dense()[:, :, 4, 1], (vectors[:, :, 4] * table[:, 1 - 4 + 4]).sum(-1))
    turned = RelativeProducts.of_every_offset(vectors, table, of_keys=True)
    assert turned.lengths == (7, 5)
    torch.testing.assert_close(turned.dense()[:, :, 6, 1], (vectors[:, :, 1] * table[:, 1 - 6 + 6]).sum(-1))


class TestEdgeKeys(BiasContract):
    heads, rows = 3, 2

    def make(self, dtype, requires_grad):
        table = torch.randn(self.heads, 6, self.width, dtype=dtype, requires_grad=requires_grad)
        return EdgeKeys(table, torch.randint(6, (self.rows, self.q_len, self.k_len)))

    def by_hand(self, bias, q, i, j, b, h):
        return met(self, q, bias.table, bias.labels[0 if self.rows == 1 else b, i, j].item(), b, h, i)


class TestSharedEdgeKeys(TestEdgeKeys):
    heads, rows = 1, 1


class TestRelativeValues(ValueBiasContract):
    heads, clip, q_start = 3, 2, 0

    def make(self, dtype, requires_grad):
        table = torch.randn(self.heads, 2 * self.clip + 1, self.width, dtype=dtype, requires_grad=requires_grad)
        return RelativeValues(table, q_start=self.q_start)

    def by_hand(self, bias, q, i, j, b, h):
        return vector(bias.table, row(j - (i + self.q_start), self.clip), h)


class TestSharedRelativeValues(TestRelativeValues):
    heads = 1


class TestRelativeValuesOfLaterQueries(TestRelativeValues):
    q_start, clip = 3, 4


class TestEdgeValues(ValueBiasContract):
    heads, rows = 3, 2

    def make(self, dtype, requires_grad):
        table = torch.randn(self.heads, 6, self.width, dtype=dtype, requires_grad=requires_grad)
        return EdgeValues(table, torch.randint(6, (self.rows, self.q_len, self.k_len)))

    def by_hand(self, bias, q, i, j, b, h):
        return vector(bias.table, bias.labels[0 if self.rows == 1 else b, i, j].item(), h)


class TestSharedEdgeValues(TestEdgeValues):
    heads, rows = 1, 1


class TestSum(BiasContract):
    PARTS = (TestToeplitz, TestSegmentTable, TestLowRankWithOneSharedFactor)

    def parts(self):
        return [self.sized(part) for part in self.PARTS]

    def sized(self, part):
        part = part()
        part.q_len, part.k_len = self.q_len, self.k_len
        return part

    def make(self, dtype, requires_grad):
        return Sum(*(part.make(dtype, requires_grad) for part in self.parts()))

    def by_hand(self, bias, q, i, j, b, h):
        terms = zip(self.parts(), bias.terms, strict=True)
        return sum(part.by_hand(term, q, i, j, b, h) for part, term in terms)


class TestSumThatMeetsTheQuery(TestSum):
    PARTS = (TestRelativeKeysOfLaterQueries, TestRelativeProductsOfKeys, TestToeplitz, TestEdgeKeys, TestSharedDense)


class TestValueSum(ValueBiasContract):
    def make(self, dtype, requires_grad):
        parts = [TestSum.sized(self, part) for part in (TestRelativeValues, TestEdgeValues)]
        return ValueSum(*(part.make(dtype, requires_grad) for part in parts))

    def by_hand(self, bias, q, i, j, b, h):
        offsets, labels = bias.terms
        one = TestRelativeValues().by_hand(offsets, q, i, j, b, h)
        other = TestEdgeValues().by_hand(labels, q, i, j, b, h)
        return [x + y for x, y in zip(one, other, strict=True)]


def test_a_learned_segment_table_gives_the_numbers_and_the_gradient_of_the_look_up():
    """Its matrix is made by products where a gradient is wanted; the formula is the look-up."""
    table = torch.randn(3, 4, 4, dtype=torch.float64, requires_grad=True)
    q_ids, k_ids = torch.randint(4, (2, 5)), torch.randint(4, (2, 7))
    upstream = torch.randn(2, 3, 5, 7, dtype=torch.float64)
    made = SegmentTable(table, q_ids, k_ids).dense()
    looked_up = torch.stack([table[:, i[:, None], j[None, :]] for i, j in zip(q_ids, k_ids, strict=True)])
    assert torch.equal(made, looked_up)
    ours, formula = (torch.autograd.grad(each, table, upstream)[0] for each in (made, looked_up))
    torch.testing.assert_close(ours, formula)
