"""The state of the decoder for one batch: cached keys and values, and tables of what the encoding adds at each step.

The cache of the target is never reordered. The keys and values of hypothesis r at position j stay in slot (j, r), and
`allowed` says which slots are the past of each hypothesis. When the search chooses other hypotheses, only these few
numbers are copied, not the keys and values of all layers. The keys and values of the source exist once for all of its
hypotheses, which are the queries of one attention.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headway.bias import Bias, RelativeKeys, RelativeValues
from headway.encodings import Encoding, parts_of
from headway.models.translation.stacks import Decoder

INITIAL_CAPACITY = 32


@dataclass(frozen=True, eq=False, kw_only=True)
class DecoderState:
    """Buffers for B sources with K hypotheses each and at most `capacity` target positions."""

    tokens: Tensor  # (B, K), the decoder's next input
    position: Tensor  # (1,), the position of that input
    keys: list[Tensor]  # for each layer (B, H, capacity * K, D); slot (j, r) is at j * K + r
    values: list[Tensor]
    allowed: Tensor  # (B, K, capacity, K), 0 at the slots of a hypothesis' past, -inf elsewhere
    memory_keys: list[Tensor]  # for each layer (B, H, Ls, D), from the encoded source
    memory_values: list[Tensor]
    memory_allowed: Tensor  # (B, 1, 1, Ls), 0 at words, -inf at padding
    embeds: Tensor  # (capacity, E), what the encoding adds to the input
    tables: list[PositionTables]  # for each layer
    cross_tables: list[PositionTables]  # for each layer, or empty

    @property
    def capacity(self) -> int:
        return self.allowed.shape[2]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """B, K, capacity, Ls."""
        return (*self.tokens.shape, self.capacity, self.memory_allowed.shape[-1])

    def advance(self, tokens: Tensor, parents: Tensor | None, span: int) -> None:
        """Advance by one position with these tokens, (B, K), which extend the hypotheses `parents`, or each its own."""
        if parents is not None:
            past = self.allowed[:, :, :span]
            past.copy_(past.gather(1, parents[..., None, None].expand_as(past)))
        self.tokens.copy_(tokens)
        self.position.add_(1)

    def select_sources(self, order: list[int]) -> DecoderState:
        """Keep some sources, in this order; it overwrites this state, and copies only sources that change places."""
        places = [place for place, old in enumerate(order) if place != old]
        to, source = (
            torch.tensor(numbers, dtype=torch.long, device=self.tokens.device)
            for numbers in (places, [order[place] for place in places])
        )

        def pick(part: Tensor) -> Tensor:
            return part.index_copy_(0, to, part.index_select(0, source))[: len(order)]

        return replace(
            self,
            tokens=pick(self.tokens),
            keys=[pick(part) for part in self.keys],
            values=[pick(part) for part in self.values],
            allowed=pick(self.allowed),
            memory_keys=[pick(part) for part in self.memory_keys],
            memory_values=[pick(part) for part in self.memory_values],
            memory_allowed=pick(self.memory_allowed),
        )

    def enlarged(self, decoder: Decoder, capacity: int) -> DecoderState:
        """Return a copy with a larger capacity."""
        more, paths = capacity - self.capacity, self.tokens.shape[1]
        source_length = self.memory_allowed.shape[-1]
        dtype = self.allowed.dtype
        return replace(
            self,
            keys=[_pad_slots(part, more * paths) for part in self.keys],
            values=[_pad_slots(part, more * paths) for part in self.values],
            allowed=torch.nn.functional.pad(self.allowed, (0, 0, 0, more), value=-torch.inf),
            embeds=position_embeddings(decoder, capacity, self.embeds.shape[-1], self.embeds),
            tables=position_tables(decoder.encoding, capacity, capacity, dtype),
            cross_tables=position_tables(decoder.cross_encoding, capacity, source_length, dtype),
        )


def initial_state(
    decoder: Decoder,
    memory: Tensor,  # (B, Ls, E), the encoded source
    lengths: Tensor,  # (B,), lengths of the sources
    *,
    start: int,  # id of the start token
    paths: int,  # K
    capacity: int,
) -> DecoderState:
    """Make the state before the first step."""
    pairs = [layer.cross_attention.project_memory(memory) for layer in decoder.each_layer]
    memory_keys, memory_values = [k.contiguous() for k, _ in pairs], [v.contiguous() for _, v in pairs]
    batch, heads, source_length, width = memory_keys[0].shape
    dtype, device = memory_keys[0].dtype, memory.device  # that of autocast if it is on

    def minus_infinity(*size: int) -> Tensor:
        return torch.full(size, -torch.inf, dtype=dtype, device=device)

    def empty() -> list[Tensor]:  # zeros, because a slot that is not allowed is still multiplied by a weight of zero
        return [memory.new_zeros(batch, heads, capacity * paths, width, dtype=dtype) for _ in pairs]

    padding = torch.arange(source_length, device=device) >= lengths[:, None]
    return DecoderState(
        tokens=torch.full((batch, paths), start, device=device),
        position=torch.zeros(1, dtype=torch.long, device=device),
        keys=empty(),
        values=empty(),
        allowed=minus_infinity(batch, paths, capacity, paths),
        memory_keys=memory_keys,
        memory_values=memory_values,
        memory_allowed=torch.zeros_like(padding, dtype=dtype).masked_fill(padding, -torch.inf)[:, None, None],
        embeds=position_embeddings(decoder, capacity, memory.shape[-1], memory),
        tables=position_tables(decoder.encoding, capacity, capacity, dtype),
        cross_tables=position_tables(decoder.cross_encoding, capacity, source_length, dtype),
    )


def position_embeddings(decoder: Decoder, capacity: int, width: int, like: Tensor) -> Tensor:  # (capacity, E)
    """Return what the encoding adds to the decoder's input at each position."""
    return decoder.encoding.embed(like.new_zeros(1, capacity, width))[0]


