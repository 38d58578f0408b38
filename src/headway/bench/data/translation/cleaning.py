"""Rules that leave pairs out of training; what they leave out is counted by reason, or raises."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from headway.bench.data.language.language import require_int
from headway.bench.data.translation.parallel import Pair

REPLACEMENT = "\ufffd"  # decoders write it in place of bytes that they could not decode


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """Rules for pairs to train on.

    Args:
        max_tokens: maximum number of tokens of either side, the end token included.
        max_ratio: maximum ratio of the longer side's tokens to the shorter side's.
        strict: raise at the first pair that breaks a rule instead of leaving it out.
    """

    max_tokens: int = 256
    max_ratio: float = 4.0
    strict: bool = False

    def __post_init__(self) -> None:
        require_int("max_tokens", self.max_tokens, 2)
        if not self.max_ratio >= 1:
            raise ValueError(f"max_ratio: expected at least 1, got {self.max_ratio}.")


class Cleaner:
    """Applies rules and counts by reason the pairs that it leaves out."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.left_out: Counter[str] = Counter()

    def keeps_text(self, pair: Pair) -> bool:
        """Return whether the text of a pair follows the rules: both sides are there, and no character was lost."""
        if not pair.source or not pair.target:
            return self._out("empty", pair, f"an empty {'target' if pair.source else 'source'}")
        if REPLACEMENT in pair.source or REPLACEMENT in pair.target:
            return self._out("lost characters", pair, "U+FFFD, which stands for bytes that were no text")
        return True

    def keeps_tokens(self, pair: Pair, source: int, target: int) -> bool:
        """Return whether the numbers of tokens of a pair follow the rules."""
        longer, shorter = max(source, target), min(source, target)
        if longer + 1 > self.rules.max_tokens:
            return self._out("too long", pair, f"{longer + 1} tokens, over {self.rules.max_tokens}")
        if longer > self.rules.max_ratio * shorter:
            return self._out("length ratio", pair, f"{source} and {target} tokens, over {self.rules.max_ratio:g} to 1")
        return True

    def _out(self, reason: str, pair: Pair, found: str) -> bool:
        if self.rules.strict:
            raise ValueError(
                f"{pair.where}: this pair has {found} ({reason}). "
                f"Correct the text, or set data.rules.strict=false to leave such pairs out and count them."
            )
        self.left_out[reason] += 1
        return False
