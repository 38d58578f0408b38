"""Rows of tokens to measure models on: from texts or drawn at random, whole or with words masked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

FEWEST = 16  # tokens that texts must have, all together
SHORTEST = 3  # tokens of a row
MASKED = 0.15  # share of words (Devlin et al. 2019, Sec. 3.1); all of them become [MASK]: nothing is drawn twice
IGNORED = -100  # label of words that are not predicted


def separate_texts(
    tokenizer: Any, texts: Sequence[str], length: int, count: int
) -> tuple[Tensor, Tensor]:  # ids and mask, (N, L) both
    """Put each text in a padded row of its own, longer ones in several; at most `count` rows, spread over all texts."""
    pieces = []
    for ids in _tokenize(tokenizer, texts, length):
        pieces += [ids[start : start + length - 2] for start in range(0, len(ids), length - 2)]
    chosen = torch.linspace(0, len(pieces) - 1, min(count, len(pieces))).long().tolist()
    first, last = special_ids(tokenizer)
    rows = [[first, *pieces[n], last] for n in chosen]
    longest = max(len(row) for row in rows)
    pad = tokenizer.pad_token_id or 0  # masked: any token would do
    padded = torch.tensor([row + [pad] * (longest - len(row)) for row in rows])
    return padded, torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])


def join_texts(
    tokenizer: Any, texts: Sequence[str], length: int, count: int, *, overlapping: bool = False
) -> Tensor:  # (N, L)
    """Join texts and cut them into rows between the special tokens; at most `count` rows, spread over all of the text.

    Where the texts are shorter than one row, rows are shorter. With `overlapping`, rows of a short text overlap, so
    that they have other words at each position.
    """
    stream = [token for piece in _tokenize(tokenizer, texts, length) for token in piece]
    first, last = special_ids(tokenizer)
    inside = min(length - 2, len(stream))
    most = len(stream) - inside + 1 if overlapping else len(stream) // inside
    starts = torch.linspace(0, len(stream) - inside, min(count, max(1, most))).long().tolist()
    return torch.tensor([[first, *stream[start : start + inside], last] for start in starts])


def draw_words(vocabulary: int, tokenizer: Any, length: int, count: int, seed: int) -> Tensor:  # (N, L)
    """Draw words at random, each as likely as any other, between the special tokens.

    Without a tokenizer there are no special tokens, and words come from the whole vocabulary.
    """
    draw = torch.Generator().manual_seed(seed)
    if tokenizer is None:
        return torch.randint(vocabulary, (count, length), generator=draw)
    special = set(tokenizer.all_special_ids)
    words = torch.tensor([token for token in range(min(vocabulary, len(tokenizer))) if token not in special])
    rows = words[torch.randint(len(words), (count, length), generator=draw)]
    rows[:, 0], rows[:, -1] = special_ids(tokenizer)
    return rows


def mask_words(
    rows: Tensor, tokenizer: Any, seed: int, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:  # (N, L), all: inputs and labels
    """Mask words, at least one in each row; labels are these words, and -100 elsewhere.

    Special tokens and padding, where `mask` is 0, are never masked.
    """
    if tokenizer.mask_token_id is None:
        raise ValueError(
            "tokenizer: expected one with a mask token, got none. Loss on masked words cannot be measured."
        )
    draw = torch.rand(rows.shape, generator=torch.Generator().manual_seed(seed))
    special = torch.isin(rows, torch.tensor(tokenizer.all_special_ids))
    if mask is not None:
        special = special | (mask == 0)
    draw = draw.masked_fill(special, 2.0)
    chosen = (draw < MASKED) | ((draw == draw.min(1, keepdim=True).values) & ~special)
    if not chosen.any():
        raise ValueError("texts: expected words that the tokenizer knows, got none. Give text in the model's language.")
    return rows.masked_fill(chosen, tokenizer.mask_token_id), rows.masked_fill(~chosen, IGNORED)


def check_known(rows: Tensor, model: Any) -> None:
    """Raise for rows with ids that the model has no words for."""
    words, highest = model.get_input_embeddings().num_embeddings, int(rows.max())
    if highest >= words:
        raise ValueError(
            f"tokenizer: expected ids below {words} (the model's words), got {highest}. "
            f"Give the tokenizer the model was trained with."
        )


def special_ids(tokenizer: Any) -> tuple[int, int]:
    """Return the ids of the tokens that begin and end a text."""
    first = tokenizer.cls_token_id if tokenizer.cls_token_id is not None else tokenizer.bos_token_id
    last = tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id
    if first is None or last is None:
        raise ValueError(
            f"tokenizer: {type(tokenizer).__name__} has no tokens that begin and end a text ([CLS] and [SEP], or BOS "
            f"and EOS). Give the tokenizer the model was trained with."
        )
    return first, last


def _tokenize(tokenizer: Any, texts: Sequence[str], length: int) -> list[list[int]]:
    """Return each text's tokens, empty texts left out; raise for too few tokens, or rows too short for them."""
    if isinstance(texts, str):
        raise TypeError("texts: expected a list of texts, got one string. Put it in a list.")
    if length < SHORTEST:
        raise ValueError(
            f"length: expected at least {SHORTEST} tokens in a row, of which two are special, got {length}. Leave "
            f"texts out for a model with so few positions."
        )
    found = tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"] if texts else []
    count = sum(len(ids) for ids in found)
    if count < FEWEST:
        raise ValueError(f"texts: expected at least {FEWEST} tokens of text, got {count}. Give more text.")
    return [ids for ids in found if ids]
