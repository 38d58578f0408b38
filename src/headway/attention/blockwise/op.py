"""The loops, registered as torch operators so that `torch.compile` keeps them whole.

Notation of the backward pass: s scores, p weights, g gradient of the output, dp of the weights, ds of the scores:
p = softmax(s), ds = p * (dp - sum_j p_ij dp_ij). The weights of a call are kept for it where they fit into KEPT
numbers. Those of longer sequences are computed again, so that beyond KEPT memory is linear in n.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from headway.attention.blockwise.terms import SCORE_TERMS, VALUE_TERMS, Block, Lookup, Sizes, Skewed, Term
from headway.attention.masking import Masking
from headway.running import without_autocast

BLOCK_Q = 128  # queries per block
TILE = 2**20  # numbers per tile, 4 MiB of float32: smaller ones fit caches better but leave cores waiting
KEPT = 2**24  # weights that a call may keep for its backward pass, 64 MiB of float32


@torch.library.custom_op("headway::blockwise", mutates_args=())
def blockwise(
    q: Tensor,  # (B, H, Lq, D), as k and v with a head each
    k: Tensor,
    v: Tensor,
    tensors: list[Tensor],  # of all terms, in order
    kinds: str,  # their names, separated by commas
    starts: list[int],  # their q_start
    mask: Tensor | None,
    causal: bool,
    lengths: Tensor | None,
    q_documents: Tensor | None,
    k_documents: Tensor | None,
    scale: float,
    dropout: float,
    seed: Tensor | None,
    keep: bool,  # whether to keep the weights
) -> tuple[Tensor, Tensor]:
    """Return the output (B, H, Lq, Dv), and the weights before dropout, block by block, or nothing in their place."""
    with without_autocast(q.device.type):
        work = _Work(q, k, v, tensors, kinds, starts, scale, dropout, seed)
        masking = _masking(q, k, mask, causal, lengths, q_documents, k_documents)
        output = work.q.new_zeros(*q.shape[:3], v.shape[3])  # rows that see nothing stay zero
        count = q.shape[:3].numel() * k.shape[2] if keep else 0
        kept = work.q.new_empty(count) if masking.empty else work.q.new_zeros(count)  # blocks may be left out
        for block in work.blocks(masking):
            p = work.weights(block, masking, work.kept_tile(kept, block))
            if dropout > 0:
                p = p.masked_fill(work.dropped(block), 0.0)
            out = torch.bmm(_flat(p), work.keys(work.v, block)).view(*p.shape[:3], -1)
            if work.value_terms:
                columns = work.diagonals(p, work.value_terms)
                for term in work.value_terms:
                    out += term.values(p, columns, block)
            work.rows(output, block).copy_(out if dropout == 0 else out.div_(1 - dropout))
        return output.to(q.dtype), kept


@torch.library.custom_op("headway::blockwise_backward", mutates_args=())
def blockwise_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kept: Tensor,
    tensors: list[Tensor],
    kinds: str,
    starts: list[int],
    mask: Tensor | None,
    causal: bool,
    lengths: Tensor | None,
    q_documents: Tensor | None,
    k_documents: Tensor | None,
    scale: float,
    dropout: float,
    seed: Tensor | None,
    learned: bool,
) -> list[Tensor]:
    """Return gradients of q, k, v and, where `learned`, of every tensor; those of integer tensors are empty."""
    with without_autocast(q.device.type):
        work = _Work(q, k, v, tensors, kinds, starts, scale, dropout, seed)
        masking = _masking(q, k, mask, causal, lengths, q_documents, k_documents)
        if learned:
            for term in work.all_terms:
                term.track()
        g = grad.to(work.q.dtype).contiguous()
        g = g / (1 - dropout) if dropout > 0 else g  # as the weights that dropout keeps
        dq, dk, dv = (torch.zeros_like(t) for t in (work.q, work.k, work.v))
        for block in work.blocks(masking):
            q_tile, g_tile = work.rows(work.q, block), work.rows(g, block)
            p = work.kept_tile(kept, block)
            if p is None:
                p = work.weights(block, masking)
            dp = work.scratch("dp", p.shape)
            torch.bmm(_flat(g_tile), work.keys(work.v, block).mT, out=_flat(dp))
            for value_term in work.value_terms:
                dp += value_term.weight_grad(g_tile, block)
            weights = p
            if dropout > 0:
                dropped = work.dropped(block)
                weights = p.masked_fill(dropped, 0.0)
                dp.masked_fill_(dropped, 0.0)
            work.keys(dv, block).baddbmm_(_flat(weights).mT, _flat(g_tile))
            ds = work.scratch("scores", p.shape)
            torch._softmax_backward_data(dp, p, -1, p.dtype, grad_input=ds)
            work.keys(dk, block).baddbmm_(_flat(ds).mT, _flat(q_tile), alpha=scale)
            dq_tile = torch.bmm(_flat(ds), work.keys(work.k, block)).mul_(scale).view(*q_tile.shape)
            terms = [term for term in work.score_terms if learned or isinstance(term, Lookup)]
            columns = work.diagonals(ds, terms)
            for term in terms:
                met = term.reduce(ds, columns, q_tile, block)
                if met is not None:
                    dq_tile += met
            work.rows(dq, block).copy_(dq_tile)
            if learned and work.value_terms:
                columns = work.diagonals(weights, work.value_terms)
                for value_term in work.value_terms:
                    value_term.reduce_values(weights, columns, g_tile, block)
        grads = [dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)]
        if learned:
            given = iter(tensors)
            for term in work.all_terms:
                term.finish()
                for total in term.grads:
                    original = next(given)
                    grads.append(original.new_empty(0) if total is None else total.to(original.dtype))
        return grads


class _Work:
    """One call's tensors in working precision, its terms and its scratch memory."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        tensors: list[Tensor],
        kinds: str,
        starts: list[int],
        scale: float,
        dropout: float,
        seed: Tensor | None,
    ) -> None:
        dtype = torch.promote_types(q.dtype, torch.float32)
        self.q, self.k, self.v = (t.to(dtype).contiguous() for t in (q, k, v))
        self.scale, self.dropout = scale, dropout
        batch, heads, q_len, _ = q.shape
        if seed is not None:
            numbers = _odd_numbers((batch, heads, q_len + k.shape[2]), seed)
            self.of_queries, self.of_keys = numbers[:, :, :q_len, None], numbers[:, :, None, q_len:]
        self.block_rows = min(BLOCK_Q, q_len)
        room = max(1, TILE // (self.block_rows * k.shape[2]))  # heads that fit into one tile
        self.heads = heads if room >= heads else max(h for h in range(1, room + 1) if heads % h == 0)
        self.batch = min(batch, max(1, room // heads))
        self._scratch: dict[str, Tensor] = {}
        self._read = 0  # how many kept weights belong to blocks that were worked on
        self._skewed: Skewed | None = None
        self.score_terms: list[Term] = []
        self.value_terms: list[Lookup] = []
        sizes = Sizes(q_len, self.block_rows)
        taken = 0
        for kind, start in zip(kinds.split(",") if kinds else [], starts, strict=True):
            make, count = (SCORE_TERMS | VALUE_TERMS)[kind]
            term = make(tensors[taken : taken + count], start, scale, dtype, sizes)
            taken += count
            if kind in VALUE_TERMS:
                assert isinstance(term, Lookup)
                self.value_terms.append(term)
            else:
                self.score_terms.append(term)

    @property
    def all_terms(self) -> list[Term]:
        return [*self.score_terms, *self.value_terms]

    def blocks(self, masking: Masking) -> Iterator[Block]:
        """Yield all blocks in a fixed order; keys that none of a block's queries may see are left out."""
        batch, heads, q_len, _ = self.q.shape
        for b0 in range(0, batch, self.batch):
            b1 = min(batch, b0 + self.batch)
            for h0 in range(0, heads, self.heads):
                for i0 in range(0, q_len, self.block_rows):
                    i1 = min(q_len, i0 + self.block_rows)
                    j0, j1 = masking.key_range(b0, b1, i0, i1)
                    if j0 < j1:
                        yield Block(b0, b1, h0, h0 + self.heads, i0, i1, j0, j1)

    def weights(self, block: Block, masking: Masking, out: Tensor | None = None) -> Tensor:
        """Return softmax(scale * q k^T + bias) where allowed, 0 elsewhere, (b, h, m, w), in `out` or in scratch."""
        s = self._scores(block)
        p = self.scratch("weights", s.shape) if out is None else out
        if masking.empty:
            return torch.softmax(s, -1, out=p)
        allowed = masking.tile(block.b0, block.b1, block.i0, block.i1, block.j0, block.j1, s.device)
        assert allowed is not None
        allowed = allowed[:, block.h0 : block.h1] if allowed.shape[1] > 1 else allowed
        torch.softmax(s.masked_fill_(~allowed, -torch.inf), -1, out=p)
        sees = allowed.any(-1, keepdim=True)
        return p if sees.all() else p.masked_fill_(~sees, 0.0)  # softmax makes NaN of nothing

    def _scores(self, block: Block) -> Tensor:
        """Return scale * q k^T + bias, (b, h, m, w), in scratch."""
        q_tile = self.rows(self.q, block)
        s = self.scratch("scores", self._shape(block))
        flat = _flat(s)
        if self.scale == 0:  # for which torch leaves the memory as it is
            flat.zero_()
        else:
            torch.baddbmm(flat, _flat(q_tile), self.keys(self.k, block).mT, beta=0, alpha=self.scale, out=flat)
        for term in self.score_terms:
            term.add_to(s, q_tile, block)
        return s

    def _shape(self, block: Block) -> torch.Size:
        """Return the shape of a tile, (b, h, m, w)."""
        return torch.Size((block.b1 - block.b0, block.h1 - block.h0, block.rows, block.columns))

    def scratch(self, name: str, shape: torch.Size) -> Tensor:
        """Return memory for a tile that the next block reuses under this name."""
        size = math.prod(shape)
        if name not in self._scratch or self._scratch[name].numel() < size:
            self._scratch[name] = self.q.new_empty(size)
        return self._scratch[name][:size].view(shape)

    def kept_tile(self, kept: Tensor, block: Block) -> Tensor | None:
        """Return the memory of the block's weights, or None where none is kept. Ask once for each block, in order."""
        if kept.numel() == 0:
            return None
        shape = self._shape(block)
        self._read += math.prod(shape)
        return kept[self._read - math.prod(shape) : self._read].view(shape)

    def diagonals(self, tile: Tensor, terms: Sequence[Term]) -> Tensor:  # (b, h, m, w) -> (b, h, m, m + w - 1)
        """Return the tile's diagonals as columns if one of the terms reads them, else the tile as it is."""
        if not any(term.READS_DIAGONALS for term in terms):
            return tile
        b, h, m, w = tile.shape
        if self._skewed is None:
            self._skewed = Skewed(self.q, self.batch * self.heads, self.block_rows, self.k.shape[2])
        return self._skewed.columns(tile.view(b * h, m, w)).view(b, h, m, -1)

    def dropped(self, block: Block) -> Tensor:
        """Return which weights of the tile are dropped, (b, h, m, w), the same ones in both passes.

        The random number of a weight is the product of one for its query and one for its key, modulo 2^32, because
        drawing a number for each weight would take longer than all the rest. Any two weights are dropped independently.
        """
        of_keys = self.of_keys[block.b0 : block.b1, block.h0 : block.h1, :, block.j0 : block.j1]
        chances = self.rows(self.of_queries, block) * of_keys
        return chances < min(round(self.dropout * 2**32) - 2**31, 2**31 - 1)

    def rows(self, t: Tensor, block: Block) -> Tensor:
        """Select the block's queries, (b, h, m, ...)."""
        return t[block.b0 : block.b1, block.h0 : block.h1, block.i0 : block.i1]

    def keys(self, t: Tensor, block: Block) -> Tensor:
        """Select the block's keys as (b * h, w, D), a view."""
        return _flat(t[block.b0 : block.b1, block.h0 : block.h1, block.j0 : block.j1])


def _flat(t: Tensor) -> Tensor:
    """Reshape (b, h, m, D) to (b * h, m, D) without a copy: a block has all heads, or a single sequence."""
    step = t.stride(1) if t.shape[1] > 1 else t.stride(0)
    return t.as_strided((t.shape[0] * t.shape[1], *t.shape[2:]), (step, *t.stride()[2:]), t.storage_offset())


def _odd_numbers(shape: tuple[int, ...], seed: Tensor) -> Tensor:
    """Draw an odd int32 for each query and each key of each head."""
    generator = torch.Generator().manual_seed(int(seed))
    return torch.randint(-(2**31), 2**31, shape, dtype=torch.int32, generator=generator) | 1


def _masking(
    q: Tensor,
    k: Tensor,
    mask: Tensor | None,
    causal: bool,
    lengths: Tensor | None,
    q_documents: Tensor | None,
    k_documents: Tensor | None,
) -> Masking:
    return Masking(
        q_len=q.shape[2],
        k_len=k.shape[2],
        causal=causal,
        mask=mask,
        lengths=lengths,
        q_documents=q_documents,
        k_documents=k_documents,
    )


# Registration: shapes for the compiler, the backward pass for autograd.


@blockwise.register_fake
def _(q, k, v, *rest):  # type: ignore[no-untyped-def]
    count = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] if rest[-1] else 0
    kept = q.new_empty(count, dtype=torch.promote_types(q.dtype, torch.float32))
    return q.new_empty(*q.shape[:3], v.shape[3]), kept


@blockwise_backward.register_fake
def _(grad, q, k, v, kept, tensors, *others):  # type: ignore[no-untyped-def]
    grads = [torch.empty_like(t) for t in (q, k, v)]
    if others[-1]:
        grads += [torch.empty_like(t) if t.is_floating_point() else t.new_empty(0) for t in tensors]
    return grads


def _save(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    q, k, v, tensors, kinds, starts, mask, causal, lengths, q_documents, k_documents, scale, dropout, seed, _ = inputs
    ctx.save_for_backward(q, k, v, output[1], mask, lengths, q_documents, k_documents, seed, *tensors)
    ctx.settings = kinds, starts, causal, scale, dropout
    ctx.learned = any(t.requires_grad for t in tensors)
    ctx.set_materialize_grads(False)


def _differentiate(ctx, grad, *_):  # type: ignore[no-untyped-def]
    q, k, v, kept, mask, lengths, q_documents, k_documents, seed, *tensors = ctx.saved_tensors
    kinds, starts, causal, scale, dropout = ctx.settings
    nothing: tuple[object, ...] = (
        None,
        None if starts else [],
        *[None] * 9,
    )  # torch takes an empty list for a list of tensors
    if grad is None:
        return None, None, None, [None] * len(tensors), *nothing
    grads = blockwise_backward(
        grad, q, k, v, kept, tensors, kinds, starts, mask, causal, lengths, q_documents, k_documents,
        scale, dropout, seed, ctx.learned,
    )  # fmt: skip
    others = grads[3:] if ctx.learned else [None] * len(tensors)
    of_tensors = [g if g is not None and t.is_floating_point() else None for g, t in zip(others, tensors, strict=True)]
    return *grads[:3], of_tensors, *nothing


def _no_second(ctx, *grads):  # type: ignore[no-untyped-def]
    raise NotImplementedError(
        "attention: the blockwise backend has no second derivative. Use backend='eager', which is differentiable twice."
    )


blockwise.register_autograd(_differentiate, setup_context=_save)
blockwise_backward.register_autograd(_no_second)
