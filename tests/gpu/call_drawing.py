"""Draw descriptions of random calls of `hw.attention`; a description is JSON and says all about a call.

Compiling takes most of a run's time, so calls come in families: what decides which kernels are compiled (dtype, widths,
rank, kinds of bias and mask) is drawn once for a family; lengths, batch, heads and memory layout for each of its calls.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

WIDTHS = list(range(8, 257, 8))
MOST_SCORES = 3_000_000  # B * H * Lq * Lk, which the float64 formula holds several times
MOST_DROPPED = 256  # keys of a call with dropout: finding its mask takes a call for each `v_width` keys
CALLS_PER_FAMILY = 12
Spec = dict[str, Any]


@dataclass
class Choices:
    """Draws options by name; those in `fixed` keep the value given there."""

    rng: random.Random
    fixed: Spec
    cuda: bool

    def take(self, name: str, drawn: Any) -> Any:
        return self.fixed.get(name, drawn)

    def one_of(self, name: str, weights: dict[Any, float]) -> Any:
        return self.take(name, self.rng.choices(list(weights), list(weights.values()))[0])

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def axes(self, allowed: str) -> str:
        """Which of the axes B and H a tensor has; it is shared over the others."""
        return "".join(axis for axis in allowed if self.chance(0.4 if axis == "B" else 0.7))


SCORE_KINDS = {
    "toeplitz": 3, "clipped": 2, "low rank": 4, "segments": 3, "relative keys": 3, "edge keys": 1, "dense": 2,
    "products": 4,
}  # fmt: skip
VALUE_KINDS = {"": 15, "relative values": 4, "edge values": 1, "relative values, edge values": 0.5}
RANKS = [1, 5, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 70, 127, 128, 129, 130]
MASKS = {"causal": 0.45, "lengths": 0.4, "documents": 0.2, "mask": 0.3}
GPU_DTYPES = {"bfloat16": 4, "float16": 3, "float32": 3}
CPU_DTYPES = {"float32": 5, "float16": 1.5, "bfloat16": 1.5}
CPU_BACKENDS = {"auto": 6, "triton": 5, "matrix": 2, "blockwise": 2, "sdpa": 2, "native": 1, "eager": 0.2}
GPU_BACKENDS = {"auto": 12, "triton": 4, "sdpa": 1, "eager": 0.3}


def draw_family(choices: Choices) -> Spec:
    """What decides which kernels are compiled."""
    rng, cuda = choices.rng, choices.cuda
    width = choices.take("width", 64 if choices.chance(0.3) else rng.choice(WIDTHS))
    count = rng.choices([0, 1, 2, 3], [12, 40, 28, 20])[0]
    terms = [rng.choices(list(SCORE_KINDS), list(SCORE_KINDS.values()))[0] for _ in range(count)]
    values = rng.choices(list(VALUE_KINDS), list(VALUE_KINDS.values()))[0].split(", ")
    masked = choices.chance(0.65)
    family = {
        "backend": choices.one_of("backend", GPU_BACKENDS if cuda else CPU_BACKENDS),
        "dtype": choices.one_of("dtype", GPU_DTYPES if cuda else CPU_DTYPES),
        "parameters": choices.one_of("parameters", {"float32": 8, "same": 2}),
        "width": width,
        "v_width": choices.take("v_width", width if choices.chance(0.8) else rng.choice(WIDTHS)),
        "terms": choices.take("terms", terms),
        "values": choices.take("values", [kind for kind in values if kind]),
        **{kind: choices.take(kind, choices.chance(often) and masked) for kind, often in MASKS.items()},
        "dropout": choices.take("dropout", rng.choice([0.1, 0.25, 0.5]) if choices.chance(0.15) else 0.0),
        "grads": choices.one_of("grads", {"all": 7, "none": 3, "inputs": 1.5, "parameters": 0.5}),
    }
    _suit(family, cuda)
    family |= {name: value for name, value in choices.fixed.items() if name in family}
    return family | {place: [_family_term(kind, choices) for kind in family[place]] for place in ("terms", "values")}


def _suit(family: Spec, cuda: bool) -> None:
    """Leave out what a backend asked for by name does not run, so that it is not replaced by auto too often."""
    backend = family["backend"]
    if backend == "native":
        family |= {"dtype": "float32", "documents": False, "mask": False, "dropout": 0.0, "grads": "none", "values": []}
        family["terms"] = [kind for kind in family["terms"] if kind in ("toeplitz", "clipped")]
    if backend == "sdpa":
        family["values"] = []
    if backend == "triton":
        for place in ("terms", "values"):
            family[place] = [kind for kind in family[place] if "edge" not in kind and (kind != "dense" or cuda)]
        if not cuda and family["dtype"] == "bfloat16":  # which Triton's interpreter does not know
            family["dtype"] = "float16"


def _family_term(kind: str, choices: Choices) -> Spec:
    rng = choices.rng
    if kind == "low rank":
        rank = rng.choice(RANKS) if choices.chance(0.5) else rng.randint(1, 130)
        return {"kind": kind, "rank": choices.take("rank", rank)}
    if kind == "segments":
        return {"kind": kind, "count": choices.one_of("segments", {2: 3, 3: 1, 4: 1, 5: 1})}
    if kind in ("relative keys", "relative values", "clipped"):
        reach = rng.choice([0, 1, 4, 8, 15, 16, 17, 27, 28, 60, 70]) if choices.chance(0.5) else rng.randint(0, 40)
        return {"kind": kind, "reach": choices.take("reach", reach)}
    if kind == "products":
        width = choices.take("width", 64) if choices.chance(0.3) else rng.choice([1, 3, 16, 17, 24, 64, 80])
        rows = rng.choice(["buckets", "clipped", "zero beyond", "every offset"])
        return {"kind": kind, "of_keys": choices.chance(0.5), "vectors_width": min(width, 80), "rows": rows}
    if kind in ("edge keys", "edge values"):
        return {"kind": kind, "count": rng.choice([1, 3, 8, 20])}
    if kind in ("toeplitz", "dense"):
        return {"kind": kind}
    raise ValueError(f"terms: expected {', '.join(SCORE_KINDS)}, relative values or edge values, got {kind!r}.")


def draw_call(family: Spec, choices: Choices) -> Spec:
    """One call of a family, described in full."""
    rng = choices.rng
    longest, most_scores = 600, MOST_SCORES
    if not choices.cuda:
        longest, most_scores = (40, 2_500) if family["backend"] == "triton" else (300, 100_000)
    if family["dropout"]:
        longest = min(longest, MOST_DROPPED)
    q_len = choices.take("q_len", _length(rng, longest))
    same = choices.chance(0.45)
    k_len = choices.take("k_len", q_len if same else _length(rng, longest))
    heads = choices.take("heads", rng.choice([1, 2, 2, 3, 4, 4, 6]))
    if choices.cuda and choices.chance(0.3) and _changes_when_long(family):
        sizes = {"q_len": rng.randint(4096, 4200), "k_len": rng.randint(4096, 4200), "heads": 1}
        q_len, k_len, heads = (choices.take(name, size) for name, size in sizes.items())
    key_heads = choices.take(
        "key_heads", heads if choices.chance(0.6) else rng.choice([n for n in range(1, heads + 1) if heads % n == 0])
    )
    batch = rng.randint(1, 5)
    if q_len * k_len <= 70 * 70 and choices.chance(0.15):
        batch = rng.randint(6, 60)
    batch = choices.take("batch", min(batch, max(1, most_scores // (heads * q_len * k_len))))
    scale = rng.choices([None, "other", 0.0, "negative"], [14, 3, 0.6, 1])[0]
    if isinstance(scale, str):
        scale = round(rng.uniform(0.1, 2) * family["width"] ** -0.5, 4) * (1 if scale == "other" else -1)
    q_start = rng.choices([0, rng.randint(0, k_len), k_len - q_len, -rng.randint(1, 9)], [10, 5, 3, 1])[0]
    call = {
        "seed": rng.getrandbits(32),
        "batch": batch, "heads": heads, "key_heads": key_heads, "q_len": q_len, "k_len": k_len,
        **family,
        "terms": [_call_term(term, q_start, choices) for term in family["terms"]],
        "values": [_call_term(term, q_start, choices) for term in family["values"]],
        "scale": choices.take("scale", scale),
        "upstream": choices.one_of("upstream", {"contiguous": 4, "rows first": 4, "expanded": 1}),
        "upstream_scale": choices.one_of(
            "upstream_scale", {1.0: 8, 100.0: 1} if family["dtype"] == "float16" else {1.0: 8, 100.0: 1, 1e-4: 1}
        ),
    }  # fmt: skip
    if family["lengths"] is True:
        call["lengths"] = rng.choice(["any", "any", "full", "short"])
    if family["documents"] is True:
        call["documents"] = choices.axes("B") or "shared"
    if family["mask"] is True:
        call["mask"] = "".join(axis for axis in "BHq" if choices.chance(0.6)) + "k"
    layouts = {"contiguous": 3, "rows first": 3, "sliced": 1, "expanded": 0.5}
    if q_len == k_len and heads == key_heads and family["width"] == family["v_width"]:
        layouts |= {"packed": 3, "packed views": 2}
    call["layout"] = choices.one_of("layout", layouts)
    return call


def _changes_when_long(family: Spec) -> bool:
    """Whether other kernels take the call from some thousands of keys on: those of a low-rank bias alone."""
    alone = [term["kind"] for term in family["terms"]] == ["low rank"] and not family["values"]
    return alone and family["dtype"] != "float32" and not (family["dropout"] or family["mask"] or family["documents"])


def _length(rng: random.Random, longest: int) -> int:
    """A length up to `longest`: often short, often beside a multiple of a tile's size."""
    beside = [n for n in (16, 32, 48, 64, 128, 192, 256, 320, 512) if n <= longest]
    way = rng.choices(["short", "beside", "any"], [25, 45, 30])[0]
    if way == "beside" and beside:
        return min(longest, rng.choice(beside) + rng.choice([-1, 0, 1]))
    return rng.randint(1, min(longest, 20 if way == "short" else 600))


