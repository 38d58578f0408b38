"""Which sentence of a minimal pair a masked-word encoder finds likelier, by pseudo-likelihood; nothing is trained.

Papers:   Salazar et al. (2020), "Masked Language Model Scoring", Sec. 2, Eq. (1), and Sec. 4.2 on BLiMP;
          Warstadt et al. (2020), "BLiMP", Sec. 4: a pair is right if the acceptable sentence has the higher score
Formula:  PLL(W) = sum over t of log p(w_t | W without w_t)
Symbols:  W -> tokens of a sentence, special tokens not among the w_t, which are masked one at a time
Departs:  a tie counts half
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.bench.data.transfer.minimal_pairs import MinimalPair, read_minimal_pairs
from headway.bench.statistics import share_interval
from headway.bench.tasks.finetune.model import position_limit
from headway.pretrained.conversion.samples import check_known

TOKENS = {"cuda": 1 << 16, "cpu": 1 << 12}  # of a forward pass
SENTENCES = 1000  # scored between two reports of progress, and kept on the host at once


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """How many pairs are right, with a 95 % interval over pairs, which says nothing about other pretrainings."""

    accuracy: float
    low: float
    high: float
    pairs: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PairScores:
    """The shares of a set of pairs: of all, of each phenomenon and of each paradigm.

    Args:
        ties: number of pairs whose sentences have the same score, which count half.
        unknown: share of the tokens that the tokenizer does not know.
    """

    all: Share
    phenomena: Mapping[str, Share]
    paradigms: Mapping[str, Share]
    ties: int
    unknown: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def score_pairs(
    model: Any,
    tokenizer: Any,
    source: str,
    *,
    tokens: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> PairScores:
    """Score BLiMP, or pairs of the built-in language, with an encoder that predicts masked words.

    Args:
        model: one of ours or of transformers, on its device.
        source: BLiMP's folder, or builtin[:PAIRS].
        tokens: number of tokens in a forward pass; by default that of `TOKENS` for its device.
        progress: called with the number of sentences that are done, and of all.
    """
    pairs = read_minimal_pairs(source)
    sentences = list(dict.fromkeys(text for pair in pairs for text in (pair.good, pair.bad)))
    encoded = tokenise(model, tokenizer, sentences)
    found = pseudo_log_likelihoods(model, tokenizer, encoded, tokens=tokens, progress=progress)
    score = dict(zip(sentences, found.tolist(), strict=True))
    right = [_right(score[pair.good], score[pair.bad]) for pair in pairs]
    words = [token for sentence in encoded for token in sentence]
    return PairScores(
        all=_share(right),
        phenomena=_shares(pairs, right, lambda pair: pair.phenomenon),
        paradigms=_shares(pairs, right, lambda pair: pair.paradigm),
        ties=right.count(0.5),
        unknown=words.count(tokenizer.unk_token_id) / len(words),
    )


def tokenise(model: Any, tokenizer: Any, sentences: Sequence[str]) -> list[list[int]]:
    """Return the tokens of each sentence with special tokens around them; raise for what the model cannot read."""
    if tokenizer.mask_token_id is None:
        raise ValueError("tokenizer: expected one with a mask token, got none. Name an encoder that predicts words.")
    encoded: list[list[int]] = tokenizer(list(sentences), verbose=False)["input_ids"]
    around = tokenizer.num_special_tokens_to_add()
    longest, most = max(map(len, encoded)), position_limit(model.config)
    if longest > most:
        raise ValueError(
            f"model: it has {most} positions, and a sentence has {longest} tokens. Name a model for longer texts."
        )
    empty = next((text for text, row in zip(sentences, encoded, strict=True) if len(row) <= around), None)
    if empty is not None:
        raise ValueError(f"tokenizer: expected tokens of the sentence {empty!r}, got none.")
    check_known(torch.tensor([max(map(max, encoded))]), model)
    return encoded


@torch.no_grad()
def pseudo_log_likelihoods(
    model: Any,
    tokenizer: Any,
    encoded: Sequence[Sequence[int]],
    *,
    tokens: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> NDArray[np.float64]:  # (N,)
    """Return the pseudo-log-likelihood of each sentence, in nats.

    A forward pass has sentences of one length, so that nothing is padded; sums are taken in float64.
    """
    tokens = tokens or TOKENS[model.device.type]
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    scores = np.zeros(len(encoded))
    lengths = np.array([len(row) for row in encoded])
    done, was_training = 0, model.training
    model.eval()
    try:
        for length in np.unique(lengths):
            alike = np.flatnonzero(lengths == length)
            for chosen in np.array_split(alike, -(-len(alike) // SENTENCES)):
                rows = torch.tensor([encoded[at] for at in chosen])
                owner, place = (~torch.isin(rows, torch.tensor(sorted(special)))).nonzero(as_tuple=True)
                said = _log_probabilities(model, tokenizer.mask_token_id, rows, owner, place, tokens)
                np.add.at(scores, chosen[owner.numpy()], said.double().cpu().numpy())
                done += len(chosen)
                progress(done, len(encoded))
    finally:
        model.train(was_training)
    return scores


def _log_probabilities(
    model: Any, mask: int, rows: Tensor, owner: Tensor, place: Tensor, tokens: int
) -> Tensor:  # (N, L), (M,), (M,) to (M,)
    """Return the log probability of each token, `place` of sentence `owner`, where it alone is masked."""
    ours = "masked_positions" in inspect.signature(model.forward).parameters
    size, parts = max(1, tokens // rows.shape[1]), []
    for start in range(0, len(owner), size):
        some, at = owner[start : start + size], place[start : start + size]
        row = torch.arange(len(some))
        inputs = rows[some]
        words = inputs[row, at].to(model.device)
        inputs[row, at] = mask
        inputs, row, at = (each.to(model.device) for each in (inputs, row, at))
        if ours:
            logits = model(input_ids=inputs, masked_positions=row * inputs.shape[1] + at).logits
        else:
            logits = model(input_ids=inputs, attention_mask=torch.ones_like(inputs)).logits[row, at]
        parts.append(logits.float().log_softmax(-1).gather(1, words[:, None])[:, 0])
    return torch.cat(parts)


def _right(good: float, bad: float) -> float:
    return 0.5 if good == bad else float(good > bad)


def _shares(
    pairs: Sequence[MinimalPair], right: Sequence[float], name: Callable[[MinimalPair], str]
) -> dict[str, Share]:
    groups: dict[str, list[float]] = {}
    for pair, value in zip(pairs, right, strict=True):
        groups.setdefault(name(pair), []).append(value)
    return {each: _share(groups[each]) for each in sorted(groups)}


def _share(right: Sequence[float]) -> Share:
    low, high = share_interval(sum(right), len(right))
    return Share(accuracy=fmean(right), low=low, high=high, pairs=len(right))
