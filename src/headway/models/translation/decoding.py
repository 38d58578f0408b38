"""How to decode: the choices of a search, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoding:
    """Choices of `TranslationModel.translate`.

    Args:
        beam: hypotheses that live at a time; 1 is greedy.
        length_penalty: alpha of ((5 + length) / 6) ^ alpha, by which log-probabilities are divided (GNMT); the end
            token counts.
        n_best: translations of each source, best first; fewer where the search finds fewer.
        max_length_ratio, max_length_plus: a translation has at most ratio * source length + plus tokens, the end token
            counted in both; a hypothesis that long must end. Source + 50 is Vaswani et al. (2017), Sec. 6.1.
        sample: draw n_best translations at random, in place of searching.
        temperature, top_k, top_p: of sampling. Scores are divided by the temperature; words beyond the k best, and
            those beyond the fewest that together have probability p, are left out.
        seed: of sampling; torch's own generator unless given.
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
                raise ValueError(f"{', '.join(given) or 'temperature'}: for sampling only. Set sample=True.")
        for name in ("max_length_ratio", "max_length_plus"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}: expected a finite number of at least 0, got {getattr(self, name)}.")
        if not math.isfinite(self.length_penalty):
            raise ValueError(f"length_penalty: expected a finite number, got {self.length_penalty}.")
        if not self.temperature > 0:
            raise ValueError(
                f"temperature: expected more than 0, got {self.temperature}. For the best word use beam=1."
            )
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k: expected at least 1, got {self.top_k}.")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p: expected more than 0 and at most 1, got {self.top_p}.")

    @property
    def paths(self) -> int:
        """Hypotheses that one source goes on with at a time."""
        return 1 if self.sample else self.beam

    def limits(self, lengths: Tensor, longest: int | None) -> Tensor:
        """The most tokens of each translation, given the sources' lengths and what the model can do at all."""
        limits = (lengths * self.max_length_ratio + self.max_length_plus).long().clamp(min=1)
        return limits if longest is None else limits.clamp(max=longest)
