"""headway's own encoders: the encoding itself says what it adds to the input, to q and k, and to the scores."""

from __future__ import annotations

from typing import Any, cast

import torch

from headway.bias import Bias
from headway.encodings import Encoding, SegmentInput, SegmentPerHead, Together
from headway.pretrained.analysis.anatomy import Reading, read_layer, read_norm
from headway.pretrained.analysis.matrices import Array, to_array
from headway.pretrained.model_types import OWN


def read_own(model: Any) -> Reading:
    """Read an encoder of `headway.models`, with any head or none."""
    config, base = model.config, model.base_model
    if config.attention != "full":
        raise NotImplementedError(
            f"model: expected attention='full', got {config.attention!r}, whose keys are mixtures of all positions: "
            f"there is no score of one position for another."
        )
    parts = _parts(base.encoding)
    positions = _input_table(parts, config.max_position_embeddings)
    limited = positions is not None or not all(part.extends for part in parts)
    scale = base.encoding.scale or config.head_dim**-0.5
    segments = base.segments
    return Reading(
        model_type=OWN,
        model=base,
        words=to_array("words.weight", base.words.weight),
        positions=positions,
        segments=to_array("segments.table", segments.table) if isinstance(segments, SegmentInput) else None,
        norm=read_norm("norm", base.norm),
        project=None,
        layers=tuple(
            read_layer(
                f"layer {n}",
                layer.attention.qkv,
                None,
                heads=config.num_attention_heads,
                head_dim=config.head_dim,
                scale=scale,
                norm=None,
            )
            for n, layer in enumerate(base.layers)
        ),
        limit=config.max_position_embeddings if limited else None,
        usual_length=config.max_position_embeddings,
        causal=False,
        runs_alone=True,
        bias_of=lambda layer, length: bias_of_parts(parts, layer, length),
        rotations=[part for part in parts if "queries and keys" in part.places],
        segment_scores=_segment_scores(segments),
    )


def _parts(encoding: Encoding) -> list[Encoding]:
    return [cast(Encoding, part) for part in encoding.parts] if isinstance(encoding, Together) else [encoding]


def _input_table(parts: list[Encoding], length: int) -> Array | None:
    """Return what the encodings add to the input at each position, (L, E); None where they add nothing."""
    table: Array | None = None
    for part in (part for part in parts if "input" in part.places):
        device = next((p.device for p in part.parameters()), torch.device("cpu"))
        rows = part.embed(torch.zeros(1, length, part.dims.width, dtype=torch.float64, device=device))
        added = to_array(f"encoding {part.name}", rows[0])
        table = added if table is None else table + added
    return table


def bias_of_parts(parts: list[Encoding], layer: int, length: int) -> Bias | None:
    """Return what encodings add to a layer's scores, in float64 and checked; None where they add nothing."""
    total: Bias | None = None
    for part in parts:
        bias = part.bias(layer, length, length)
        if bias is not None:
            bias.check_values()
            bias = bias.detach().to("cpu", torch.float64)
            total = bias if total is None else total + bias
    return total


def _segment_scores(segments: Encoding | None) -> Any:
    if not isinstance(segments, SegmentPerHead):
        return None
    return lambda layer: to_array("segments.table", segments.table[segments.layer_set(layer)]).astype("float64")
