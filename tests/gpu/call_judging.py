"""Judge a call: compare its output and gradients with the formula in float64, twice, and simplify one that fails."""

from __future__ import annotations

import contextlib
import math
import time
import traceback
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import oracle
import torch
from call_drawing import Spec
from call_running import (
    DTYPES,
    Inputs,
    dropping,
    inputs_of,
    kept_weights,
    laid_out,
    parameter_dtype,
    poison,
    poisoned_empty,
    run,
)
from torch import Tensor

import headway as hw
from headway.attention.masking import Masking

REDRAWS = 8  # with other numbers, of a call that is a little over its budget
CLEARLY = 10.0  # times the budget: no luck of the yardstick explains this


@dataclass
class Verdict:
    """What was found about one call. `ratio` is the largest error over what is allowed."""

    backend: str = "none"
    failures: list[str] = field(default_factory=list)
    ratio: float = 0.0
    of: str = ""  # what has this ratio
    repeats: bool = True
    promised: bool = False

    def as_json(self) -> Spec:
        return dict(vars(self))


def promises_same_bits(told: Any) -> bool:
    """Whether two runs of the explained call give the same bits; older versions of headway do not say so themselves."""
    return getattr(told, "deterministic", told.backend in ("triton", "native", "matrix", "blockwise"))


def judge(spec: Spec, device: str) -> Verdict:
    """Run a call twice and compare it with float64. A small excess is only a failure if redrawn numbers confirm it.

    The budget is twice or three times the error of one eager run, which may be small by luck where there are few
    numbers; so the errors and the budgets of several draws are summed.
    """
    verdict, ratios = judge_once(spec, device)
    over = {name: pair for name, pair in ratios.items() if not pair[0] <= pair[1]}
    clear = {name: pair for name, pair in over.items() if not pair[0] <= CLEARLY * pair[1]}
    if over and not clear and not verdict.failures:
        totals = {name: list(pair) for name, pair in over.items()}
        for number in range(1, REDRAWS + 1):
            again, others = judge_once({**spec, "seed": spec["seed"] + number}, device)
            verdict.failures += [f"redrawn with seed + {number}: {failure}" for failure in again.failures]
            for name, total in totals.items():
                total[0] += others.get(name, (0, 0))[0]
                total[1] += others.get(name, (0, 0))[1]
        over = {name: tuple(total) for name, total in totals.items() if not total[0] <= total[1]}
    verdict.failures += [f"{name}: error {error:.3g}, allowed {allowed:.3g}" for name, (error, allowed) in over.items()]
    return verdict


def judge_once(spec: Spec, device: str) -> tuple[Verdict, dict[str, tuple[float, float]]]:
    """One draw of numbers: the verdict without the error budget, and each error with what is allowed."""
    inputs, dtype, verdict = inputs_of(spec, device), DTYPES[spec["dtype"]], Verdict()
    backend, told = _explained(spec, inputs, dtype)
    verdict.backend, verdict.promised = told.backend, promises_same_bits(told)
    found = []
    for _ in range(2):
        poison(device)
        torch.manual_seed(spec["seed"])
        with poisoned_empty(device):
            found.append(run(spec, inputs, backend, dtype, spec["layout"]))
        if device == "cuda":
            torch.cuda.synchronize()
    verdict.failures += [f"{n}: not finite" for n, t in found[0].items() if not torch.isfinite(t).all()]
    differing = [name for name, t in found[0].items() if not torch.equal(t, found[1][name])]
    verdict.repeats = not differing
    if differing and verdict.promised:
        verdict.failures.append(f"a second run gives other bits: {', '.join(differing)}")
    if verdict.failures:
        return verdict, {}
    kept = None
    if spec["dropout"]:
        kept = kept_weights(spec, inputs, backend, dtype)
    allowed = _visible(spec, inputs)
    with dropping(kept):
        truth, eager = (run(spec, inputs, "eager", own) for own in (torch.float64, dtype))
        looser = 1.0
        if told.backend == "sdpa" and dtype != torch.float32 and spec["terms"]:
            looser = _looser(spec, inputs, dtype, allowed, truth["output"], eager["output"])
        summed = _rounding(spec, inputs, dtype)
        for name, more in _rounding_of_the_output(spec, inputs, dtype, truth["output"], told.backend).items():
            summed[name] = summed[name] + more
    if allowed is not None:
        blind = ~allowed.any(-1).expand(truth["output"].shape[:3])
        for name in ("output", "gradient of q"):
            if name in found[0] and (found[0][name][blind] != 0).any():
                verdict.failures.append(f"{name}: not zero where a query sees nothing")
    if kept is not None:
        verdict.failures += _unlikely(spec, kept, inputs, allowed)
    equal_rows = spec["batch"] * spec["q_len"] if spec["upstream"] == "expanded" else 0
    errors = _errors(found[0], truth, eager, looser, dtype, summed, equal_rows)
    for name, (error, most) in errors.items():
        ratio = error / most if most else math.inf * error if error else 0.0
        if ratio > verdict.ratio:
            verdict.ratio, verdict.of = ratio, name
    return verdict, errors