def _call_term(term: Spec, q_start: int, choices: Choices) -> Spec:
    """Over which axes the tensors of one term are shared, and where relative offsets begin."""
    axes = {
        "toeplitz": {"table": "BH"}, "clipped": {"table": "BH"}, "dense": {"table": "BH"},
        "low rank": {"left": "BH", "right": "BH"},
        "segments": {"table": "H", "q": "B", "k": "B"},
        "relative keys": {"table": "H"}, "relative values": {"table": "H"},
        "products": {"table": "H", "vectors": "BH"},
        "edge keys": {"table": "H", "labels": "B"}, "edge values": {"table": "H", "labels": "B"},
    }[term["kind"]]  # fmt: skip
    drawn = {**term, **{name: choices.axes(allowed) for name, allowed in axes.items()}}
    if "relative" in term["kind"]:  # the fused kernels take one q_start, so that another one is rare
        drawn["q_start"] = q_start if choices.chance(0.95) else 3
    if term["kind"] == "dense":
        drawn["level"] = 50 if choices.chance(0.2) else 0
    return drawn


def drawn_calls(seed: int, worker: int, number: int, fixed: Spec, device: str) -> list[Spec]:
    """The calls of one family, each as its description."""
    choices = Choices(random.Random(f"{seed * 1000 + worker}, {number}"), fixed, device == "cuda")
    family = draw_family(choices)
    return [draw_call(family, choices) for _ in range(CALLS_PER_FAMILY)]
