"""What each kind of bias contributes to one block: its tile, and the sum of its gradient.

A bias of the offset alone is never gathered. Its values are written once per row of a block, and read with a row stride
one short of the row's length: row r then begins r values earlier, which is the tile. The same view, written to, turns
the diagonals of a gradient's tile into columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

OF_KEYS = "RelativeProducts of keys"  # they have a class of their own here
KEYS = 64  # keys in a product with offsets: with fewer, products are small; with more, more of them is unused


class Sizes(NamedTuple):
    """The sizes of the call that the terms need."""

    q_len: int
    block_rows: int


class Block(NamedTuple):
    """Sequences b0..b1, heads h0..h1, queries i0..i1, keys j0..j1. Its tile is (b, h, m, w)."""

    b0: int
    b1: int
    h0: int
    h1: int
    i0: int
    i1: int
    j0: int
    j1: int

    @property
    def rows(self) -> int:
        return self.i1 - self.i0

    @property
    def columns(self) -> int:
        return self.j1 - self.j0


def skewed(rows: Tensor, first: int, m: int, width: int) -> Tensor:
    """View rows, (..., >= m, n), as (..., m, width): out[r, c] = rows[r, first + c + m - 1 - r]."""
    *outer, step, one = rows.stride()
    return rows.as_strided((*rows.shape[:-2], m, width), (*outer, step - 1, one), rows.storage_offset() + first + m - 1)


class Skewed:
    """Memory in which the diagonals of tiles become columns."""

    def __init__(self, like: Tensor, count: int, rows: int, k_len: int) -> None:
        self.memory = like.new_zeros(count, rows, k_len + rows)

    def columns(self, tile: Tensor) -> Tensor:  # (count, rows, width) -> (count, rows, rows + width - 1)
        """Copy a tile to where its entry (r, c) is entry (r, c + rows - 1 - r) of the result; the others are zero."""
        count, rows, width = tile.shape
        memory = self.memory[:count, :rows]
        # What other tiles may have left beside this one: a triangle on either side.
        memory[..., : rows - 1].zero_()
        memory[..., width : width + rows].zero_()
        skewed(memory, 0, rows, width).copy_(tile)
        return memory[..., : rows + width - 1]


def reduced(grad: Tensor, batch: int, heads: int) -> Tensor:
    """Sum the first two axes of a gradient down to sizes that were shared."""
    if batch == 1 and grad.shape[0] > 1:
        grad = grad.sum(0, keepdim=True)
    if heads == 1 and grad.shape[1] > 1:
        grad = grad.sum(1, keepdim=True)
    return grad


def share(tensor: Tensor, block: Block) -> Tensor:
    """Select the block's sequences and heads of a tensor (B|1, H|1, ...)."""
    if tensor.shape[0] > 1:
        tensor = tensor[block.b0 : block.b1]
    return tensor[:, block.h0 : block.h1] if tensor.shape[1] > 1 else tensor


def own_heads(table: Tensor, block: Block) -> Tensor:
    """Select the block's heads of a table (H|1, ...)."""
    return table[block.h0 : block.h1] if table.shape[0] > 1 else table


class Term:
    """A score bias: `load` makes its tile, `reduce` takes the gradient of the scores in that tile."""

    READS_DIAGONALS: ClassVar[bool] = False  # whether `reduce`, `values` and `reduce_values` read `columns`

    def __init__(self, tensors: list[Tensor], start: int, scale: float, dtype: torch.dtype, sizes: Sizes) -> None:
        self.tensors = [t.to(dtype) if t.is_floating_point() else t for t in tensors]
        self.start, self.scale, self.sizes = start, scale, sizes
        self.grads: list[Tensor | None] = []

    def track(self) -> None:
        """Allocate the sums of the gradients."""
        self.grads = [torch.zeros_like(t) if t.is_floating_point() else None for t in self.tensors]

    def load(self, q: Tensor, block: Block) -> Tensor:  # q (b, h, m, D) -> (b|1, h|1, m, w)
        raise NotImplementedError

    def add_to(self, scores: Tensor, q: Tensor, block: Block) -> None:
        """Add the tile to the scores, (b, h, m, w), in place."""
        scores += self.load(q, block)

    def reduce(self, ds: Tensor, columns: Tensor, q: Tensor, block: Block) -> Tensor | None:
        """Add to the gradients; return the gradient of q, (b, h, m, D), where the term meets q.

        ds is (b, h, m, w); columns is the same with diagonals as columns, (b, h, m, m + w - 1), if they are read.
        """
        raise NotImplementedError

    def finish(self) -> None:
        """Complete the gradients after the last block."""


