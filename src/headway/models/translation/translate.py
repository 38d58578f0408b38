"""Decoding of a batch: encode once, take steps until every source is done, and drop sources that are done.

On a GPU a step is captured once as a CUDA graph and replayed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headway.models.losses import upcast
from headway.models.translation.cache import INITIAL_CAPACITY, DecoderState, initial_state
from headway.models.translation.decoding import Decoding, Hypothesis
from headway.models.translation.search import BeamSearch, SinglePathSearch
from headway.models.translation.stacks import lengths_of
from headway.models.translation.step import DecoderStep, project_few_rows
from headway.running import evaluation_mode

if TYPE_CHECKING:
    from headway.models.translation.model import TranslationModel

# On a GPU, reading which sources are done waits for the device, and a smaller batch needs a new graph. So this is read
# every few steps, and sources are dropped once half of them are done, unless the batch has so few hypotheses that a
# step on half of them would take as long. On a CPU sources are dropped at once.
CHECK_EVERY = 4
SMALL_BATCH = 256


@torch.no_grad()
def translate(
    model: TranslationModel, input_ids: Tensor, attention_mask: Tensor | None, decoding: Decoding
) -> list[list[Hypothesis]]:
    """Translate each source, (B, L) and padded on the right; return its translations, best first."""
    lengths = _source_lengths(input_ids, attention_mask)
    limits = decoding.limits(lengths, max_target_length(model))
    with evaluation_mode(model):
        memory = model.encoder(input_ids, attention_mask).last_hidden_state
        if decoding.sample:  # every sample is decoded as a source of its own
            memory, lengths, limits = (part.repeat_interleave(decoding.n_best, 0) for part in (memory, lengths, limits))
        state = initial_state(
            model.decoder,
            memory,
            lengths,
            start=model.config.decoder_start,
            paths=decoding.paths,
            capacity=_limited_capacity(INITIAL_CAPACITY, model),
        )
        kind = SinglePathSearch if decoding.sample or decoding.beam == 1 else BeamSearch
        search = kind.start(decoding, limits, end=model.config.eos_token_id, dtype=upcast(memory[:0]).dtype)
        found = _decode(model, state, search)
    if decoding.sample:
        samples = [each[0] for each in found]
        groups = [samples[at : at + decoding.n_best] for at in range(0, len(samples), decoding.n_best)]
        found = [sorted(group, key=lambda hypothesis: -hypothesis.score) for group in groups]
    return found


def _decode(
    model: TranslationModel, state: DecoderState, search: BeamSearch | SinglePathSearch
) -> list[list[Hypothesis]]:
    """Take steps until all sources are done; return their translations in the order of the sources."""
    found: dict[int, list[Hypothesis]] = {}
    left = list(range(len(search.limits)))  # the sources that are still in the batch
    longest = len(search.history.tokens)
    on_cpu = search.done.device.type == "cpu"
    step = StepRunner(model, state, search)
    position = 0
    while left:
        if position == state.capacity:
            state = state.enlarged(model.decoder, _limited_capacity(2 * state.capacity, model))
            step = StepRunner(model, state, search)
        step(position)
        position += 1
        if position < longest and not on_cpu and position % CHECK_EVERY:
            continue
        done = search.done.tolist()
        if position == longest and not all(done):
            raise FloatingPointError(
                "scores: the model gave NaN, so that the search cannot end. Check its parameters (a diverged run?)."
            )
        finished = [b for b, is_done in enumerate(done) if is_done]
        if not finished or not (
            on_cpu or len(finished) == len(left) or _smaller_batch_pays(len(finished), state.tokens.shape)
        ):
            continue
        found.update(zip((left[b] for b in finished), search.results(finished), strict=True))
        order = order_without(done)
        left = [left[b] for b in order]
        chosen = torch.tensor(order, dtype=torch.long, device=search.done.device)
        state, search = state.select_sources(order), search.select_sources(chosen)
        step = StepRunner(model, state, search)
    return [found[source] for source in range(len(found))]


class StepRunner:
    """Extends all hypotheses of one state by one word at each call, on a GPU by replaying a CUDA graph.

    A step is some hundreds of small kernels, which take the host longer to launch than the GPU to run. A step reads and
    writes only the buffers of `state` and `search`, so that the graph of one step serves all steps. The first call runs
    eagerly and the second captures, which costs about two steps for each size of the buffers.
    """

    def __init__(self, model: TranslationModel, state: DecoderState, search: BeamSearch | SinglePathSearch) -> None:
        self.model, self.state, self.search = model, state, search
        device = state.tokens.device.type
        # Under autocast a graph would use cached copies of weights that autocast frees; sampling needs its generator.
        self.captures = device == "cuda" and not torch.is_autocast_enabled(device) and not search.random
        self.graph: torch.cuda.CUDAGraph | None = None
        self.warm = False

    def __call__(self, position: int) -> None:
        if not self.captures:
            self._step(span=position + 1)
        elif not self.warm:
            self._step(span=self.state.capacity)
            self.warm = True
        else:
            if self.graph is None:
                self.graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                    self._step(span=self.state.capacity)
            self.graph.replay()

    def _step(self, span: int) -> None:
        x = self.model.encoder.embed_words(self.state.tokens)
        x = DecoderStep(self.model.decoder, self.state, span).run(x)
        self.search.choose(project_few_rows(self.model.output, x), self.state, span)


def order_without(done: list[bool]) -> list[int]:
    """Return the sources that are not done, in an order that moves few: the last ones fill the freed places."""
    stay = [b for b, is_done in enumerate(done) if not is_done]
    last = stay[:]
    return [place if not is_done else last.pop() for place, is_done in enumerate(done[: len(stay)])]


def _smaller_batch_pays(finished: int, shape: torch.Size) -> bool:  # (B, K)
    """Return whether a GPU gains by a batch without this number of sources."""
    batch, paths = shape
    return 2 * finished >= batch and batch * paths > SMALL_BATCH


def max_target_length(model: TranslationModel) -> int | None:
    """Return the maximum number of target tokens, or None if no encoding of the decoder has a limit."""
    encodings = [model.decoder.encoding, model.decoder.cross_encoding]
    limited = [encoding.dims.max_length for encoding in encodings if encoding is not None and not encoding.extends]
    return min(limited, default=None)


def _limited_capacity(wanted: int, model: TranslationModel) -> int:
    longest = max_target_length(model)
    return wanted if longest is None else min(wanted, longest)


def _source_lengths(input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
    if input_ids.dim() != 2 or 0 in input_ids.shape:
        raise ValueError(f"input_ids: expected (B, L), neither empty, got {tuple(input_ids.shape)}.")
    lengths = lengths_of(attention_mask, input_ids.shape)
    if lengths is None:
        return torch.full((input_ids.shape[0],), input_ids.shape[1], device=input_ids.device)
    if bool((lengths == 0).any()):
        raise ValueError("attention_mask: expected at least one word in each source, got a row of zeros.")
    return lengths
