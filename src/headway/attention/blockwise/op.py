"""The loops, registered as torch operators so that `torch.compile` keeps them whole.

Notation of the backward pass: s scores, p weights, g gradient of the output, dp of the weights, ds of the scores:
p = exp(s - logsum), ds = p * (dp - sum_j p_ij dp_ij), and that row sum is g . out, so nothing n x n is ever kept.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from headway.attention.blockwise.terms import SCORE_TERMS, VALUE_TERMS, Block, Lookup, Sizes, Skewed, Term
from headway.attention.masking import Masking
from headway.running import without_autocast

BLOCK_Q = 128  # queries per block
TILE = 2**20  # numbers per tile, 4 MiB of float32: smaller ones fit caches better but leave cores waiting


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
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output (B, H, Lq, Dv), the logs of the softmax's denominators (B, H, Lq, 1), and a rounding error.

    The last is what rounding to half precision took from the output; it is empty in other precisions. The backward pass
    adds it again to compute g . out exactly, because with few keys nearly everything in ds cancels.
    """
    with without_autocast(q.device.type):
        work = _Work(q, k, v, tensors, kinds, starts, scale, dropout, seed)
        masking = _masking(q, k, mask, causal, lengths, q_documents, k_documents)
        output = work.q.new_zeros(*q.shape[:3], v.shape[3])  # rows that see nothing stay zero,
        logsum = work.q.new_full((*q.shape[:3], 1), torch.inf)  # and so do their exp(s - logsum)
        for block in work.blocks(masking):
            s = work.scores(block, masking)
            top = s.amax(-1, keepdim=True)
            if not masking.empty:
                top.masked_fill_(top == -torch.inf, 0.0)
            p = s.sub_(top).exp_()
            total = p.sum(-1, keepdim=True)
            if dropout > 0:
                p.masked_fill_(work.dropped(block), 0.0)
            out = torch.bmm(_flat(p), work.keys(work.v, block)).view(*p.shape[:3], -1)
            if work.value_terms:
                columns = work.skew(p)
                for term in work.value_terms:
                    out += term.values(p, columns, block)
            if not masking.empty:
                total.masked_fill_(total == 0, torch.inf)
            torch.div(out, total * (1 - dropout), out=work.rows(output, block))
            torch.add(top, total.log_(), out=work.rows(logsum, block))
        rounded = output.to(q.dtype)
        rest = output.new_empty(0) if rounded is output else (output - rounded).to(q.dtype)
        return rounded, logsum, rest


