"""One step after another: run as written, or, on a GPU, captured once as a graph and replayed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from headway.models.translation.beam import BeamSearch
from headway.models.translation.cache import DecoderState
from headway.models.translation.linear import of_few
from headway.models.translation.paths import Paths
from headway.models.translation.step import Step

if TYPE_CHECKING:
    from headway.models.translation.model import TranslationModel


class Stepper:
    """Takes the hypotheses of one state a word further, each time it is called.

    A step is some hundreds of small kernels, and starting them takes a GPU's host longer than running them. All a step
    reads and writes lies in the buffers of `state` and `search`, so that a graph of one step is one of all. The first
    call runs as written, the second captures; that costs about two steps, for each size of the buffers.
    """

    def __init__(self, model: TranslationModel, state: DecoderState, search: BeamSearch | Paths) -> None:
        self.model, self.state, self.search = model, state, search
        device = state.tokens.device.type
        # Under autocast a graph would keep copies of the weights that autocast gives up; random draws need their seed.
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
        x = self.model.encoder.embedded(self.state.tokens)
        x = Step(self.model.decoder, self.state, span).run(x)
        self.search.choose(of_few(self.model.output, x), self.state, span)
