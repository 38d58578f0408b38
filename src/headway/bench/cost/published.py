"""What Chen et al. (2021b), "A Simple and Effective Positional Encoding for Transformers", measured."""

from __future__ import annotations

# Table 1: time over BERT with learned positions in the input, on TPU v2; model, mode, encoding. "Ke et al. (2020)" is
# TUPE with relative positions (Sec. 4: "combined absolute and relative positional encoding").
PUBLISHED: dict[str, dict[str, dict[str, float]]] = {
    "bert-base": {
        "training": {"shaw": 1.13, "tupe-rel": 1.01, "diet-abs": 1.00, "diet-rel": 1.00},
        "inference": {"shaw": 1.33, "tupe-rel": 1.19, "diet-abs": 1.00, "diet-rel": 1.00},
    },
    "bert-small": {
        "training": {"shaw": 1.24, "tupe-rel": 1.04, "diet-abs": 1.00, "diet-rel": 1.00},
        "inference": {"shaw": 1.65, "tupe-rel": 1.27, "diet-abs": 1.01, "diet-rel": 1.00},
    },
}


def published(model: str, mode: str, encoding: str) -> float | None:
    """The paper's ratio, or None where it has none."""
    return PUBLISHED.get(model, {}).get(mode, {}).get(encoding)
