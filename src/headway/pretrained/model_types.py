"""What analysis and conversion both know of encoders: names of their types, and ALBERT's layers."""

from __future__ import annotations

from typing import Any

from torch import nn

OWN = "headway-encoder"  # config.model_type of headway's own encoders, converted or not
CONVERTED = "headway-"  # prefix of a converted model's type; the type of its family follows


def albert_layers(model: Any) -> list[nn.Module]:
    """List every application of a layer; ALBERT's layers share modules (Lan et al. 2020, Sec. 3.1).

    Args:
        model: the model without a head.
    """
    config, groups = model.config, model.encoder.albert_layer_groups
    per_group = config.num_hidden_layers / config.num_hidden_groups
    return [layer for n in range(config.num_hidden_layers) for layer in groups[int(n / per_group)].albert_layers]