class DenseTerm(Term):
    def load(self, q: Tensor, block: Block) -> Tensor:
        return share(self.tensors[0], block)[..., block.i0 : block.i1, block.j0 : block.j1]

    def reduce(self, ds: Tensor, columns: Tensor, q: Tensor, block: Block) -> None:
        total = self.grads[0]
        assert total is not None
        target = share(total, block)[..., block.i0 : block.i1, block.j0 : block.j1]
        target.add_(reduced(ds, total.shape[0], total.shape[1]))


class ToeplitzTerm(Term):
    READS_DIAGONALS = True

    def __init__(self, tensors: list[Tensor], start: int, scale: float, dtype: torch.dtype, sizes: Sizes) -> None:
        super().__init__(tensors, start, scale, dtype, sizes)
        # (B|1, H|1, rows of a block, Lq + Lk - 1): every row the same, to be read skewed
        self.repeated = self.tensors[0][:, :, None].expand(-1, -1, sizes.block_rows, -1).contiguous()

    def load(self, q: Tensor, block: Block) -> Tensor:
        first = block.j0 - (block.i1 - 1) + self.sizes.q_len - 1  # index of the tile's least offset
        return skewed(share(self.repeated, block), first, block.rows, block.columns)

    def reduce(self, ds: Tensor, columns: Tensor, q: Tensor, block: Block) -> None:
        total = self.grads[0]
        assert total is not None
        first = block.j0 - (block.i1 - 1) + self.sizes.q_len - 1
        target = share(total, block)[..., first : first + columns.shape[-1]]
        target.add_(reduced(columns.sum(-2), total.shape[0], total.shape[1]))


class LowRankTerm(Term):
    def _factors(self, block: Block) -> tuple[Tensor, Tensor]:
        left, right = self.tensors
        return share(left, block)[..., block.i0 : block.i1, :], share(right, block)[..., block.j0 : block.j1, :]

    def load(self, q: Tensor, block: Block) -> Tensor:
        left, right = self._factors(block)
        return left @ right.transpose(-1, -2)

    def reduce(self, ds: Tensor, columns: Tensor, q: Tensor, block: Block) -> None:
        left, right = self._factors(block)
        ds = reduced(ds, max(left.shape[0], right.shape[0]), max(left.shape[1], right.shape[1]))
        d_left, d_right = self.grads
        assert d_left is not None and d_right is not None
        for total, grad, span in (
            (d_left, ds @ right, slice(block.i0, block.i1)),
            (d_right, ds.transpose(-1, -2) @ left, slice(block.j0, block.j1)),
        ):
            share(total, block)[..., span, :].add_(reduced(grad, total.shape[0], total.shape[1]))


