"""What decoding gives, and how it is scored."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One translation: its tokens without start and end, its score, and its log-probability, the end included."""

    tokens: list[int]
    score: float
    log_probability: float


def length_penalties(longest: int, alpha: float, *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What log-probabilities of lengths 0 to longest are divided by.

    Paper:    Wu et al. (2016), "Google's Neural Machine Translation System", Eq. (14), lp(Y)
    Formula:  ((5 + length) / 6) ^ alpha
    Departs:  the paper does not say whether the end token counts; it does here, as in tensor2tensor
    """
    length = torch.arange(longest + 1, dtype=torch.float64)
    return ((5 + length) / 6).pow(alpha).to(dtype=dtype, device=device)
