"""Decoding of a batch: encode once, step until every source is done, let sources that are done leave."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headway.models.losses import precise
from headway.models.translation.beam import BeamSearch
from headway.models.translation.cache import FIRST_CAPACITY, DecoderState, first_state
from headway.models.translation.decoding import Decoding
from headway.models.translation.hypothesis import Hypothesis
from headway.models.translation.paths import Paths
from headway.models.translation.sides import lengths_of
from headway.models.translation.stepping import Stepper

if TYPE_CHECKING:
    from headway.models.translation.model import TranslationModel

# On a GPU, looking whether sources are done waits for the device, and a smaller batch wants a new graph: look now and
# then, and let sources leave when they are half of the batch, unless all are so few hypotheses that a step takes as
# long with half of them. On a CPU one that leaves saves its share at once.
LOOK_EVERY = 4
FEW = 256


@torch.no_grad()
def translate(
    model: TranslationModel, input_ids: Tensor, attention_mask: Tensor | None, decoding: Decoding
) -> list[list[Hypothesis]]:
    lengths = _lengths(input_ids, attention_mask)
    limits = decoding.limits(lengths, longest_of(model))
    with evaluating(model):
        memory = model.encoder(input_ids, attention_mask).last_hidden_state
        if decoding.sample:  # each draw goes its own way, as a source of its own
            memory, lengths, limits = (part.repeat_interleave(decoding.n_best, 0) for part in (memory, lengths, limits))
        state = first_state(
            model.decoder,
            memory,
            lengths,
            start=model.config.decoder_start,
            paths=decoding.paths,
            capacity=_capacity(FIRST_CAPACITY, longest_of(model)),
        )
        kind = Paths if decoding.sample or decoding.beam == 1 else BeamSearch
        search = kind.start(decoding, limits, end=model.config.eos_token_id, dtype=precise(memory[:0]).dtype)
        found = _run(model, state, search)
    if decoding.sample:
        drawn = [each[0] for each in found]
        groups = [drawn[at : at + decoding.n_best] for at in range(0, len(drawn), decoding.n_best)]
        found = [sorted(group, key=lambda hypothesis: -hypothesis.score) for group in groups]
    return found


def _run(model: TranslationModel, state: DecoderState, search: BeamSearch | Paths) -> list[list[Hypothesis]]:
    found: dict[int, list[Hypothesis]] = {}
    left = list(range(len(search.limits)))  # which sources are still in the batch
    longest = len(search.history.tokens)
    on_cpu = search.done.device.type == "cpu"
    step = Stepper(model, state, search)
    position = 0
    while left:
        if position == state.capacity:
            state = state.grown(model.decoder, _capacity(2 * state.capacity, longest_of(model)))
            step = Stepper(model, state, search)
        step(position)
        position += 1
        if position < longest and not on_cpu and position % LOOK_EVERY:
            continue
        done = search.done.tolist()
        if position == longest and not all(done):
            raise FloatingPointError("scores: expected numbers, got NaN. Check the parameters (a diverged run?).")
        over = [b for b, is_done in enumerate(done) if is_done]
        if not over or not (on_cpu or len(over) == len(left) or _smaller_pays(len(over), state.tokens.shape)):
            continue
        found.update(zip((left[b] for b in over), search.results(over), strict=True))
        order = closed_up(done)
        left = [left[b] for b in order]
        chosen = torch.tensor(order, dtype=torch.long, device=search.done.device)
        state, search = state.of_sources(order), search.of_sources(chosen)
        step = Stepper(model, state, search)
    return [found[source] for source in range(len(found))]


def closed_up(done: list[bool]) -> list[int]:
    """The sources that stay, those at the end in the places of those that leave: few have to be moved."""
    stay = [b for b, is_done in enumerate(done) if not is_done]
    last = stay[:]
    return [place if not is_done else last.pop() for place, is_done in enumerate(done[: len(stay)])]


def _smaller_pays(over: int, shape: torch.Size) -> bool:  # (B, K)
    """Whether a GPU gains by a batch without these sources."""
    batch, paths = shape
    return 2 * over >= batch and batch * paths > FEW


def longest_of(model: TranslationModel) -> int | None:
    """The most tokens the decoder can see, where its encodings have a limit."""
    encodings = [model.decoder.encoding, model.decoder.cross_encoding]
    limited = [encoding.dims.max_length for encoding in encodings if encoding is not None and not encoding.extends]
    return min(limited, default=None)


def _capacity(wanted: int, longest: int | None) -> int:
    return wanted if longest is None else min(wanted, longest)


def _lengths(input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
    if input_ids.dim() != 2 or 0 in input_ids.shape:
        raise ValueError(f"input_ids: expected (B, L), neither empty, got {tuple(input_ids.shape)}.")
    lengths = lengths_of(attention_mask, input_ids.shape)
    if lengths is None:
        return torch.full((input_ids.shape[0],), input_ids.shape[1], device=input_ids.device)
    if bool((lengths == 0).any()):
        raise ValueError("attention_mask: expected at least one word in each source, got a row of zeros.")
    return lengths


@contextmanager
def evaluating(model: TranslationModel) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:  # others may be meant to stay as they are
            module.training = True
