"""Translation of text: in batches by length, returned in the order of the lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from headway.bench.data.mlm.packing import sentences, whole_sentences
from headway.bench.data.text.tokenizers import highest_id
from headway.bench.data.translation.batches import cut_batches, padded_widths
from headway.bench.data.translation.vocabulary import Pieces
from headway.bench.tasks.training.checkpoint import without_bar
from headway.models.translation import TranslationConfig, TranslationModel
from headway.storage import read_json

TOKENS = 4096  # maximum number of source tokens in a batch, including padding


@dataclass(frozen=True, slots=True)
class Translation:
    """A translation, its score (the log-probability over the length penalty) and its log-probability."""

    text: str
    score: float
    log_probability: float


class Translator:
    """A model with its tokenizer.

    A line longer than `limit` tokens is translated in parts, which are cut between sentences if possible; `split`
    counts such lines. An empty line gives an empty translation.

    Args:
        limit: maximum number of tokens of a source, the end token included; by default that of the model's training.
        tokens: maximum number of source tokens in a batch, including padding.
    """

    def __init__(
        self,
        model: TranslationModel,
        tokenizer: PreTrainedTokenizerFast,
        *,
        limit: int | None = None,
        tokens: int = TOKENS,
    ) -> None:
        longest = model.config.max_position_embeddings
        if limit is not None and limit < 2:
            raise ValueError(f"limit: expected at least 2 tokens, got {limit}.")
        if limit is not None and limit > longest and not model.encoder.encoding.extends:
            raise ValueError(
                f"limit: expected at most {longest}, all positions that {model.config.encoding} has, got {limit}."
            )
        if tokens < 1:
            raise ValueError(f"tokens: expected at least 1, got {tokens}. A batch has at least one source.")
        if (highest := highest_id(tokenizer)) >= model.config.vocab_size:
            raise ValueError(
                f"tokenizer: expected ids below {model.config.vocab_size} (from the model), got {highest}."
            )
        self.model, self.pieces = model, Pieces(tokenizer)
        self.limit = limit or longest
        self.tokens = max(tokens, int(padded_widths(np.array([self.limit]))[0]))
        self.split = 0

    @classmethod
    def load(cls, folder: str | Path, *, device: str | None = None, **options: Any) -> Translator:
        """Load model and tokenizer from a folder such as model/ of a run; in bfloat16 on a GPU."""
        settings = Path(folder) / "config.json"
        kind = read_json(settings).get("model_type") if settings.is_file() else None
        if kind is None:  # transformers would look for it on the Hub
            inside = Path(folder) / "model"
            hint = f" Did you mean {str(inside)!r}?" if (inside / "config.json").is_file() else ""
            raise FileNotFoundError(f"model: expected a folder such as model/ of a run, got {str(folder)!r}.{hint}")
        if kind != TranslationConfig.model_type:
            raise ValueError(f"model: expected a translation model, got one of type {kind} in {str(folder)!r}.")
        with without_bar():
            model = TranslationModel.from_pretrained(folder).eval()
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        model = model.to(device, torch.bfloat16 if device.startswith("cuda") else torch.float32)
        return cls(model, AutoTokenizer.from_pretrained(folder), **options)

    def translate(self, lines: Sequence[str], **decoding: Any) -> list[list[Translation]]:
        """Return the translations of each line, best first: `n_best`, or fewer if the search finds fewer.

        Args:
            decoding: options of `headway.models.translation.Decoding`, such as beam=4, n_best=1.
        """
        texts = [line.strip() for line in lines]
        parts = [list(self._parts(*both)) for both in zip(texts, self.pieces.encode(texts), strict=True)]
        self.split += sum(len(some) > 1 for some in parts)
        found = iter(self._decode([part for some in parts for part in some], decoding))
        return [_join([next(found) for _ in some]) for some in parts]

    def _parts(self, line: str, tokens: list[int]) -> Iterator[list[int]]:
        """Return the tokens of a line, in parts if it is long; nothing if it is empty."""
        if len(tokens) < self.limit:
            return iter([tokens] if tokens else [])
        return whole_sentences(self.pieces.encode(list(sentences(line))), self.limit - 1)

    @torch.no_grad()
    def _decode(self, sources: list[list[int]], decoding: dict[str, Any]) -> list[list[Translation]]:
        if not sources:
            return []
        found: list[list[Translation]] = [[]] * len(sources)
        order, cuts, _ = cut_batches(np.array([[len(source) + 1 for source in sources]]), self.tokens)
        for start, end in pairwise(cuts):
            chosen = order[start:end].tolist()
            rows = [torch.tensor([*sources[number], self.pieces.eos]) for number in chosen]
            input_ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=self.pieces.pad)
            lengths = torch.tensor([len(row) for row in rows])
            mask = (torch.arange(input_ids.shape[1]) < lengths[:, None]).long()
            device = self.model.device
            best = self.model.translate(input_ids.to(device), mask.to(device), **decoding)
            for number, hypotheses in zip(chosen, best, strict=True):
                found[number] = [
                    Translation(self.pieces.decode(each.tokens), each.score, each.log_probability)
                    for each in hypotheses
                ]
        return found


def _join(parts: list[list[Translation]]) -> list[Translation]:
    """Join the translations of the parts of a line: the best of each, then the second best of each, ..."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return [Translation("", 0.0, 0.0)]
    return [
        Translation(
            " ".join(each.text for each in some), sum(e.score for e in some), sum(e.log_probability for e in some)
        )
        for some in zip(*parts, strict=False)
    ]
