"""The check before every timing that a row's outputs and gradients are right.

They are compared with the formula as written, in float64. The error may be twice the error that the same formula has in
the precision that is timed (three times for gradients), plus one rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from headway.bench.cost.contestant import with_formula_attention
from headway.encodings import Encoding

Inputs = dict[str, Tensor]  # arguments of a model, by name


def parity(
    model: Any,  # of transformers or ours
    inputs: Inputs,  # a few sequences
    labels: Inputs,
    inference: Callable[[], Tensor] | None,  # hidden states of these sequences, where inference is timed
    precision: Callable[[], AbstractContextManager[object]],
) -> dict[str, float | None]:
    """Return each part's error over the allowed error, which must be at most 1; None if the part is not finite.

    Dropout is off, because no two implementations draw the same numbers.
    """
    was_training = model.training
    model.eval()
    with precision():
        timed = _outputs_and_gradients(model, inputs, labels)
        if inference is not None:
            timed["inference"] = inference()
        formula = _outputs_and_gradients(with_formula_attention(model), inputs, labels)
    exact = _outputs_and_gradients(with_formula_attention(model).double(), inputs, labels)
    model.train(was_training)
    dtype = timed["output"].dtype
    errors: dict[str, float | None] = {}
    for name, value in timed.items():
        compared = "output" if name == "inference" else name
        right = exact[compared]
        factor = 2 if compared == "output" else 3
        allowed = factor * (formula[compared].double() - right).norm() + torch.finfo(dtype).eps / 2 * right.norm()
        error = ((value.double() - right).norm() / allowed).item()
        errors[name] = error if error < float("inf") else None
    return errors


def parity_problem(errors: dict[str, float | None]) -> str | None:
    """Describe which errors are too large; return None if the row is right."""
    wrong = [f"{name} {'not finite' if e is None else f'{e:.3g}'}" for name, e in errors.items() if e is None or e > 1]
    return f"wrong, so it is not timed; error over what is allowed: {', '.join(wrong)}" if wrong else None


def _outputs_and_gradients(model: Any, inputs: Inputs, labels: Inputs) -> dict[str, Tensor]:
    """Return hidden states, and the loss's gradients: those of the encoding's parameters and those of all others."""
    output = model.base_model(**inputs).last_hidden_state.detach()
    modules = [module for module in model.modules() if isinstance(module, Encoding)]
    of_encoding = {id(parameter) for module in modules for parameter in module.parameters()}
    parameters = list(model.parameters())
    loss = model(**inputs, **labels).loss
    grads = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    parts = {"output": output}
    for name, wanted in (("gradients of the encoding", True), ("other gradients", False)):
        chosen = [g.flatten() for p, g in zip(parameters, grads, strict=True) if (id(p) in of_encoding) is wanted]
        if chosen:
            parts[name] = torch.cat(chosen)
    return parts
