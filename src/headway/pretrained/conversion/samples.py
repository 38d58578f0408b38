"""Rows of tokens, all of one length, such as a model reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

FEWEST = 16  # tokens that texts must have, all together
SHORTEST = 3  # tokens of a row


def texts_by_themselves(
    tokenizer: Any, texts: Sequence[str], length: int, count: int
) -> tuple[Tensor, Tensor]:  # ids and mask, (N, L) both
    """Each text in a row of its own, padded; longer ones are cut into several. At most `count`, spread over all."""
    pieces = []
    for ids in _tokens(tokenizer, texts, length):
        pieces += [ids[start : start + length - 2] for start in range(0, len(ids), length - 2)]
    chosen = torch.linspace(0, len(pieces) - 1, min(count, len(pieces))).long().tolist()
    first, last = special_ids(tokenizer)
    rows = [[first, *pieces[n], last] for n in chosen]
    longest = max(len(row) for row in rows)
    pad = tokenizer.pad_token_id or 0  # masked: any token would do
    padded = torch.tensor([row + [pad] * (longest - len(row)) for row in rows])
    return padded, torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])


def rows_of_text(
    tokenizer: Any, texts: Sequence[str], length: int, count: int, *, overlapping: bool = False
) -> Tensor:  # (N, L)
    """Texts joined and cut into rows, each between the special tokens; at most `count`, spread over all of the text.

    Where the texts are shorter than one row, rows are shorter. Rows of a short text may overlap, if that is asked for:
    they then have other words at each position.
    """
    stream = [token for piece in _tokens(tokenizer, texts, length) for token in piece]
    first, last = special_ids(tokenizer)
    inside = min(length - 2, len(stream))
    most = len(stream) - inside + 1 if overlapping else len(stream) // inside
    starts = torch.linspace(0, len(stream) - inside, min(count, max(1, most))).long().tolist()
    return torch.tensor([[first, *stream[start : start + inside], last] for start in starts])


def rows_of_words(vocabulary: int, tokenizer: Any, length: int, count: int, seed: int) -> Tensor:  # (N, L)
    """Words drawn at random, each as likely as any other, between the special tokens; without these and from the whole
    vocabulary where no tokenizer is known."""
    draw = torch.Generator().manual_seed(seed)
    if tokenizer is None:
        return torch.randint(vocabulary, (count, length), generator=draw)
    special = set(tokenizer.all_special_ids)
    words = torch.tensor([token for token in range(min(vocabulary, len(tokenizer))) if token not in special])
    rows = words[torch.randint(len(words), (count, length), generator=draw)]
    rows[:, 0], rows[:, -1] = special_ids(tokenizer)
    return rows


def check_known(rows: Tensor, model: Any) -> None:
    """Raise for rows with ids that the model has no words for."""
    words, highest = model.get_input_embeddings().num_embeddings, int(rows.max())
    if highest >= words:
        raise ValueError(
            f"tokenizer: expected ids below {words} (the model's words), got {highest}. "
            f"Give the tokenizer the model was trained with."
        )


def special_ids(tokenizer: Any) -> tuple[int, int]:
    """What begins and ends a text."""
    first = tokenizer.cls_token_id if tokenizer.cls_token_id is not None else tokenizer.bos_token_id
    last = tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id
    if first is None or last is None:
        raise ValueError(
            f"tokenizer: expected one with tokens that begin and end a text, got {type(tokenizer).__name__}."
        )
    return first, last


def _tokens(tokenizer: Any, texts: Sequence[str], length: int) -> list[list[int]]:
    """Each text's tokens, texts without any left out; for rows of `length` tokens."""
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
        raise ValueError(f"texts: expected at least {FEWEST} tokens of text, got {count}.")
    return [ids for ids in found if ids]
