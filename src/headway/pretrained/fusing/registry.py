"""All families that can be fused, by `config.model_type`, and those that cannot, with the reason."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from headway.pretrained.fusing.families import (
    alibi,
    conformers,
    deberta,
    encoders,
    funnel,
    inkling,
    layoutlm,
    longt5,
    mpnet,
    speecht5,
    t5,
    vision,
    wavlm,
    xlnet,
)
from headway.pretrained.fusing.family import Family, Fused

_FILES = (
    t5,
    longt5,
    mpnet,
    deberta,
    layoutlm,
    alibi,
    xlnet,
    funnel,
    inkling,
    conformers,
    speecht5,
    wavlm,
    encoders,
    vision,
)
FAMILIES: dict[str, Family] = {model: family for file in _FILES for family in file.FAMILIES for model in family.models}

REFUSED: dict[str, str] = {
    **dict.fromkeys(("longformer", "led", "big_bird"), "its attention is sparse, with tokens that all others see"),
    "nystromformer": "it approximates attention by landmarks",
    "mra": "it approximates attention in blocks of several resolutions",
}

_CLASSES: dict[type, type] = {}  # transformers' class -> the class of its fused modules


def family_of(model_type: str) -> Family:
    """Return the family of a model type; raise NotImplementedError with the reason if it has none."""
    if model_type in FAMILIES:
        return FAMILIES[model_type]
    if model_type in REFUSED:
        raise NotImplementedError(f"model: {model_type!r} cannot be fused: {REFUSED[model_type]}. See docs/fuse.md.")
    raise NotImplementedError(
        f"model: expected one of {', '.join(sorted(FAMILIES))}, got {model_type!r}. A model that goes through "
        f"transformers' attention interface can be loaded with attn_implementation='headway'."
    )


def fused_class(original: type, part: type[Fused]) -> type:
    """Return the class that modules of `original` get, the same one every time."""
    if original not in _CLASSES:
        name = f"Fused{original.__name__}"
        own = {
            "__module__": __name__,
            "__qualname__": f"{original.__module__.split('.')[-2]}_{name}",  # models have classes of one name
            "__doc__": f"{original.__name__} that hands headway's attention its bias as a structure: {part.STRUCTURE}.",
        }
        _CLASSES[original] = type(name, (part, original), own)
        if issubclass(original, PreTrainedModel):  # which writes the name of its class into its configuration
            _CLASSES[original].__name__ = original.__name__  # pickle goes by the qualified name
    return _CLASSES[original]


def __getattr__(name: str) -> Any:
    """Return a fused class by its qualified name, as unpickling needs."""
    for family in FAMILIES.values():
        for original, part in family.parts.items():
            if name == f"{family.file.split('.')[-2]}_Fused{original}":
                return fused_class(family.original(original), part)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def tables() -> str:
    """Return the tables of docs/fuse.md: what is taken and how, and what is refused and why."""
    lines = ["| `config.model_type` | module | what its scores get |", "|---|---|---|"]
    for model, family in FAMILIES.items():
        left = {name: f"left to transformers: {why}" for name, why in family.left.items()}
        parts = {name: part.STRUCTURE for name, part in family.parts.items()}
        for name, what in {**parts, **family.interface, **left}.items():
            lines.append(f"| `{model}` | `{name}` | {what} |")
    lines += ["", "| refused | why |", "|---|---|"]
    lines += [f"| `{model}` | {why} |" for model, why in REFUSED.items()]
    return "\n".join(lines)