class ProductTerm(Term):
    """RelativeProducts of queries: the block's vectors times those of all offsets of its tile, read skewed.

    The rows of the table are looked up once, so that there is a vector for each offset, (H|1, Lq + Lk - 1, W). A
    product with all of them is cheaper than one with the rows of the table and a look-up for each score.
    """

    READS_DIAGONALS = True

    def __init__(self, tensors: list[Tensor], start: int, scale: float, dtype: torch.dtype, sizes: Sizes) -> None:
        super().__init__(tensors, start, scale, dtype, sizes)
        vectors, table, rows = self.tensors
        self.vectors = vectors.contiguous()
        self.rows = torch.where(rows < 0, table.shape[1], rows.long())  # -1 is a row of zeros behind the others
        self.of_offsets = pad(table, (0, 0, 0, 1)).index_select(1, self.rows)
        self.d_of_offsets = self.of_offsets.new_empty(0)
        self.memory = self.vectors.new_empty(0)

    def track(self) -> None:
        super().track()
        self.d_of_offsets = torch.zeros_like(self.of_offsets)

    def finish(self) -> None:
        total = self.grads[1]
        assert total is not None
        total.copy_(pad(total, (0, 0, 0, 1)).index_add_(1, self.rows, self.d_of_offsets)[:, :-1])

    def load(self, q: Tensor, block: Block) -> Tensor:
        vectors, of_offsets = self._factors(block, slice(block.i0, block.i1), self._offsets(block))
        return skewed(self._product(vectors, of_offsets), 0, block.rows, block.columns)

    def reduce(self, ds: Tensor, columns: Tensor, q: Tensor, block: Block) -> None:
        self._add_grads(columns, block, slice(block.i0, block.i1), self._offsets(block))

    def _offsets(self, block: Block) -> slice:
        first = block.j0 - (block.i1 - 1) + self.sizes.q_len - 1  # index of the tile's least offset
        return slice(first, first + block.rows + block.columns - 1)

    def _factors(self, block: Block, own: slice, offsets: slice) -> tuple[Tensor, Tensor]:
        """Return the vectors, (b|1, h|1, m, W), and those of offsets, (h|1, n, W), with as many heads."""
        vectors, of_offsets = share(self.vectors, block)[:, :, own], own_heads(self.of_offsets, block)[:, offsets]
        heads = max(vectors.shape[1], of_offsets.shape[0])
        return vectors.expand(-1, heads, -1, -1), of_offsets.expand(heads, -1, -1)

    def _memory(self, *shape: int) -> Tensor:
        """Return memory that the next tile reuses."""
        if self.memory.numel() < math.prod(shape):
            self.memory = self.vectors.new_empty(math.prod(shape))
        return self.memory[: math.prod(shape)].view(shape)

    def _product(self, vectors: Tensor, of_offsets: Tensor) -> Tensor:  # (b|1, h|1, m, n)
        products = self._memory(*vectors.shape[:3], of_offsets.shape[1])
        for of_sequence, product in zip(vectors, products, strict=True):
            torch.bmm(of_sequence, of_offsets.mT, out=product)
        return products

    def _add_grads(self, grad: Tensor, block: Block, own: slice, offsets: slice) -> None:
        """Add to the gradients of vectors and of those of offsets, from that of their product, (b, h, m, n)."""
        total = self.grads[0]
        assert total is not None
        vectors, of_offsets = self._factors(block, own, offsets)
        grad = reduced(grad, vectors.shape[0], vectors.shape[1])
        d_vectors, d_of_offsets = share(total, block)[:, :, own], own_heads(self.d_of_offsets, block)[:, offsets]
        for n, product in enumerate(grad):
            d_vectors[n] += reduced(torch.bmm(product, of_offsets)[None], 1, d_vectors.shape[1])[0]
            d_of_offsets += reduced(torch.bmm(product.mT, vectors[n])[None], 1, d_of_offsets.shape[0])[0]


class KeyProductTerm(ProductTerm):
    """RelativeProducts of keys: the same with keys as rows and queries as columns, for some keys at a time.

    Seen from a key, the greatest offset comes first. All keys at once would be multiplied with every offset of the
    tile, of which each needs as many as there are queries.
    """

    READS_DIAGONALS = False

    def __init__(self, tensors: list[Tensor], start: int, scale: float, dtype: torch.dtype, sizes: Sizes) -> None:
        vectors, table, rows = tensors
        super().__init__([vectors, table, rows.flip(0)], start, scale, dtype, sizes)

    def add_to(self, scores: Tensor, q: Tensor, block: Block) -> None:
        for keys, offsets in self._parts(block):
            product = self._product(*self._factors(block, keys, offsets))
            tile = skewed(product, 0, keys.stop - keys.start, block.rows)  # (b|1, h|1, keys, m)
            scores[..., keys.start - block.j0 : keys.stop - block.j0] += tile.mT

    def reduce(self, ds: Tensor, columns: Tensor, q: Tensor, block: Block) -> None:
        batch, heads = self._factors(block, slice(0, 1), slice(0, 1))[0].shape[:2]
        ds = reduced(ds, batch, heads)
        for keys, offsets in self._parts(block):
            count = keys.stop - keys.start
            grad = self._memory(batch, heads, count, offsets.stop - offsets.start).zero_()
            skewed(grad, 0, count, block.rows).copy_(ds[..., keys.start - block.j0 : keys.stop - block.j0].mT)
            self._add_grads(grad, block, keys, offsets)

    def _parts(self, block: Block) -> Iterator[tuple[slice, slice]]:
        """Yield groups of keys, each with the offsets at which the block's queries see it."""
        k_len = self.vectors.shape[2]
        for start in range(block.j0, block.j1, KEYS):
            stop = min(start + KEYS, block.j1)
            first = k_len - stop + block.i0  # where the greatest offset, stop - 1 - i0, stands
            yield slice(start, stop), slice(first, first + block.rows + stop - start - 1)


