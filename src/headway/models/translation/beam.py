"""Beam search over one batch, all on the device, in tensors of fixed size.

Each step takes the 2 * beam best continuations of a source. Those that end join the finished ones, of which the n_best
by score are kept; the `beam` best others live on (as in tensor2tensor). At most `beam` of 2 * beam can end, one of each
hypothesis, so that there are always enough.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from headway.models.losses import precise
from headway.models.translation.best import logsumexp, top
from headway.models.translation.cache import DecoderState
from headway.models.translation.decoding import Decoding
from headway.models.translation.history import History
from headway.models.translation.hypothesis import Hypothesis, length_penalties


@dataclass(frozen=True, eq=False, kw_only=True)
class BeamSearch:
    """Live and finished hypotheses of B sources."""

    end: int  # the end token
    penalties: Tensor  # (longest + 2,), of each length
    limits: Tensor  # (B,), the most tokens of a translation
    scores: Tensor  # (B, K), log-probabilities of what lives; -inf where nothing does
    done: Tensor  # (B,), nothing can change any more
    finished: Tensor  # (B, n), scores, best first; -inf where there is none yet
    finished_log_probabilities: Tensor  # (B, n)
    finished_steps: Tensor  # (B, n), the step of the end token
    finished_rows: Tensor  # (B, n), the hypothesis that ended
    history: History

    random: ClassVar[bool] = False

    @classmethod
    def start(cls, decoding: Decoding, limits: Tensor, *, end: int, dtype: torch.dtype) -> BeamSearch:
        batch, device, longest = len(limits), limits.device, int(limits.max())
        scores = torch.full((batch, decoding.beam), -torch.inf, dtype=dtype, device=device)
        scores[:, 0] = 0.0  # all hypotheses are the start token: one of them is enough
        none = torch.full((batch, decoding.n_best), -torch.inf, dtype=dtype, device=device)
        zeros = torch.zeros_like(none, dtype=torch.long)
        return cls(
            end=end,
            penalties=length_penalties(longest + 1, decoding.length_penalty, dtype=dtype, device=device),
            limits=limits,
            scores=scores,
            done=torch.zeros(batch, dtype=torch.bool, device=device),
            finished=none,
            finished_log_probabilities=none.clone(),
            finished_steps=zeros,
            finished_rows=zeros.clone(),
            history=History.empty(longest, batch, decoding.beam, device),
        )

    def of_sources(self, sources: Tensor) -> BeamSearch:
        return replace(
            self,
            limits=self.limits[sources],
            scores=self.scores[sources],
            done=self.done[sources],
            finished=self.finished[sources],
            finished_log_probabilities=self.finished_log_probabilities[sources],
            finished_steps=self.finished_steps[sources],
            finished_rows=self.finished_rows[sources],
            history=self.history.of_sources(sources),
        )

    def choose(self, logits: Tensor, state: DecoderState, span: int) -> None:
        """Take one step, given the scores of all words, (B, K, V); writes into itself and the state."""
        beam = self.scores.shape[1]
        position = state.position
        scores, rows, tokens = self._best(precise(logits), position)
        ended = tokens == self.end
        self._finish(scores.masked_fill(~ended, -torch.inf), rows, position)
        alive, chosen = scores.masked_fill(ended, -torch.inf).topk(beam, dim=1)
        parents, tokens = rows.gather(1, chosen), tokens.gather(1, chosen)
        self.history.write(position, tokens, parents)
        self.scores.copy_(alive)
        self._stop(position)
        state.go_on(tokens, parents, span)

    def _best(self, z: Tensor, position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probability, hypothesis and word of the 2 * beam best continuations of each source, (B, 2 * beam)."""
        beam = self.scores.shape[1]
        total = logsumexp(z)[..., None]
        best, words = top(z, min(2 * beam, z.shape[-1]))  # (B, K, k); of one hypothesis no more can be among the best
        best = self.scores[..., None] + (best - total)
        # At its limit a hypothesis can only end.
        last = (position + 1 >= self.limits)[:, None, None]
        ends = self.scores[..., None] + (z[..., self.end, None] - total)  # (B, K, 1)
        only = torch.cat([ends, torch.full_like(best[..., 1:], -torch.inf)], dim=-1)
        best, words = torch.where(last, only, best), torch.where(last, self.end, words)
        scores, index = best.flatten(1).topk(min(2 * beam, best.shape[1] * best.shape[2]), dim=1)
        return scores, index // best.shape[2], words.flatten(1).gather(1, index)

    def _finish(self, scores: Tensor, rows: Tensor, position: Tensor) -> None:
        """Let those that ended (others: -inf) compete with the finished ones."""
        normalized = scores / self.penalties.index_select(0, position + 1)
        normalized = normalized.masked_fill(self.done[:, None], -torch.inf)
        count = self.finished.shape[1]
        both = torch.cat([self.finished, normalized], dim=1)
        best, index = both.topk(count, dim=1)
        for kept, new in (
            (self.finished_log_probabilities, scores),
            (self.finished_steps, position.expand_as(rows)),
            (self.finished_rows, rows),
        ):
            kept.copy_(torch.cat([kept, new], dim=1).gather(1, index))
        self.finished.copy_(best)

    def _stop(self, position: Tensor) -> None:
        """A source is done when nothing alive can come among its n best any more.

        A hypothesis of log-probability s ends at some length n from position + 2 to the limit, with at most s. As s is
        negative and the penalty monotonic in n, its score is at most s over the greater penalty of these two lengths,
        in floating point too, where division is monotonic. At the limit nothing is left alive.
        """
        shortest = (position + 2).minimum(self.limits)
        greatest = self.penalties[shortest].maximum(self.penalties[self.limits])
        attainable = self.scores[:, 0] / greatest
        self.done.copy_(self.done | (self.finished[:, -1] >= attainable))

    def results(self, sources: list[int]) -> list[list[Hypothesis]]:
        """The translations of some sources, best first."""
        parts = (self.finished, self.finished_log_probabilities, self.finished_steps, self.finished_rows)
        scores, log_probabilities, steps, rows = (part[sources].tolist() for part in parts)
        words = self.history.traced(sources, rows, steps)
        return [
            [Hypothesis(*parts) for parts in zip(*of_source, strict=True) if parts[1] > -torch.inf]
            for of_source in zip(words, scores, log_probabilities, strict=True)
        ]