def _explained(spec: Spec, inputs: Inputs, dtype: torch.dtype) -> tuple[str, Any]:
    """The backend to ask for, and what explains its choice: auto where the drawn one cannot run the call."""
    q, k, v = _arguments(spec, inputs, dtype)
    own = parameter_dtype(spec, dtype)
    learned = spec["grads"] in ("all", "parameters")
    parameters = [t.to(own, copy=True).requires_grad_(learned) for t in inputs.parameters]
    with contextlib.nullcontext() if spec["grads"] != "none" else torch.no_grad():
        bias, value_bias = inputs.make(*parameters)
        options = {**inputs.options, "dropout": spec["dropout"]}
        for backend in (spec["backend"], "auto"):
            try:
                return backend, hw.explain(q, k, v, bias, value_bias, backend=backend, **options)
            except NotImplementedError as refusal:
                if backend == "auto" or "cannot run this call" not in str(refusal):
                    raise
    raise AssertionError


def _arguments(spec: Spec, inputs: Inputs, dtype: torch.dtype) -> Any:
    leaves = [t.requires_grad_(spec["grads"] in ("all", "inputs")) for t in laid_out(inputs.qkv, dtype, spec["layout"])]
    return leaves[0].permute(2, 0, 3, 1, 4).unbind(0) if len(leaves) == 1 else leaves


def _visible(spec: Spec, inputs: Inputs) -> Tensor | None:  # (B|1, H|1, Lq, Lk), or None: every query sees every key
    given = inputs.options
    documents = given.get("documents", (None, None))
    documents = (documents, documents) if isinstance(documents, Tensor) else documents
    return Masking(
        q_len=spec["q_len"], k_len=spec["k_len"], causal=given["causal"], mask=given.get("mask"),
        lengths=given.get("lengths"), q_documents=documents[0], k_documents=documents[1],
    ).dense(inputs.upstream.device)  # fmt: skip


def _looser(
    spec: Spec, inputs: Inputs, dtype: torch.dtype, allowed: Tensor | None, truth: Tensor, eager: Tensor
) -> float:
    """How many times larger the error of eager is with a bias rounded to `dtype`, as torch's kernels take it."""

    def make(*parameters: Tensor) -> tuple[Any, Any]:
        bias, value_bias = inputs.make(*parameters)
        bound = bias.bind(spec["q_len"], spec["k_len"])
        matrix = bound.dense(inputs.qkv[0].float(), k_len=spec["k_len"], scale=spec["scale"]).float()
        seen = matrix if allowed is None else matrix.masked_fill(~allowed, -6e4)
        matrix = (matrix - seen.amax(-1, keepdim=True)).clamp(min=-6e4, max=6e4)
        return hw.Dense(matrix.to(dtype).float()), value_bias

    rounded = run(spec, replace(inputs, make=make), "eager", dtype, backward=False)["output"]
    own = (eager - truth).norm()
    return max(1.0, ((rounded - truth).norm() / own).item()) if own > 0 else 1.0


def _rounding(spec: Spec, inputs: Inputs, dtype: torch.dtype) -> dict[str, Tensor]:
    """The error that rounding may leave in the output and in gradients, however small they are."""
    tables = inputs.parameters[inputs.first_value :]  # of value biases
    of_v, *of_tables = (t.norm(dim=-1).max() for t in (inputs.qkv[2], *tables))
    widest = of_v + sum(of_tables)
    rows = spec["batch"] * spec["heads"] * spec["q_len"]
    of_output = torch.finfo(torch.float32).eps * math.sqrt(rows) * widest
    if spec["grads"] == "none":
        return {"output": of_output}
    relative = any("relative" in term["kind"] for term in (*spec["terms"], *spec["values"]))
    options = {**inputs.options, "dropout": spec["dropout"]}
    plain, rounded = (
        oracle.rounding_of_sums(dtype, of_rows, inputs.make, inputs.parameters, inputs.qkv, inputs.upstream, **options)
        for of_rows in (False, relative)
    )
    # What the gradient of a score is multiplied with may be larger than one, and what it is a product of than v alone.
    scale = spec["width"] ** -0.5 if spec["scale"] is None else abs(spec["scale"])
    factors = [t.norm(dim=-1).max() for t, n in zip(inputs.parameters, inputs.names, strict=True) if "low rank" in n]
    largest = max([1.0, scale * spec["width"] ** 0.5, *map(float, factors)]) / (1 - spec["dropout"]) * (widest / of_v)
    # Gradients of relative scores are rounded on their way to q and to the tables, and nowhere else.
    return {"output": of_output, "gradient": plain * largest, "gradient of relative": rounded * largest}


