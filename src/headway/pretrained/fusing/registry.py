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
    "yoso": "it approximates attention by hashing",
    "reformer": "it attends within buckets of hashes",
    "bigbird_pegasus": "its attention is sparse, with tokens that all others see",
    "pegasus_x": "its attention is local, with tokens that all others see",
    "canine": "it attends within blocks of characters",
    "fnet": "it has no attention",
    "prophetnet": "it attends with several streams of queries, each with a matrix of buckets of its own",
    "vits": "its relative positions act on the values too, in windows",
    **dict.fromkeys(
        ("granite_speech", "granite_speech_encoder", "granite_speech_plus", "granite_speech_plus_encoder"),
        "its encoder attends within blocks, with relative keys there",
    ),
    **dict.fromkeys(("gemma3n", "gemma3n_audio", "gemma4_audio"), "its audio encoder attends within chunks"),
    **dict.fromkeys(
        ("sam", "sam_vision_model", "sam_hq", "sam_hq_vision_model", "vitdet", "seggpt", "got_ocr2"),
        "its bias depends on the query, for rows and columns apart, for which headway has no structure yet",
    ),
    **dict.fromkeys(("layoutlmv2", "layoutxlm"), "it needs detectron2, with which headway is not tested"),
    "clap": "it consists of two models; fuse its part model.audio_model",
    **dict.fromkeys(
        ("maskformer", "mask2former", "oneformer", "upernet", "grounding-dino", "mm-grounding-dino", "omdet-turbo"),
        "it consists of several models; its backbone, such as Swin, can be fused",
    ),
    "levit": "it changes the resolution between keys and queries",
    **dict.fromkeys(
        ("cpmant", "fastspeech2_conformer", "nemotron_asr_streaming", "nemotron_asr_streaming_encoder"),
        "headway has no file for its positions yet",
    ),
    "phi4_multimodal": "headway has no file for the positions of its audio encoder yet",
}

_CLASSES: dict[type, type] = {}  # transformers' class -> the class of its fused modules


def family_of(model: PreTrainedModel) -> Family:
    """Return the family of a model; raise NotImplementedError with the reason if it has none."""
    name = model.config.model_type
    if name in FAMILIES:
        return FAMILIES[name]
    if name in REFUSED:
        raise NotImplementedError(f"model: {name!r} cannot be fused: {REFUSED[name]}. See docs/fuse.md.")
    why = (
        "It goes through transformers' attention interface: load it with attn_implementation='headway'."
        if model._can_set_attn_implementation()
        else "It computes attention itself, in code that headway does not know."
    )
    raise NotImplementedError(f"model: expected one of {', '.join(sorted(FAMILIES))}, got {name!r}. {why}")


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
