"""Calls of the package's operators, recorded from calls of attention, and torch's own check of them."""

from __future__ import annotations

import torch
from oracle import draw, made
from torch.utils._python_dispatch import TorchDispatchMode

import headway as hw


class Recorded(TorchDispatchMode):
    """Calls of the package's operators, with their arguments."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "headway":
            self.calls.append((function, args))
        return function(*args, **(kwargs or {}))


def calls_of(kind, backend, width, q_len=20, k_len=24, dtype=torch.float32, **options):
    """What training makes of one call of attention. Slices as parameters, as an encoding takes them from its table."""
    make, parameters = made(kind, 2, 4, q_len, k_len, width)
    parameters = [torch.cat([t, t], -1).float()[..., : t.shape[-1]].requires_grad_() for t in parameters]
    shapes = ((4, q_len), (2, k_len), (2, k_len))
    q, k, v = (draw(2, heads, length, width).to(dtype).requires_grad_() for heads, length in shapes)
    with Recorded() as recorded:
        bias = make(*parameters)
        bias, value_bias = bias if isinstance(bias, tuple) else (bias, None)
        output = hw.attention(q, k, v, bias, value_bias, backend=backend, **options)
        torch.autograd.grad(output, [q, k, v, *parameters], torch.randn_like(output), allow_unused=True)
    return recorded.calls


def names(calls):
    return [function.name().split("::")[1] for function, _ in calls]


def check(calls, **options):
    for function, arguments in calls:
        learned = not names([(function, ())])[0].endswith("_backward")  # there is no second derivative
        torch.library.opcheck(function, tuple(leaf(argument, learned) for argument in arguments), **options)


def leaf(argument, learned):
    if isinstance(argument, list | tuple):
        return [leaf(each, learned) for each in argument]
    if not isinstance(argument, torch.Tensor):
        return argument
    return argument.detach().requires_grad_(learned and argument.requires_grad)
