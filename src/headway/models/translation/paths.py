"""Greedy decoding and sampling: one hypothesis a source."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headway.models.losses import precise
from headway.models.translation.best import logsumexp, top
from headway.models.translation.cache import DecoderState
from headway.models.translation.decoding import Decoding
from headway.models.translation.history import History
from headway.models.translation.hypothesis import Hypothesis, length_penalties


@dataclass(frozen=True, eq=False, kw_only=True)
class Paths:
    """One hypothesis of each of B sources, which takes the best word, or a random one, until it ends."""

    decoding: Decoding
    generator: torch.Generator | None
    end: int
    penalties: Tensor  # (longest + 1,)
    limits: Tensor  # (B,)
    log_probabilities: Tensor  # (B, 1)
    steps: Tensor  # (B, 1), the step of the end token; -1 before
    done: Tensor  # (B,)
    history: History

    @property
    def random(self) -> bool:
        return self.decoding.sample

    @classmethod
    def start(cls, decoding: Decoding, limits: Tensor, *, end: int, dtype: torch.dtype) -> Paths:
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

    def of_sources(self, sources: Tensor) -> Paths:
        return replace(
            self,
            limits=self.limits[sources],
            log_probabilities=self.log_probabilities[sources],
            steps=self.steps[sources],
            done=self.done[sources],
            history=self.history.of_sources(sources),
        )

    def choose(self, logits: Tensor, state: DecoderState, span: int) -> None:
        """Take one step, given the scores of all words, (B, 1, V); writes into itself and the state."""
        z = precise(logits)
        tokens = self._drawn(z) if self.decoding.sample else top(z, 1)[1][..., 0]
        tokens = torch.where((state.position + 1 >= self.limits)[:, None], self.end, tokens)
        gained = z.gather(-1, tokens[..., None])[..., 0] - logsumexp(z)
        alive = self.steps < 0
        self.log_probabilities.add_(torch.where(alive, gained, 0.0))
        self.steps.copy_(torch.where(alive & (tokens == self.end), state.position, self.steps))
        self.done.copy_(self.steps[:, 0] >= 0)
        self.history.write(state.position, tokens, torch.zeros_like(tokens))
        state.go_on(tokens, None, span)

    def _drawn(self, z: Tensor) -> Tensor:  # (B, 1, V) to (B, 1)
        z = z / self.decoding.temperature
        if self.decoding.top_k is not None:
            least = z.topk(min(self.decoding.top_k, z.shape[-1]), dim=-1).values[..., -1:]
            z = z.masked_fill(z < least, -torch.inf)
        if self.decoding.top_p is not None:
            ordered, index = z.softmax(-1).sort(dim=-1, descending=True)
            beyond = ordered.cumsum(-1) - ordered >= self.decoding.top_p  # what comes before has p already
            z = z.masked_fill(beyond.scatter(-1, index, beyond), -torch.inf)
        drawn = torch.multinomial(z.softmax(-1).flatten(0, 1), 1, generator=self.generator)
        return drawn.view(z.shape[:2])

    def results(self, sources: list[int]) -> list[list[Hypothesis]]:
        """The translation of each of some sources."""
        normalized = self.log_probabilities / self.penalties[self.steps + 1]
        parts = (normalized, self.log_probabilities, self.steps)
        scores, log_probabilities, steps = (part[sources].tolist() for part in parts)
        words = self.history.traced(sources, [[0]] * len(sources), steps)
        return [
            [Hypothesis(*parts) for parts in zip(*of_source, strict=True)]
            for of_source in zip(words, scores, log_probabilities, strict=True)
        ]
