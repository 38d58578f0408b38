"""One step of the decoder for all hypotheses of a batch, from buffers of fixed size.

It works out what `Decoder.forward` does with a cache (the tests hold the two together), in fewer and larger pieces: the
hypotheses of a source are the queries of one attention, to the source and to their common slots.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.models.translation.cache import DecoderState
from headway.models.translation.layers import DecoderLayer
from headway.models.translation.positions import LayerRows
from headway.models.translation.sides import Decoder


class Step:
    """The decoder at `state.position`, looking at the first `span` positions: all before it, at least."""

    def __init__(self, decoder: Decoder, state: DecoderState, span: int) -> None:
        self.decoder, self.state, self.span = decoder, state, span
        self.batch, self.paths = state.tokens.shape
        device = state.tokens.device
        self.slots = state.position * self.paths + torch.arange(self.paths, device=device)
        # Rows of tables by offset: key j is at offset j - position, offset -(capacity - 1) comes first.
        self.first_offset = state.capacity - 1 - state.position
        self.near = torch.arange(span, device=device) + self.first_offset
        self.seen: dict[int, Tensor] = {}  # what layers share, by the identity of their rows

    def run(self, x: Tensor) -> Tensor:  # (B, K, E), embedded tokens, to the last layer's output
        state = self.state
        self._see_own_slot()
        x = x + state.embeds.index_select(0, state.position)
        for layer in self.decoder.each_layer:
            x = self._layer(x, layer)
        return x if self.decoder.norm is None else self.decoder.norm(x)

    def _see_own_slot(self) -> None:
        allowed = self.state.allowed
        own = allowed.new_full((self.paths, self.paths), -torch.inf).fill_diagonal_(0.0)
        allowed.index_copy_(2, self.state.position, own[None, :, None].expand(self.batch, -1, -1, -1))

    def _layer(self, x: Tensor, layer: DecoderLayer) -> Tensor:
        mixed = self._attend(layer, layer.around_attention.enter(x))
        x = layer.around_attention.leave(x, mixed)
        mixed = self._attend_source(layer, layer.around_cross_attention.enter(x))
        x = layer.around_cross_attention.leave(x, mixed)
        around = layer.around_feed_forward
        return around.leave(x, layer.feed_forward(around.enter(x)))

    def _attend(self, layer: DecoderLayer, x: Tensor) -> Tensor:
        state, index = self.state, layer.attention.index
        q, k, v = layer.attention.project(x).permute(2, 0, 3, 1, 4)  # each (B, H, K, D)
        if "queries and keys" in self.decoder.encoding.places:
            q, k = self._turned(q, k, index)
        state.keys[index].index_copy_(2, self.slots, k)
        state.values[index].index_copy_(2, self.slots, v)
        count = self.span * self.paths
        keys, values = state.keys[index][:, :, :count], state.values[index][:, :, :count]
        rows = state.rows[index]
        addend = self._addend(q, rows)
        scale = self.decoder.encoding.scale
        if rows.values is None:
            mixed = F.scaled_dot_product_attention(q, keys, values, addend, scale=scale)
        else:
            weights = _weights(q, keys, addend, scale)
            by_position = weights.view(*q.shape[:3], self.span, self.paths).sum(-1)  # (B, H, K, span)
            mixed = weights @ values + _by_head(by_position, rows.values.index_select(1, self.near))
        output: Tensor = layer.attention.output(mixed.transpose(1, 2).flatten(2))
        return output

    def _addend(self, q: Tensor, rows: LayerRows) -> Tensor:  # (B, H|1, K, span * K)
        """Who sees which slot, and the bias of the slots' positions."""
        if id(rows) in self.seen:
            return self.seen[id(rows)]
        state, span = self.state, self.span
        allowed = state.allowed[:, None, :, :span]  # (B, 1, K, span, K)
        if rows.scores is not None:
            row = rows.scores[..., :span].index_select(1, state.position)  # (H|1, 1, span)
            allowed = allowed + row[None, ..., None]
        if rows.keys is not None:
            scale = q.shape[-1] ** -0.5 if self.decoder.encoding.scale is None else self.decoder.encoding.scale
            near = rows.keys.index_select(1, self.near)  # (H|1, span, D)
            allowed = allowed + _by_head(q * scale, near.transpose(1, 2))[..., None]
        addend = allowed.flatten(3)
        if rows.keys is None:
            self.seen[id(rows)] = addend
        return addend

    def _attend_source(self, layer: DecoderLayer, x: Tensor) -> Tensor:
        state, index = self.state, layer.cross_attention.index
        q = layer.cross_attention.project(x)  # (B, H, K, D)
        keys, values = state.memory_keys[index], state.memory_values[index]
        if not state.cross_rows:
            mixed = F.scaled_dot_product_attention(q, keys, values, state.memory_allowed)
        else:
            mixed = self._attend_source_at(q, keys, values, state.cross_rows[index])
        output: Tensor = layer.cross_attention.output(mixed.transpose(1, 2).flatten(2))
        return output

    def _attend_source_at(self, q: Tensor, keys: Tensor, values: Tensor, rows: LayerRows) -> Tensor:
        """Attention to the source with position."""
        assert self.decoder.cross_encoding is not None
        scale = self.decoder.cross_encoding.scale
        addend = self.state.memory_allowed
        far = torch.arange(keys.shape[2], device=q.device) + self.first_offset
        if rows.scores is not None:
            addend = addend + rows.scores.index_select(1, self.state.position)
        if rows.keys is not None:
            factor = q.shape[-1] ** -0.5 if scale is None else scale
            addend = addend + _by_head(q * factor, rows.keys.index_select(1, far).transpose(1, 2))
        if rows.values is None:
            return F.scaled_dot_product_attention(q, keys, values, addend, scale=scale)
        weights = _weights(q, keys, addend, scale)
        return weights @ values + _by_head(weights, rows.values.index_select(1, far))

    def _turned(self, q: Tensor, k: Tensor, index: int) -> tuple[Tensor, Tensor]:
        """All hypotheses stand at one position: to the encoding each is a sequence of its own."""
        apart = [t.transpose(1, 2).flatten(0, 1)[:, :, None] for t in (q, k)]  # (B * K, H, 1, D)
        turned = self.decoder.encoding.rotate(*apart, layer=index, q_start=self.state.position)
        q, k = (t.view(self.batch, self.paths, *t.shape[1::2]).transpose(1, 2) for t in turned)
        return q, k


def _weights(q: Tensor, k: Tensor, addend: Tensor, scale: float | None) -> Tensor:
    """Attention weights as such, where relative values need them; the softmax in float32 or wider."""
    scores = (q * (q.shape[-1] ** -0.5 if scale is None else scale)) @ k.transpose(-1, -2) + addend
    return scores.softmax(-1, dtype=torch.promote_types(q.dtype, torch.float32)).to(q.dtype)


def _by_head(x: Tensor, table: Tensor) -> Tensor:  # (B, H, K, N) and (H|1, N, M) to (B, H, K, M)
    """x @ table, one product a head over all sources, so that the table is not copied for each."""
    if table.shape[0] == 1:
        return x @ table[0]
    product = torch.bmm(x.transpose(0, 1).flatten(1, 2), table)  # (H, B * K, M)
    return product.view(x.shape[1], x.shape[0], x.shape[2], -1).transpose(0, 1)
