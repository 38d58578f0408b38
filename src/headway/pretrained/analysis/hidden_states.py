"""What really arrives at each layer's projections, read by hooks while the model runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headway.pretrained.analysis.anatomy import Reading
from headway.pretrained.analysis.matrices import Array
from headway.running import evaluation_mode


def position_states(reading: Reading, length: int | None = None) -> list[Array]:  # one (L, E) a layer
    """Return each layer's input for a text of average words: position, carried through the network.

    `position_scores` takes a simpler view of deeper layers; give it these states as `projected` for this one.
    """
    length = reading.length(length)
    parameter = next(reading.model.parameters())
    mean = torch.from_numpy(reading.word_mean).to(parameter.device, parameter.dtype)
    return _catch_inputs(reading, _first, inputs_embeds=mean.expand(1, length, -1))


def token_states(reading: Reading, ids: Array, segments: Array | None = None) -> list[Array]:  # (L,) to (L, E) a layer
    """Return each layer's input for a real text, given as ids of its tokens and of its segments."""
    device = next(reading.model.parameters()).device
    inputs: dict[str, Any] = {"input_ids": torch.as_tensor(ids, device=device)[None]}
    if segments is not None:
        inputs["token_type_ids"] = torch.as_tensor(segments, device=device)[None]
    return _catch_inputs(reading, _first, **inputs)


def mean_states(reading: Reading, rows: Tensor) -> list[Array]:  # (N, L) to (L, E) a layer
    """Return each layer's input averaged over N texts without padding.

    W_Q and W_K are affine: from the mean input they make the mean queries and keys.
    """
    device = next(reading.model.parameters()).device
    return _catch_inputs(reading, lambda states: states.double().mean(0), input_ids=rows.to(device))


def check_runs(reading: Reading) -> None:
    """Raise for a stack that cannot run on a text alone."""
    if not reading.runs_alone:
        raise NotImplementedError(
            f"stack: the decoder of {reading.model_type} attends to an encoder's output too, so it does not run on a "
            f"text alone. Read the encoder, or use the measures that need no text."
        )


def _first(states: Tensor) -> Tensor:  # (1, L, E) to (L, E)
    return states[0] if states.dtype == torch.float64 else states[0].float()


def _catch_inputs(reading: Reading, take: Callable[[Tensor], Tensor], **inputs: Any) -> list[Array]:
    """Run the model, and return what `take` makes of the input of each layer's projections."""
    check_runs(reading)
    caught: list[Array] = []

    def catch(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        caught.append(take(arguments[0].detach().cpu()).numpy())

    modules = dict.fromkeys(layer.module for layer in reading.layers)  # ALBERT's layers share one
    hooks = [module.register_forward_pre_hook(catch) for module in modules]
    try:
        with evaluation_mode(reading.model), torch.no_grad():
            reading.model(**inputs)
    finally:
        for hook in hooks:
            hook.remove()
    assert len(caught) == len(reading.layers), "every layer's projection runs once in a forward pass"
    if not all(np.isfinite(x).all() for x in caught):
        raise ValueError("model: expected finite hidden states, got NaN or infinity. Load it in float32.")
    return caught