@dataclass(frozen=True, eq=False)
class PositionTables:
    """Biases of one layer for queries at positions 0 to steps - 1 and Lk keys, computed once for all steps.

    A step selects its rows by an index tensor. No table depends on a Python number that changes between steps, so that
    one captured graph serves all of them.
    """

    scores: Tensor | None  # (H|1, steps, Lk), all terms that do not depend on the query
    keys: Tensor | None  # (H|1, steps + Lk - 1, D), relative keys from offset -(steps - 1) on
    values: Tensor | None  # (H|1, steps + Lk - 1, D), relative values likewise


def position_tables(encoding: Encoding | None, steps: int, k_len: int, dtype: torch.dtype) -> list[PositionTables]:
    """Compute the tables of all layers; layers that share their bias share one object."""
    if encoding is None:
        return []
    shared = all(part.layer_sets == 1 or not set(part.places) & {"scores", "values"} for part in parts_of(encoding))
    layers = encoding.dims.num_layers
    if shared:
        return [_layer_tables(encoding, 0, steps, k_len, dtype)] * layers
    return [_layer_tables(encoding, layer, steps, k_len, dtype) for layer in range(layers)]


def _layer_tables(encoding: Encoding, layer: int, steps: int, k_len: int, dtype: torch.dtype) -> PositionTables:
    scores: Tensor | None = None
    keys: Tensor | None = None
    values: Tensor | None = None
    bias = encoding.bias(layer, steps, k_len)
    for term in () if bias is None else bias.terms:
        if isinstance(term, RelativeKeys):
            keys = _plus(keys, _table_by_offset(term, steps, k_len))
        elif isinstance(term, Bias) and not term.needs_query:
            scores = _plus(scores, term.bind(steps, k_len).dense()[0])
        else:
            raise NotImplementedError(
                f"encoding: {encoding.name} gives {term!r}, which decoding by steps does not support."
            )
    value_bias = encoding.value_bias(layer, steps, k_len)
    for value_term in () if value_bias is None else value_bias.terms:
        if not isinstance(value_term, RelativeValues):
            raise NotImplementedError(
                f"encoding: {encoding.name} gives {value_term!r}, which decoding by steps does not support."
            )
        values = _plus(values, _table_by_offset(value_term, steps, k_len))
    return PositionTables(*(None if part is None else part.to(dtype) for part in (scores, keys, values)))


def _table_by_offset(term: RelativeKeys | RelativeValues, steps: int, k_len: int) -> Tensor:
    offset = torch.arange(-(steps - 1), k_len, device=term.table.device)
    return term.table[:, offset.clamp(-term.clip, term.clip) + term.clip]


def _plus(a: Tensor | None, b: Tensor) -> Tensor:
    return b if a is None else a + b


def _pad_slots(part: Tensor, more: int) -> Tensor:
    return torch.nn.functional.pad(part, (0, 0, 0, more))
