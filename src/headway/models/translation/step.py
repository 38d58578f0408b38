"""One step of the decoder for all hypotheses of a batch, on buffers of fixed size.

It computes what `Decoder.forward` computes with a cache (the tests compare the two) in fewer and larger operations: the
hypotheses of a source are the queries of one attention, to the source and to the slots that they share.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.models.translation.cache import DecoderState, PositionTables
from headway.models.translation.layers import DecoderLayer
from headway.models.translation.stacks import Decoder

# By trial with float32 and 32,768 outputs on two cores: the numbers of rows that a CPU multiplies in half the time if
# the weight, (outputs, inputs), is the left factor, and how many outputs of the product stay in its cache.
FEW_ROWS = range(8, 57)
OUTPUT_BLOCK = 4096


class DecoderStep:
    """The decoder at `state.position`, attending to the first `span` positions, which include all before it."""

    def __init__(self, decoder: Decoder, state: DecoderState, span: int) -> None:
        self.decoder, self.state, self.span = decoder, state, span
        self.batch, self.paths = state.tokens.shape
        device = state.tokens.device
        self.slots = state.position * self.paths + torch.arange(self.paths, device=device)
        # Rows of tables by offset: key j has offset j - position, and row 0 is offset -(capacity - 1).
        self.first_offset = state.capacity - 1 - state.position
        self.target_rows = torch.arange(span, device=device) + self.first_offset
        self.addends: dict[int, Tensor] = {}  # by the identity of the tables, which layers may share

    def run(self, x: Tensor) -> Tensor:  # (B, K, E) to (B, K, E)
        """Return the last layer's output for the embedded tokens x."""
        state = self.state
        self._allow_own_slot()
        x = x + state.embeds.index_select(0, state.position)
        for layer in self.decoder.each_layer:
            x = self._layer(x, layer)
        return x if self.decoder.norm is None else self.decoder.norm(x)

    def _allow_own_slot(self) -> None:
        allowed = self.state.allowed
        own = allowed.new_full((self.paths, self.paths), -torch.inf).fill_diagonal_(0.0)
        allowed.index_copy_(2, self.state.position, own[None, :, None].expand(self.batch, -1, -1, -1))

    def _layer(self, x: Tensor, layer: DecoderLayer) -> Tensor:
        mixed = self._attend(layer, layer.around_attention.normalize_input(x))
        x = layer.around_attention.add_output(x, mixed)
        mixed = self._attend_source(layer, layer.around_cross_attention.normalize_input(x))
        x = layer.around_cross_attention.add_output(x, mixed)
        around = layer.around_feed_forward
        return around.add_output(x, layer.feed_forward(around.normalize_input(x)))

    def _attend(self, layer: DecoderLayer, x: Tensor) -> Tensor:
        state, index = self.state, layer.attention.index
        q, k, v = layer.attention.project(x).permute(2, 0, 3, 1, 4)  # each (B, H, K, D)
        if "queries and keys" in self.decoder.encoding.places:
            q, k = self._rotate(q, k, index)
        state.keys[index].index_copy_(2, self.slots, k)
        state.values[index].index_copy_(2, self.slots, v)
        count = self.span * self.paths
        keys, values = state.keys[index][:, :, :count], state.values[index][:, :, :count]
        tables = state.tables[index]
        addend = self._addend(q, tables)
        scale = self.decoder.encoding.scale
        if tables.values is None:
            mixed = F.scaled_dot_product_attention(q, keys, values, addend, scale=scale)
        else:
            weights = _attention_weights(q, keys, addend, scale)
            by_position = weights.view(*q.shape[:3], self.span, self.paths).sum(-1)  # (B, H, K, span)
            mixed = weights @ values + _matmul_by_head(by_position, tables.values.index_select(1, self.target_rows))
        output: Tensor = layer.attention.output(mixed.transpose(1, 2).flatten(2))
        return output

    def _addend(self, q: Tensor, tables: PositionTables) -> Tensor:  # (B, H|1, K, span * K)
        """Return what is added to the scores: the mask of the slots, and the bias of their positions."""
        if id(tables) in self.addends:
            return self.addends[id(tables)]
        state, span = self.state, self.span
        allowed = state.allowed[:, None, :, :span]  # (B, 1, K, span, K)
        if tables.scores is not None:
            row = tables.scores[..., :span].index_select(1, state.position)  # (H|1, 1, span)
            allowed = allowed + row[None, ..., None]
        if tables.keys is not None:
            scale = q.shape[-1] ** -0.5 if self.decoder.encoding.scale is None else self.decoder.encoding.scale
            near = tables.keys.index_select(1, self.target_rows)  # (H|1, span, D)
            allowed = allowed + _matmul_by_head(q * scale, near.transpose(1, 2))[..., None]
        addend = allowed.flatten(3)
        if tables.keys is None:
            self.addends[id(tables)] = addend
        return addend

    def _attend_source(self, layer: DecoderLayer, x: Tensor) -> Tensor:
        state, index = self.state, layer.cross_attention.index
        q = layer.cross_attention.project(x)  # (B, H, K, D)
        keys, values = state.memory_keys[index], state.memory_values[index]
        if not state.cross_tables:
            mixed = F.scaled_dot_product_attention(q, keys, values, state.memory_allowed)
        else:
            mixed = self._attend_source_with_bias(q, keys, values, state.cross_tables[index])
        output: Tensor = layer.cross_attention.output(mixed.transpose(1, 2).flatten(2))
        return output

    def _attend_source_with_bias(self, q: Tensor, keys: Tensor, values: Tensor, tables: PositionTables) -> Tensor:
        """Attend to the source with the bias of the cross encoding."""
        assert self.decoder.cross_encoding is not None
        scale = self.decoder.cross_encoding.scale
        addend = self.state.memory_allowed
        source_rows = torch.arange(keys.shape[2], device=q.device) + self.first_offset
        if tables.scores is not None:
            addend = addend + tables.scores.index_select(1, self.state.position)
        if tables.keys is not None:
            factor = q.shape[-1] ** -0.5 if scale is None else scale
            addend = addend + _matmul_by_head(q * factor, tables.keys.index_select(1, source_rows).transpose(1, 2))
        if tables.values is None:
            return F.scaled_dot_product_attention(q, keys, values, addend, scale=scale)
        weights = _attention_weights(q, keys, addend, scale)
        return weights @ values + _matmul_by_head(weights, tables.values.index_select(1, source_rows))

    def _rotate(self, q: Tensor, k: Tensor, index: int) -> tuple[Tensor, Tensor]:
        """Rotate q and k, which are all at one position, by passing each hypothesis as a sequence of its own."""
        sequences = [t.transpose(1, 2).flatten(0, 1)[:, :, None] for t in (q, k)]  # (B * K, H, 1, D)
        rotated = self.decoder.encoding.rotate(*sequences, layer=index, q_start=self.state.position)
        q, k = (t.view(self.batch, self.paths, *t.shape[1::2]).transpose(1, 2) for t in rotated)
        return q, k


