"""The decoder's memory of one batch: keys and values of source and target, in buffers that a step fills in place.

The target's cache is never reordered. What position j of hypothesis r wrote stays in slot (j, r), and each hypothesis
knows which slots are its own past (`allowed`): when beams are chosen anew, only those few numbers move, not the keys
and values of all layers. Of the source there is one set: its hypotheses are queries of one attention.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headway.models.translation.positions import LayerRows, rows_of
from headway.models.translation.sides import Decoder

FIRST_CAPACITY = 32


@dataclass(frozen=True, eq=False, kw_only=True)
class DecoderState:
    """B sources, K hypotheses each, room for `capacity` positions."""

    tokens: Tensor  # (B, K), what the decoder sees next
    position: Tensor  # (1,), where that stands
    keys: list[Tensor]  # of each layer, (B, H, capacity * K, D), slot (j, r) at j * K + r
    values: list[Tensor]
    allowed: Tensor  # (B, K, capacity, K), 0 at slots of a hypothesis' own past, -inf elsewhere
    memory_keys: list[Tensor]  # of each layer, (B, H, Ls, D)
    memory_values: list[Tensor]
    memory_allowed: Tensor  # (B, 1, 1, Ls), 0 at words, -inf at padding
    embeds: Tensor  # (capacity, E), what the encoding adds to the input
    rows: list[LayerRows]  # of each layer
    cross_rows: list[LayerRows]  # of each layer, or none

    @property
    def capacity(self) -> int:
        return self.allowed.shape[2]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """B, K, capacity, Ls."""
        return (*self.tokens.shape, self.capacity, self.memory_allowed.shape[-1])

    def go_on(self, tokens: Tensor, parents: Tensor | None, span: int) -> None:
        """Move to the next position with these tokens, (B, K), of hypotheses that extend `parents` (or themselves)."""
        if parents is not None:
            past = self.allowed[:, :, :span]
            past.copy_(past.gather(1, parents[..., None, None].expand_as(past)))
        self.tokens.copy_(tokens)
        self.position.add_(1)

    def of_sources(self, order: list[int]) -> DecoderState:
        """The state of some sources in this order, written over this one: only sources that change places are moved."""
        places = [place for place, source in enumerate(order) if place != source]
        to, moved = (
            torch.tensor(numbers, dtype=torch.long, device=self.tokens.device)
            for numbers in (places, [order[place] for place in places])
        )

        def pick(part: Tensor) -> Tensor:
            return part.index_copy_(0, to, part.index_select(0, moved))[: len(order)]

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

    def grown(self, decoder: Decoder, capacity: int) -> DecoderState:
        """The same with room for more positions."""
        more, paths = capacity - self.capacity, self.tokens.shape[1]
        source_length = self.memory_allowed.shape[-1]
        dtype = self.allowed.dtype
        return replace(
            self,
            keys=[_longer(part, more * paths) for part in self.keys],
            values=[_longer(part, more * paths) for part in self.values],
            allowed=torch.nn.functional.pad(self.allowed, (0, 0, 0, more), value=-torch.inf),
            embeds=embeds_of(decoder, capacity, self.embeds.shape[-1], self.embeds),
            rows=rows_of(decoder.encoding, capacity, capacity, dtype),
            cross_rows=rows_of(decoder.cross_encoding, capacity, source_length, dtype),
        )


def first_state(
    decoder: Decoder,
    memory: Tensor,  # (B, Ls, E), the encoded source
    lengths: Tensor,  # (B,), of the sources
    *,
    start: int,  # the token that the decoder sees first
    paths: int,  # K
    capacity: int,
) -> DecoderState:
    pairs = [layer.cross_attention.project_memory(memory) for layer in decoder.each_layer]
    memory_keys, memory_values = [k.contiguous() for k, _ in pairs], [v.contiguous() for _, v in pairs]
    batch, heads, source_length, width = memory_keys[0].shape
    dtype, device = memory_keys[0].dtype, memory.device  # autocast's where it is on

    def infinite(*size: int) -> Tensor:
        return torch.full(size, -torch.inf, dtype=dtype, device=device)

    def empty() -> list[Tensor]:  # zeros, because a slot that nobody may see still meets a weight of zero
        return [memory.new_zeros(batch, heads, capacity * paths, width, dtype=dtype) for _ in pairs]

    padding = torch.arange(source_length, device=device) >= lengths[:, None]
    return DecoderState(
        tokens=torch.full((batch, paths), start, device=device),
        position=torch.zeros(1, dtype=torch.long, device=device),
        keys=empty(),
        values=empty(),
        allowed=infinite(batch, paths, capacity, paths),
        memory_keys=memory_keys,
        memory_values=memory_values,
        memory_allowed=torch.zeros_like(padding, dtype=dtype).masked_fill(padding, -torch.inf)[:, None, None],
        embeds=embeds_of(decoder, capacity, memory.shape[-1], memory),
        rows=rows_of(decoder.encoding, capacity, capacity, dtype),
        cross_rows=rows_of(decoder.cross_encoding, capacity, source_length, dtype),
    )


def embeds_of(decoder: Decoder, capacity: int, width: int, like: Tensor) -> Tensor:  # (capacity, E)
    return decoder.encoding.embed(like.new_zeros(1, capacity, width))[0]


def _longer(part: Tensor, more: int) -> Tensor:
    return torch.nn.functional.pad(part, (0, 0, 0, more))
