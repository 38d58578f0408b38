"""The searches that choose words: beam search, greedy decoding and sampling.

A search keeps its state in tensors of fixed size on the device, and writes into them in place, so that on a GPU one
captured graph serves all steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from headway.models.losses import upcast
from headway.models.translation.cache import DecoderState
from headway.models.translation.decoding import Decoding, Hypothesis, length_penalties


@dataclass(frozen=True, eq=False, kw_only=True)
class BeamSearch:
    """Beam search: the K best unfinished hypotheses and the n best finished ones of each of B sources.

    Each step takes the 2 * K best continuations of a source. Those that end compete with the finished hypotheses; the K
    best others go on (as in tensor2tensor). At most K of 2 * K can end, one for each hypothesis, so K always remain.
    """

    end: int  # id of the end token
    penalties: Tensor  # (longest + 2,), the length penalty of each length
    limits: Tensor  # (B,), maximum length of each translation
    scores: Tensor  # (B, K), log-probabilities of the unfinished hypotheses; -inf where there is none
    done: Tensor  # (B,), whether the result of a source is final
    finished: Tensor  # (B, n), scores of finished hypotheses, best first; -inf where there is none yet
    finished_log_probabilities: Tensor  # (B, n)
    finished_steps: Tensor  # (B, n), the step at which each ended
    finished_rows: Tensor  # (B, n), the number of the hypothesis that ended
    history: History

    random: ClassVar[bool] = False

    @classmethod
    def start(cls, decoding: Decoding, limits: Tensor, *, end: int, dtype: torch.dtype) -> BeamSearch:
        batch, device, longest = len(limits), limits.device, int(limits.max())
        scores = torch.full((batch, decoding.beam), -torch.inf, dtype=dtype, device=device)
        scores[:, 0] = 0.0  # all hypotheses begin equal, so only the first one counts
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

    def select_sources(self, sources: Tensor) -> BeamSearch:
        """Return the search of some sources."""
        return replace(
            self,
            limits=self.limits[sources],
            scores=self.scores[sources],
            done=self.done[sources],
            finished=self.finished[sources],
            finished_log_probabilities=self.finished_log_probabilities[sources],
            finished_steps=self.finished_steps[sources],
            finished_rows=self.finished_rows[sources],
            history=self.history.select_sources(sources),
        )

    def choose(self, logits: Tensor, state: DecoderState, span: int) -> None:
        """Choose the next words from the scores of all words, (B, K, V); update this search and the decoder's state."""
        beam = self.scores.shape[1]
        position = state.position
        scores, rows, tokens = self._best_continuations(upcast(logits), position)
        ended = tokens == self.end
        self._finish(scores.masked_fill(~ended, -torch.inf), rows, position)
        unfinished, chosen = scores.masked_fill(ended, -torch.inf).topk(beam, dim=1)
        parents, tokens = rows.gather(1, chosen), tokens.gather(1, chosen)
        self.history.write(position, tokens, parents)
        self.scores.copy_(unfinished)
        self._mark_done(position)
        state.advance(tokens, parents, span)

    def _best_continuations(self, z: Tensor, position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probability, hypothesis and word of the 2 * K best continuations of each source, (B, 2 * K)."""
        beam = self.scores.shape[1]
        total = logsumexp(z)[..., None]
        best, words = top_words(z, min(2 * beam, z.shape[-1]))  # (B, K, 2 * K)
        best = self.scores[..., None] + (best - total)
        # At its maximum length a hypothesis can only end.
        last = (position + 1 >= self.limits)[:, None, None]
        ends = self.scores[..., None] + (z[..., self.end, None] - total)  # (B, K, 1)
        only = torch.cat([ends, torch.full_like(best[..., 1:], -torch.inf)], dim=-1)
        best, words = torch.where(last, only, best), torch.where(last, self.end, words)
        scores, index = best.flatten(1).topk(min(2 * beam, best.shape[1] * best.shape[2]), dim=1)
        return scores, index // best.shape[2], words.flatten(1).gather(1, index)

    def _finish(self, scores: Tensor, rows: Tensor, position: Tensor) -> None:
        """Merge the hypotheses that ended in this step (others have score -inf) into the n best finished ones."""
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

    def _mark_done(self, position: Tensor) -> None:
        """Mark the sources whose unfinished hypotheses can no longer come among the n best.

        A hypothesis of log-probability s ends at some length from position + 2 to the limit, with a log-probability of
        at most s. As s is negative and the penalty is monotonic in the length, its score is at most s divided by the
        greater penalty of these two lengths; division is monotonic in floating point too. At the limit no hypothesis
        is left unfinished.
        """
        shortest = (position + 2).minimum(self.limits)
        greatest = self.penalties[shortest].maximum(self.penalties[self.limits])
        attainable = self.scores[:, 0] / greatest
        self.done.copy_(self.done | (self.finished[:, -1] >= attainable))

    def results(self, sources: list[int]) -> list[list[Hypothesis]]:
        """Return the translations of some sources, best first."""
        parts = (self.finished, self.finished_log_probabilities, self.finished_steps, self.finished_rows)
        scores, log_probabilities, steps, rows = (part[sources].tolist() for part in parts)
        words = self.history.trace_back(sources, rows, steps)
        return [
            [Hypothesis(*parts) for parts in zip(*of_source, strict=True) if parts[1] > -torch.inf]
            for of_source in zip(words, scores, log_probabilities, strict=True)
        ]


@dataclass(frozen=True, eq=False, kw_only=True)
class SinglePathSearch:
    """Greedy decoding or sampling: one hypothesis of each of B sources, extended by its best word or a random one."""

    decoding: Decoding
    generator: torch.Generator | None
    end: int
    penalties: Tensor  # (longest + 1,)
    limits: Tensor  # (B,)
    log_probabilities: Tensor  # (B, 1)
    steps: Tensor  # (B, 1), the step at which a hypothesis ended; -1 before
    done: Tensor  # (B,)
    history: History

    @property
    def random(self) -> bool:
        return self.decoding.sample

    @classmethod
    def start(cls, decoding: Decoding, limits: Tensor, *, end: int, dtype: torch.dtype) -> SinglePathSearch:
        shape, device, longest = (len(limits), 1), limits.device, int(limits.max())
        generator = None
        if decoding.seed is not None:
            generator = torch.Generator(device).manual_seed(decoding.seed)
        return cls(
            decoding=decoding,
            generator=generator,
            end=end,
            penalties=length_penalties(longest, decoding.length_penalty, dtype=dtype, device=device),
            limits=limits,
            log_probabilities=torch.zeros(shape, dtype=dtype, device=device),
            steps=torch.full(shape, -1, device=device),
            done=torch.zeros(shape[0], dtype=torch.bool, device=device),
            history=History.empty(longest, *shape, device),
        )

    def select_sources(self, sources: Tensor) -> SinglePathSearch:
        """Return the search of some sources."""
        return replace(
            self,
            limits=self.limits[sources],
            log_probabilities=self.log_probabilities[sources],
            steps=self.steps[sources],
            done=self.done[sources],
            history=self.history.select_sources(sources),
        )

    def choose(self, logits: Tensor, state: DecoderState, span: int) -> None:
        """Choose the next word from the scores of all words, (B, 1, V); update this search and the decoder's state."""
        z = upcast(logits)
        tokens = self._sample(z) if self.decoding.sample else top_words(z, 1)[1][..., 0]
        tokens = torch.where((state.position + 1 >= self.limits)[:, None], self.end, tokens)
        gained = z.gather(-1, tokens[..., None])[..., 0] - logsumexp(z)
        unfinished = self.steps < 0
        self.log_probabilities.add_(torch.where(unfinished, gained, 0.0))
        self.steps.copy_(torch.where(unfinished & (tokens == self.end), state.position, self.steps))
        self.done.copy_(self.steps[:, 0] >= 0)
        self.history.write(state.position, tokens, torch.zeros_like(tokens))
        state.advance(tokens, None, span)

    def _sample(self, z: Tensor) -> Tensor:  # (B, 1, V) to (B, 1)
        z = z / self.decoding.temperature
        if self.decoding.top_k is not None:
            least = z.topk(min(self.decoding.top_k, z.shape[-1]), dim=-1).values[..., -1:]
            z = z.masked_fill(z < least, -torch.inf)
        if self.decoding.top_p is not None:
            ordered, index = z.softmax(-1).sort(dim=-1, descending=True)
            beyond = (
                ordered.cumsum(-1) - ordered >= self.decoding.top_p
            )  # the words before it already have probability p
            z = z.masked_fill(beyond.scatter(-1, index, beyond), -torch.inf)
        drawn = torch.multinomial(z.softmax(-1).flatten(0, 1), 1, generator=self.generator)
        return drawn.view(z.shape[:2])

    def results(self, sources: list[int]) -> list[list[Hypothesis]]:
        """Return the translation of each of some sources, as a list of one."""
        normalized = self.log_probabilities / self.penalties[self.steps + 1]
        parts = (normalized, self.log_probabilities, self.steps)
        scores, log_probabilities, steps = (part[sources].tolist() for part in parts)
        words = self.history.trace_back(sources, [[0]] * len(sources), steps)
        return [
            [Hypothesis(*parts) for parts in zip(*of_source, strict=True)]
            for of_source in zip(words, scores, log_probabilities, strict=True)
        ]


@dataclass(frozen=True, eq=False)
class History:
    """The words that were chosen: at step t, hypothesis r extended parents[t, b, r] by the word tokens[t, b, r]."""

    tokens: Tensor  # (steps, B, K)
    parents: Tensor  # (steps, B, K)

    @classmethod
    def empty(cls, steps: int, batch: int, paths: int, device: torch.device) -> History:
        zeros = torch.zeros(steps, batch, paths, dtype=torch.long, device=device)
        return cls(zeros, zeros.clone())

    def write(self, position: Tensor, tokens: Tensor, parents: Tensor) -> None:
        self.tokens.index_copy_(0, position, tokens[None])
        self.parents.index_copy_(0, position, parents[None])

    def select_sources(self, sources: Tensor) -> History:
        return History(self.tokens.index_select(1, sources), self.parents.index_select(1, sources))

    def trace_back(self, sources: list[int], rows: list[list[int]], lengths: list[list[int]]) -> list[list[list[int]]]:
        """Return the first `lengths` words of the hypotheses that are numbered `rows` after the last of these steps."""
        tokens, parents = self.tokens.cpu().numpy(), self.parents.cpu().numpy()
        source, row, length = np.array(sources)[:, None], np.array(rows), np.array(lengths)
        words = np.zeros((*row.shape, int(length.max(initial=0))), dtype=np.int64)
        for step in range(words.shape[-1] - 1, -1, -1):
            words[..., step] = tokens[step, source, row]
            row = np.where(step < length, parents[step, source, row], row)
        return [
            [chosen[:end].tolist() for chosen, end in zip(of_source, ends, strict=True)]
            for of_source, ends in zip(words, lengths, strict=True)
        ]


def top_words(z: Tensor, count: int, group: int = 128) -> tuple[Tensor, Tensor]:  # (..., V) to (..., count) twice
    """Compute z.topk(count), on a CPU by way of the maximum of each group of words: the best are in the best groups.

    torch's topk sorts all scores, while the maximum of each group is one pass over them.
    """
    groups = z.shape[-1] // group
    if z.device.type != "cpu" or groups < 4 * count:
        best, index = z.topk(count, dim=-1)
        return best, index
    grouped = z[..., : groups * group].reshape(*z.shape[:-1], groups, group)
    which = grouped.amax(-1).topk(count, dim=-1).indices  # (..., count)
    near = grouped.gather(-2, which[..., None].expand(*which.shape, group)).flatten(-2)
    near = torch.cat([near, z[..., groups * group :]], dim=-1)
    best, index = near.topk(count, dim=-1)
    inside = index < count * group
    from_group = which.gather(-1, (index // group).clamp(max=count - 1)) * group + index % group
    return best, torch.where(inside, from_group, index - count * group + groups * group)


def logsumexp(z: Tensor, rows: int = 8) -> Tensor:  # (..., V) to (...)
    """Compute z.logsumexp(-1), on a CPU a few rows at a time, so that intermediate results stay in its cache."""
    if z.device.type != "cpu":
        return z.logsumexp(-1)
    return torch.cat([part.logsumexp(-1) for part in torch.split(z.flatten(0, -2), rows)]).view(z.shape[:-1])
