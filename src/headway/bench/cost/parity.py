"""The gate before every time: what is timed must be right.

Output and gradients are compared with the formula as written, in float64. Allowed is twice the error that this formula
itself has in the precision that is timed (three times for gradients), and one rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from headway.bench.cost.batch import Feed
from headway.bench.cost.contestant import plain
from headway.encodings import Encoding

Parts = dict[str, Tensor]


def parity(
    model: Any,  # of transformers or ours
    seen: Feed,  # a few sequences
    labels: Feed,  # and what is to be named in them
    inference: Callable[[], Tensor] | None,  # hidden states of these sequences, where inference is timed
    precision: Callable[[], AbstractContextManager[object]],
) -> dict[str, float | None]:
    """Error over what is allowed, for each part; right is at most 1, and None is not even a number.

    Dropout is off: no two paths draw the same.
    """
    was_training = model.training
    model.eval()
    with precision():
        timed = _parts(model, seen, labels)
        if inference is not None:
            timed["inference"] = inference()
        same = _parts(plain(model), seen, labels)
    truth = _parts(plain(model).double(), seen, labels)
    model.train(was_training)
    dtype = timed["output"].dtype
    errors: dict[str, float | None] = {}
    for name, value in timed.items():
        like = "output" if name == "inference" else name
        right = truth[like]
        factor = 2 if like == "output" else 3
        allowed = factor * (same[like].double() - right).norm() + torch.finfo(dtype).eps / 2 * right.norm()
        error = ((value.double() - right).norm() / allowed).item()
        errors[name] = error if error < float("inf") else None
    return errors


def wrong(errors: dict[str, float | None]) -> str | None:
    """What a reader is told where the gate is red."""
    red = [f"{name} {'not finite' if e is None else f'{e:.3g}'}" for name, e in errors.items() if e is None or e > 1]
    return f"wrong, so that it is not timed; error over what is allowed: {', '.join(red)}" if red else None


def _parts(model: Any, seen: Feed, labels: Feed) -> Parts:
    """Hidden states, and the loss's gradients: those of the encoding's parameters, and those of all others."""
    output = model.base_model(**seen).last_hidden_state.detach()
    modules = [module for module in model.modules() if isinstance(module, Encoding)]
    own = {id(parameter) for module in modules for parameter in module.parameters()}
    parameters = list(model.parameters())
    loss = model(**seen, **labels).loss
    grads = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    parts = {"output": output}
    for name, mine in (("gradients of the encoding", True), ("other gradients", False)):
        chosen = [g.flatten() for p, g in zip(parameters, grads, strict=True) if (id(p) in own) is mine]
        if chosen:
            parts[name] = torch.cat(chosen)
    return parts
