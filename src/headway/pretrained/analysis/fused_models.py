"""Scores of models that `headway.fuse` takes, recorded while they run.

`fuse` knows what each family adds to its scores. A fused model hands queries, keys and that bias to headway's
attention, where they are recorded; where a family keeps its projections need not be known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headway.bias import Bias, LowRank
from headway.pretrained.analysis.anatomy import checked_length
from headway.pretrained.analysis.matrices import Array, to_array
from headway.pretrained.analysis.scores import Scores, added
from headway.pretrained.fusing.interface import Call, recording
from headway.pretrained.fusing.surgery import RECORD, fuse, unfuse
from headway.running import evaluation_mode

POSITIONS = (".position_embeddings", ".position_embedding")  # how names of tables that are added to the input end
CARRIED = "carried"  # name of this formula of F_P: average words enter the first layer, and the model runs


@dataclass(frozen=True, eq=False)
class FusedModel:
    """A model of text that can be fused, or the encoder of one, and what limits the texts it takes."""

    model_type: str
    model: PreTrainedModel  # what fuse is given
    stack: PreTrainedModel  # what runs on a text
    positions: Array | None  # (L, W), the table added to the input
    limit: int | None  # the longest sequence
    words: int  # size of the vocabulary

    @property
    def takes_segments(self) -> bool:
        return self._takes("token_type_ids")

    def length(self, asked: int | None) -> int:
        """Return the number of positions to analyse: 512, or all that the model has, unless asked otherwise."""
        return checked_length(asked, usual=min(512, self.limit or 512), limit=self.limit)

    def position_scores(self, asked: int | None = None) -> list[Scores]:
        """Return the scores of each layer for a text of average words: F_P of what arrives there.

        Where layers see a window alone, all positions lie inside it, unless more are asked for.
        """
        length = self.length(asked)
        calls = self._run_average_words(length)
        window = min(_window(call) for call in calls)
        if window < length:
            if asked is not None:
                raise ValueError(
                    f"positions: expected at most {window}, because layers of {self.model_type} see a window in which "
                    f"no more positions see one another, got {asked}."
                )
            calls = self._run_average_words(window)
        return _scores(self.model_type, calls)

    def text_scores(self, ids: Array, segments: Array | None = None) -> dict[str, list[Array]]:
        """Return matrices of the scores of a text, as `scores.text_scores` does.

        Words and positions are told apart where the model adds a bias to its scores.
        """
        inputs = {"input_ids": ids} if segments is None else {"input_ids": ids, "token_type_ids": segments}
        calls = self._run(
            **{name: torch.as_tensor(each, device=self.model.device)[None] for name, each in inputs.items()}
        )
        window, length = min(_window(call) for call in calls), len(ids)
        if window < length:
            raise ValueError(
                f"text_length: expected at most {window}, because layers of {self.model_type} see a window in which no "
                f"more tokens see one another, got {length}."
            )
        layers = _scores(self.model_type, calls)
        found = {"whole": [each.matrices() for each in layers]}
        if any(each.bias is not None for each in layers):
            found["words"] = [each.scale * np.matmul(each.queries, each.keys.transpose(0, 2, 1)) for each in layers]
            found["positions"] = [added(each) for each in layers]
        return found

    def _run_average_words(self, length: int) -> list[Call]:
        """Run a text whose words all become the average one, where the model looks them up."""
        embeddings, device = self.stack.get_input_embeddings(), self.model.device
        with torch.no_grad():
            mean = embeddings(torch.arange(self.words, device=device)).double().mean(0)
        word = 1 if getattr(self.model.config, "pad_token_id", None) == 0 else 0  # any one that is no padding
        hook = embeddings.register_forward_hook(
            lambda module, ids, found: mean.to(found.dtype).repeat(*ids[0].shape, 1)
        )
        try:
            return self._run(input_ids=torch.full((1, length), word, device=device))
        finally:
            hook.remove()

    def _run(self, **inputs: Tensor) -> list[Call]:
        if self._takes("bbox"):  # all words at one place of the page: what is left is their order
            dtype = self.model.dtype if self.model_type == "udop" else torch.long  # others count in whole numbers
            inputs["bbox"] = torch.zeros(*inputs["input_ids"].shape, 4, dtype=dtype, device=self.model.device)
        fused_before = getattr(self.model, RECORD, None) is not None
        if not fused_before:
            fuse(self.model)
        try:
            with evaluation_mode(self.model), torch.no_grad(), recording() as calls:
                self.stack(**inputs)
        finally:
            if not fused_before:
                unfuse(self.model)
        if not calls:
            raise NotImplementedError(
                f"model: expected layers that compute a score for every query and key, got {self.model_type}, whose "
                f"layers see blocks of keys."
            )
        return calls

    def _takes(self, name: str) -> bool:
        return name in signature(self.stack.forward).parameters


def read_fused(model: Any, *, stack: str) -> FusedModel:
    """Return a model that `fuse` takes as one whose scores can be recorded; raise for one that is not of text."""
    kind = model.config.model_type
    if stack != "encoder":
        raise ValueError(f"stack: expected encoder for {kind}, because only that runs on a text alone, got {stack!r}.")
    part = model.get_encoder() if model.config.is_encoder_decoder else model.base_model
    if "input_ids" not in signature(part.forward).parameters:
        raise NotImplementedError(
            f"model: expected one of text, because positions are measured with average words, got {kind}, whose "
            f"{type(part).__name__} takes {part.main_input_name}."
        )
    table = next((m for name, m in part.named_modules() if name.endswith(POSITIONS)), None)
    positions = None
    if isinstance(table, nn.Embedding):
        first = 0 if table.padding_idx is None else table.padding_idx + 1
        positions = to_array("position_embeddings", table.weight)[first:]
    limit = getattr(model.config, "max_seq_len", None) if positions is None else len(positions)
    words = model.get_input_embeddings().num_embeddings
    return FusedModel(kind, model, part, positions, limit, words)


def _window(call: Call) -> int:
    """Return how many positions all see one another, or, in causal order, those before them."""
    q_len, k_len = call.q.shape[2], call.k.shape[2]
    if call.mask is None or q_len != k_len:
        return k_len
    seen = call.mask.expand(1, call.mask.shape[1], q_len, k_len).all(1)[0]
    allowed = seen | ~torch.ones_like(seen).tril() if _is_causal(call) else seen
    hidden = (~allowed).nonzero()
    return k_len if not len(hidden) else int((hidden[:, 0] - hidden[:, 1]).abs().min())


def _is_causal(call: Call) -> bool:
    """Return whether queries see no key behind them, by the call or by its mask."""
    if call.causal or call.mask is None or call.mask.shape[2] == 1:
        return call.causal
    return not bool(call.mask[0, 0].triu(1).any())


def _scores(kind: str, calls: Sequence[Call]) -> list[Scores]:
    """Return recorded calls as scores in float64; raise where layers cannot stand beside one another."""
    shapes = {(call.q.shape[1], call.q.shape[2], call.k.shape[2]) for call in calls}
    if len(shapes) != 1 or any(queries != keys for _, queries, keys in shapes):
        raise NotImplementedError(
            f"model: expected layers with as many heads, queries and keys each, got {kind} with "
            f"{', '.join('{} x {} x {}'.format(*shape) for shape in sorted(shapes))}."
        )
    return [
        Scores(
            queries=_numbers(call.q),
            keys=_numbers(call.k).repeat(call.q.shape[1] // call.k.shape[1], axis=0),
            scale=call.scale,
            bias=None if call.bias is None else _seen_by_queries(call.bias.detach().to("cpu", torch.float64)),
            causal=_is_causal(call),
        )
        for call in calls
    ]


def _numbers(vectors: Tensor) -> Array:  # (1, H, L, D) to (H, L, D)
    return to_array("queries and keys", vectors[0]).astype(np.float64)


def _seen_by_queries(bias: Bias) -> Bias | None:
    """Return a bias in which keys have numbers relative to that of the query's own position; None for zeros.

    BLOOM, MPT and Falcon add slope * j, which the softmax cannot tell from ALiBi's slope * (j - i) (Press et al. 2022).
    Models that make their own masks add zeros to the keys that are no padding.
    """
    if not isinstance(bias, LowRank) or bias.left.shape[-1] != 1 or not bool((bias.left == 1.0).all()):
        return bias
    numbers = bias.right
    if not bool(numbers.any()):
        return None
    return LowRank(
        torch.cat([torch.ones_like(numbers), -numbers], -1), torch.cat([numbers, torch.ones_like(numbers)], -1)
    )