@torch.library.custom_op("headway::blockwise_backward", mutates_args=())
def blockwise_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output: Tensor,
    logsum: Tensor,
    rest: Tensor,
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
) -> list[Tensor]:  # gradients of q, k, v and, where `learned`, of every tensor (empty for integers)
    with without_autocast(q.device.type):
        work = _Work(q, k, v, tensors, kinds, starts, scale, dropout, seed)
        masking = _masking(q, k, mask, causal, lengths, q_documents, k_documents)
        if learned:
            for term in work.all_terms:
                term.track()
        g = grad.to(work.q.dtype).contiguous()
        exact = output.to(g.dtype) + rest if rest.numel() > 0 else output
        delta = (g * exact).sum(-1, keepdim=True)
        g = g / (1 - dropout) if dropout > 0 else g  # as the weights that dropout keeps
        dq, dk, dv = (torch.zeros_like(t) for t in (work.q, work.k, work.v))
        for block in work.blocks(masking):
            q_tile, g_tile = work.rows(work.q, block), work.rows(g, block)
            p = work.scores(block, masking).sub_(work.rows(logsum, block)).exp_()
            ds = work.skewed_tile(p.shape)
            torch.bmm(_flat(g_tile), work.keys(work.v, block).mT, out=_flat(ds))  # dp, for now
            for value_term in work.value_terms:
                ds += value_term.weight_grad(g_tile, block)
            kept = p
            if dropout > 0:
                dropped = work.dropped(block)
                kept = p.masked_fill(dropped, 0.0)
                ds.masked_fill_(dropped, 0.0)
            work.keys(dv, block).baddbmm_(_flat(kept).mT, _flat(g_tile))
            ds.sub_(work.rows(delta, block)).mul_(p)
            work.keys(dk, block).baddbmm_(_flat(ds).mT, _flat(q_tile), alpha=scale)
            dq_tile = torch.bmm(_flat(ds), work.keys(work.k, block)).mul_(scale).view(*q_tile.shape)
            columns = work.skewed_columns(p.shape)
            for term in work.score_terms:
                met = term.reduce(ds, columns, q_tile, block) if learned or isinstance(term, Lookup) else None
                if met is not None:
                    dq_tile += met
            work.rows(dq, block).copy_(dq_tile)
            if learned and work.value_terms:
                columns = work.skew(kept)
                for value_term in work.value_terms:
                    value_term.reduce_values(kept, columns, g_tile, block)
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
        self._scratch: Tensor | None = None
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
        """Yield all blocks in a fixed order, without the keys that none of a block's queries may see."""
        batch, heads, q_len, _ = self.q.shape
        for b0 in range(0, batch, self.batch):
            b1 = min(batch, b0 + self.batch)
            for h0 in range(0, heads, self.heads):
                for i0 in range(0, q_len, self.block_rows):
                    i1 = min(q_len, i0 + self.block_rows)
                    j0, j1 = masking.key_range(b0, b1, i0, i1)
                    if j0 < j1:
                        yield Block(b0, b1, h0, h0 + self.heads, i0, i1, j0, j1)

    def scores(self, block: Block, masking: Masking) -> Tensor:
        """Compute scale * q k^T + bias, -inf where masked, (b, h, m, w), in memory that the next block reuses."""
        q_tile = self.rows(self.q, block)
        size = (block.b1 - block.b0) * (block.h1 - block.h0) * block.rows * block.columns
        if self._scratch is None or self._scratch.numel() < size:
            self._scratch = self.q.new_empty(size)
        s = self._scratch[:size].view(*q_tile.shape[:3], block.columns)
        flat = _flat(s)
        if self.scale == 0:  # for which torch leaves the memory as it is
            flat.zero_()
        else:
            torch.baddbmm(flat, _flat(q_tile), self.keys(self.k, block).mT, beta=0, alpha=self.scale, out=flat)
        for term in self.score_terms:
            term.add_to(s, q_tile, block)
        if not masking.empty:
            allowed = masking.tile(block.b0, block.b1, block.i0, block.i1, block.j0, block.j1, s.device)
            assert allowed is not None
            allowed = allowed[:, block.h0 : block.h1] if allowed.shape[1] > 1 else allowed
            s.masked_fill_(~allowed, -torch.inf)
        return s

    def skewed_tile(self, shape: torch.Size) -> Tensor:
        """Return memory for a tile whose diagonals will be summed; the caller must write all of it."""
        b, h, m, w = shape
        if self._skewed is None:
            self._skewed = Skewed(self.q, self.batch * self.heads, self.block_rows, self.k.shape[2])
        tile = self._skewed.tile(b * h, m, w)
        return tile.as_strided(shape, (h * tile.stride(0), *tile.stride()), tile.storage_offset())

    def skewed_columns(self, shape: torch.Size) -> Tensor:
        """Return the diagonals of the tile that was written last, as columns, (b, h, m, m + w - 1)."""
        assert self._skewed is not None
        b, h, m, w = shape
        return self._skewed.columns(b * h, m, w).view(b, h, m, -1)

    def skew(self, tile: Tensor) -> Tensor:
        """Copy a tile, and return its diagonals as columns."""
        self.skewed_tile(tile.shape).copy_(tile)
        return self.skewed_columns(tile.shape)

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
    logsum = q.new_empty((*q.shape[:3], 1), dtype=torch.promote_types(q.dtype, torch.float32))
    output = q.new_empty(*q.shape[:3], v.shape[3])
    return output, logsum, q.new_empty(0) if logsum.dtype == q.dtype else torch.empty_like(output)


@blockwise_backward.register_fake
def _(grad, q, k, v, output, logsum, rest, tensors, *others):  # type: ignore[no-untyped-def]
    grads = [torch.empty_like(t) for t in (q, k, v)]
    if others[-1]:
        grads += [torch.empty_like(t) if t.is_floating_point() else t.new_empty(0) for t in tensors]
    return grads


def _save(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    q, k, v, tensors, kinds, starts, mask, causal, lengths, q_documents, k_documents, scale, dropout, seed = inputs
    ctx.save_for_backward(q, k, v, *output, mask, lengths, q_documents, k_documents, seed, *tensors)
    ctx.settings = kinds, starts, causal, scale, dropout
    ctx.learned = any(t.requires_grad for t in tensors)
    ctx.set_materialize_grads(False)


def _differentiate(ctx, grad, *_):  # type: ignore[no-untyped-def]
    q, k, v, output, logsum, rest, mask, lengths, q_documents, k_documents, seed, *tensors = ctx.saved_tensors
    kinds, starts, causal, scale, dropout = ctx.settings
    nothing: tuple[object, ...] = (
        None,
        None if starts else [],
        *[None] * 8,
    )  # torch takes an empty list for a list of tensors
    if grad is None:
        return None, None, None, [None] * len(tensors), *nothing
    grads = blockwise_backward(
        grad, q, k, v, output, logsum, rest, tensors, kinds, starts, mask, causal, lengths, q_documents, k_documents,
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