def _rounding_of_the_output(
    spec: Spec, inputs: Inputs, dtype: torch.dtype, output: Tensor, backend: str
) -> dict[str, Tensor]:
    """What kernels lose by storing their output: that is all there is where a gradient is nothing, as with one key.

    The backward pass takes the sum over a row of gradients from the output. Ours keep what rounding took from it, also
    rounded; torch's do not, and round the gradient of a dense bias too. In float32 torch's scores become powers of two,
    by a product that rounds a large bias.
    """
    step = torch.finfo(dtype).eps
    if dtype == torch.float32:
        level = max([0.0, *(abs(term.get("level", 0)) for term in spec["terms"])]) if backend == "sdpa" else 0.0
        return {"output": step * level * output.norm()}
    if spec["grads"] == "none" or backend not in ("sdpa", "triton"):
        return {}
    scale = spec["width"] ** -0.5 if spec["scale"] is None else abs(spec["scale"])
    largest = max([1.0, *(scale * t.norm(dim=-1).max().item() for t in inputs.qkv[:2])])
    lost = (inputs.upstream.norm(dim=-1) * output.norm(dim=-1)).norm()
    if backend == "triton":
        more = step**2 / 4 * largest * lost
    else:
        options = {**inputs.options, "dropout": spec["dropout"]}
        of_scores = oracle.of_scores(inputs.make, inputs.parameters, inputs.qkv, inputs.upstream, **options).norm()
        more = step * largest * (of_scores + lost)
    return {"gradient": more, "gradient of relative": more}


def _unlikely(spec: Spec, kept: Tensor, inputs: Inputs, allowed: Tensor | None) -> list[str]:
    """Say so if dropout keeps a fraction of the weights that is far from the one asked for."""
    plain = {**spec, "dropout": 0.0, "grads": "none", "v_width": spec["k_len"], "values": []}
    identity = torch.eye(spec["k_len"], dtype=torch.float64, device=kept.device)
    v = identity.expand(*inputs.qkv[1].shape[:2], -1, -1)
    probe = replace(inputs, qkv=[*inputs.qkv[:2], v], make=lambda *given: (inputs.make(*given)[0], None))
    weights = run(plain, probe, "eager", torch.float64)["output"]
    some = kept[weights > 1e-5]
    rate, count = 1 - spec["dropout"], some.numel()
    if count < 500:
        return []
    fraction = some.double().mean().item()
    if abs(fraction - rate) > 0.02 + 6 * math.sqrt(rate * (1 - rate) / count):
        return [f"dropout keeps {fraction:.3f} of {count} weights, expected {rate:.3f}"]
    return []


def _errors(
    found: dict[str, Tensor],
    truth: dict[str, Tensor],
    eager: dict[str, Tensor],
    looser: float,
    dtype: torch.dtype,
    summed: dict[str, Tensor],
    equal_rows: int,  # of the upstream gradient
) -> dict[str, tuple[float, float]]:
    """The error of every result as a norm and of its worst number, with what is allowed."""
    step, info = torch.finfo(dtype).eps, torch.finfo(dtype)
    errors = {}
    for index, (name, right) in enumerate(truth.items()):
        error, theirs, times = found[name].double() - right, eager[name].double() - right, oracle.times(index) * looser
        through_rows = name == "gradient of q" or "relative" in name
        rest = summed["output" if index == 0 else "gradient of relative" if through_rows else "gradient"]
        if equal_rows:  # a sum of equal numbers, which rounds the same way every time
            rest = rest + torch.finfo(torch.float32).eps / 4 * equal_rows * right.norm()
        smallest = info.tiny * info.eps * math.sqrt(right.numel())  # float16 has no smaller numbers
        allowed = times * theirs.norm() + step * right.norm() + rest + smallest
        errors[name] = (error.norm().item(), allowed.item())
        worst = times * theirs.abs().max() + step * right.abs().max() + rest + smallest
        errors[f"{name}, worst number"] = (error.abs().max().item(), 4 * worst.item())
    return errors


def attempt(spec: Spec, device: str) -> Verdict:
    """Judge a call; an exception is a failure."""
    try:
        return judge(spec, device)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        return Verdict(failures=[f"{type(error).__name__} at {where}: {str(error).strip()[:600]}"])


def simplified(spec: Spec, device: str, seconds: float) -> Spec:
    """A simpler call that fails as well, found by trying simplifications one after another."""
    deadline, changed = time.monotonic() + seconds, True
    while changed:
        changed = False
        for simpler in _simpler(spec):
            if time.monotonic() > deadline:
                return spec
            if attempt(simpler, device).failures:
                spec, changed = simpler, True
                break
    return spec


def _simpler(spec: Spec) -> list[Spec]:
    simpler = [{**spec, place: spec[place][:n] + spec[place][n + 1 :]}
               for place in ("terms", "values") for n in range(len(spec[place]))]  # fmt: skip
    plain = {
        "causal": False, "lengths": False, "documents": False, "mask": False, "dropout": 0.0, "scale": None,
        "layout": "contiguous", "upstream": "contiguous", "upstream_scale": 1.0, "parameters": "float32",
        "batch": 1, "heads": 1, "grads": "none",
    }  # fmt: skip
    for name, value in plain.items():
        if spec[name] != value:
            more = {"key_heads": 1} if name == "heads" else {}
            simpler.append({**spec, name: value, **more})
    if spec["key_heads"] != spec["heads"]:
        simpler.append({**spec, "key_heads": spec["heads"]})
    return simpler