class Lookup(Term):
    """A table of vectors, (H|1, N, D), and a rule that says which vector belongs to which pair."""

    def spread(self, met: Tensor, block: Block) -> Tensor:
        """Spread one number per vector, (b, h, m, N), over the tile, (b, h, m, w)."""
        raise NotImplementedError

    def gather(self, tile: Tensor, columns: Tensor, block: Block) -> Tensor:
        """Sum the tile's numbers per vector, (b, h, m, N); the transpose of `spread`."""
        raise NotImplementedError

    def _add_table(self, grad: Tensor, block: Block) -> None:  # (b, h, N, D)
        total = self.grads[0]
        assert total is not None
        own_heads(total, block).add_(reduced(grad, 1, total.shape[0])[0])

    def _table(self, block: Block) -> Tensor:
        return own_heads(self.tensors[0], block)

    # As keys: the query is multiplied with the vectors.

    def load(self, q: Tensor, block: Block) -> Tensor:
        return self.spread((q * self.scale) @ self._table(block).transpose(-1, -2), block)

    def reduce(self, ds: Tensor, columns: Tensor, q: Tensor, block: Block) -> Tensor:
        met = self.gather(ds, columns, block)  # gradient of the numbers per vector
        if self.grads:
            self._add_table(met.transpose(-1, -2) @ (q * self.scale), block)
        return met @ (self._table(block) * self.scale)

    # As values: the vectors join the values.

    def values(self, weights: Tensor, columns: Tensor, block: Block) -> Tensor:
        """Compute sum_j weights_ij vector_ij, (b, h, m, D)."""
        return self.gather(weights, columns, block) @ self._table(block)

    def weight_grad(self, grad: Tensor, block: Block) -> Tensor:
        """Compute the gradient of the weights, (b, h, m, w), from that of the output."""
        return self.spread(grad @ self._table(block).transpose(-1, -2), block)

    def reduce_values(self, weights: Tensor, columns: Tensor, grad: Tensor, block: Block) -> None:
        self._add_table(self.gather(weights, columns, block).transpose(-1, -2) @ grad, block)


class OffsetTerm(Lookup):
    """RelativeKeys and RelativeValues: the vector of pair (i, j) is that of j - i, clipped."""

    READS_DIAGONALS = True

    def _parts(self, block: Block) -> tuple[int, int, int, int]:
        """Count the tile's offsets left of the table, in it and right of it; also return the first row used."""
        clip = self.tensors[0].shape[1] // 2
        least = block.j0 - (self.start + block.i1 - 1)
        count = block.rows + block.columns - 1
        left = min(max(-clip - least, 0), count)
        right = min(max(least + count - 1 - clip, 0), count)
        return left, count - left - right, right, max(least, -clip) + clip

    def spread(self, met: Tensor, block: Block) -> Tensor:
        left, inside, right, first = self._parts(block)
        parts = [met[..., :1].expand(*met.shape[:-1], left)] if left else []
        parts += [met[..., first : first + inside]] if inside else []
        parts += [met[..., -1:].expand(*met.shape[:-1], right)] if right else []
        return skewed(torch.cat(parts, -1), 0, block.rows, block.columns)

    def gather(self, tile: Tensor, columns: Tensor, block: Block) -> Tensor:
        left, inside, right, first = self._parts(block)
        met = tile.new_zeros(*tile.shape[:-1], self.tensors[0].shape[1])
        if inside:
            met[..., first : first + inside] = columns[..., left : left + inside]
        if left:
            met[..., 0] += columns[..., :left].sum(-1)
        if right:
            met[..., -1] += columns[..., left + inside :].sum(-1)
        return met


class LabelTerm(Lookup):
    """EdgeKeys and EdgeValues: the vector of pair (i, j) is that of its label."""

    def _labels(self, block: Block, shape: torch.Size) -> Tensor:
        labels = share(self.tensors[1][:, None], block)[..., block.i0 : block.i1, block.j0 : block.j1]
        return labels.long().expand(shape[0], shape[1], -1, -1)

    def spread(self, met: Tensor, block: Block) -> Tensor:
        return met.gather(-1, self._labels(block, met.shape))

    def gather(self, tile: Tensor, columns: Tensor, block: Block) -> Tensor:
        met = tile.new_zeros(*tile.shape[:-1], self.tensors[0].shape[1])
        return met.scatter_add_(-1, self._labels(block, tile.shape), tile)


SCORE_TERMS: dict[str, tuple[type[Term], int]] = {  # kind -> its class here and its number of tensors
    "Dense": (DenseTerm, 1),
    "Toeplitz": (ToeplitzTerm, 1),
    "LowRank": (LowRankTerm, 2),
    "RelativeKeys": (OffsetTerm, 1),
    "RelativeProducts": (ProductTerm, 3),
    OF_KEYS: (KeyProductTerm, 3),
    "EdgeKeys": (LabelTerm, 2),
}
VALUE_TERMS: dict[str, tuple[type[Lookup], int]] = {"RelativeValues": (OffsetTerm, 1), "EdgeValues": (LabelTerm, 2)}