def _attention_weights(q: Tensor, k: Tensor, addend: Tensor, scale: float | None) -> Tensor:
    """Compute the attention weights, which relative values need; the softmax is in float32 or wider."""
    scores = (q * (q.shape[-1] ** -0.5 if scale is None else scale)) @ k.transpose(-1, -2) + addend
    return scores.softmax(-1, dtype=torch.promote_types(q.dtype, torch.float32)).to(q.dtype)


def _matmul_by_head(x: Tensor, table: Tensor) -> Tensor:  # (B, H, K, N) and (H|1, N, M) to (B, H, K, M)
    """Compute x @ table as one product for each head over all sources, so that no source gets a copy of the table."""
    if table.shape[0] == 1:
        return x @ table[0]
    product = torch.bmm(x.transpose(0, 1).flatten(1, 2), table)  # (H, B * K, M)
    return product.view(x.shape[1], x.shape[0], x.shape[2], -1).transpose(0, 1)


def project_few_rows(layer: nn.Module, x: Tensor) -> Tensor:  # (..., inputs) to (..., outputs)
    """Compute layer(x); for few rows on a CPU as the transpose of weight @ x^T, which is faster."""
    rows = x.flatten(0, -2)
    transposes = type(layer) is nn.Linear and layer.bias is None and len(rows) in FEW_ROWS
    if not transposes or x.device.type != "cpu" or x.dtype != torch.float32 or torch.is_grad_enabled():
        output: Tensor = layer(x)
        return output
    assert isinstance(layer, nn.Linear)
    y = x.new_empty(len(rows), layer.out_features)
    for part, out in zip(torch.split(layer.weight, OUTPUT_BLOCK), torch.split(y, OUTPUT_BLOCK, dim=1), strict=True):
        out.copy_((part @ rows.mT).mT)
    return y.view(*x.shape[:-1], -1)
