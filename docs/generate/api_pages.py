"""The API reference: a page a room, an entry for every public name."""

from __future__ import annotations

import importlib

ROOMS = {  # page -> modules whose public names (`__all__`) it lists
    "bias": ("headway.bias",),
    "attention": ("headway.attention",),
    "encodings": ("headway.encodings", "headway.encodings.overview"),
    "models": ("headway.models", "headway.models.translation"),
    "bench.data": ("headway.bench.data",),
    "bench.tasks": ("headway.bench.tasks.pretrain", "headway.bench.tasks.finetune", "headway.bench.tasks.translate"),
    "pretrained.fusing": ("headway.pretrained.fusing",),
    "pretrained.analysis": ("headway.pretrained.analysis",),
    "pretrained.conversion": ("headway.pretrained.conversion",),
    "bench.cost": ("headway.bench.cost",),
    "bench.study": ("headway.bench.study.plan", "headway.bench.study.plans", "headway.bench.study.study"),
    "bench.claims": ("headway.bench.claims",),
    "bench.report": ("headway.bench.report", "headway.bench.report.study"),
}


def api_page(room: str) -> str:
    parts = [f"# headway.{room}"]
    for name in ROOMS[room]:
        module = importlib.import_module(name)
        parts += [f"## {name}" if len(ROOMS[room]) > 1 else "", (module.__doc__ or "").strip()]
        parts += [f"::: {name}.{public}\n    options:\n      heading_level: 3" for public in public_names(module)]
    return "\n\n".join(part for part in parts if part)


def public_names(module: object) -> list[str]:
    """`__all__`, or where there is none, the classes and functions that the module itself defines."""
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    )
