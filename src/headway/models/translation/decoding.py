"""The options of decoding, the translations that come out, and how these are scored."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoding:
    """Options of `TranslationModel.translate`.

    Args:
        beam: number of unfinished hypotheses that the search keeps; 1 is greedy decoding.
        length_penalty: alpha of the penalty ((5 + length) / 6) ^ alpha (GNMT) that divides log-probabilities; the
            length includes the end token.
        n_best: number of translations of each source, best first; fewer if the search finds fewer.
        max_length_ratio, max_length_plus: a translation has at most ratio * source length + plus tokens, counting the
            end tokens of both; a hypothesis of that length must end. Source + 50 is Vaswani et al. (2017), Sec. 6.1.
        sample: draw n_best translations at random instead of searching.
        temperature: number that scores are divided by before a word is drawn.
        top_k: number of best words among which one is drawn; all unless given.
        top_p: probability that the words among which one is drawn have together; 1 unless given.
        seed: seed of sampling; torch's global generator unless given.
    """

    beam: int = 4
    length_penalty: float = 0.6
    n_best: int = 1
    max_length_ratio: float = 1.0
    max_length_plus: int = 50
    sample: bool = False
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        for name in ("beam", "n_best"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}: expected a whole number of at least 1, got {value!r}.")
        if not self.sample:
            if self.n_best > self.beam:
                raise ValueError(f"n_best: expected at most beam ({self.beam}), got {self.n_best}. Widen the beam.")
            given = [name for name in ("top_k", "top_p", "seed") if getattr(self, name) is not None]
            if given or self.temperature != 1.0:
                raise ValueError(f"{', '.join(given) or 'temperature'}: an option of sampling. Set sample=True.")
        for name in ("max_length_ratio", "max_length_plus"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}: expected a finite number of at least 0, got {getattr(self, name)}.")
        if not math.isfinite(self.length_penalty):
            raise ValueError(f"length_penalty: expected a finite number, got {self.length_penalty}.")
        if not self.temperature > 0:
            raise ValueError(
                f"temperature: expected more than 0, got {self.temperature}. To always take the best word, use beam=1."
            )
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k: expected at least 1, got {self.top_k}.")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p: expected more than 0 and at most 1, got {self.top_p}.")

    @property
    def paths(self) -> int:
        """Number of hypotheses of one source that are extended at a time."""
        return 1 if self.sample else self.beam

    def limits(self, lengths: Tensor, longest: int | None) -> Tensor:
        """Return the maximum length of each translation, from the sources' lengths and the model's own maximum."""
        limits = (lengths * self.max_length_ratio + self.max_length_plus).long().clamp(min=1)
        return limits if longest is None else limits.clamp(max=longest)


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One translation: its tokens without start and end token, its score, its log-probability (with the end token)."""

    tokens: list[int]
    score: float
    log_probability: float


def length_penalties(longest: int, alpha: float, *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the divisor of the log-probability of each length from 0 to `longest`.

    Paper:    Wu et al. (2016), "Google's Neural Machine Translation System", Eq. (14), lp(Y)
    Formula:  ((5 + length) / 6) ^ alpha
    Departs:  the paper does not say whether the length includes the end token; it does here, as in tensor2tensor
    """
    length = torch.arange(longest + 1, dtype=torch.float64)
    return ((5 + length) / 6).pow(alpha).to(dtype=dtype, device=device)
