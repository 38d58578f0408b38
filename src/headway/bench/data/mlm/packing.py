"""From the sentences of documents to sequences of tokens: whole sentences up to a length, or full rows.

A *text* is [CLS] tokens [SEP], with tokens of one document. A *row* is one input sequence of the model: one text, or
several in packed rows, where a new text begins at each [CLS].
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence

# A full stop and closing quotes, before white space and no small Latin letter ("e.g. the"). "Dr. Smith" is cut too;
# where sentences end only decides where a text may end, so such an error costs nothing.
_SENTENCE_END = re.compile(r"[.!?।۔؟…][\"'”’»)\]]*(\s+)(?![a-z])")
WIDE_STOPS = "。！？"  # end sentences without white space after them
SHORTEST_START = 8  # minimum number of tokens of a document to begin with at the end of a packed row


def sentences(line: str) -> Iterator[str]:
    """Yield the sentences of a line, which is cut at white space."""
    start = 0
    for end in _SENTENCE_END.finditer(line):
        yield line[start : end.start(1)]
        start = end.end()
    if start < len(line):
        yield line[start:]


def after_stops(tokens: Sequence[int], stops: Collection[int]) -> Iterator[Sequence[int]]:
    """Yield parts of the tokens, cut after each token that ends a sentence without white space."""
    start = 0
    for index, token in enumerate(tokens, start=1):
        if token in stops:
            yield tokens[start:index]
            start = index
    if start < len(tokens):
        yield tokens[start:]


def whole_sentences(document: Iterable[Sequence[int]], room: int) -> Iterator[list[int]]:
    """Yield texts of as many whole sentences of one document as fit into `room` tokens.

    A sentence longer than that is cut where the text is full.

    Paper:    Liu et al. (2019), "RoBERTa", Sec. 4.2, DOC-SENTENCES
    """
    text: list[int] = []
    for sentence in document:
        rest = sentence
        while len(rest) > room:
            cut = room - len(text)
            yield [*text, *rest[:cut]]
            text, rest = [], rest[cut:]
        if len(text) + len(rest) > room:
            yield text
            text = []
        text += rest
    if text:
        yield text


class FullRows:
    """Rows without padding: every document begins where the one before it ended, and is cut where the row is full.

    A text adds [CLS] and [SEP] to the tokens of its document; an end of a row that has room for only a few tokens stays
    free. Documents must be added in order; `flush` yields the last row.
    """

    def __init__(self, length: int, cls: int, sep: int) -> None:
        self.length, self.cls, self.sep = length, cls, sep
        self._row: list[int] = []

    def add(self, document: Iterable[Sequence[int]]) -> Iterator[list[int]]:
        """Yield the rows that this document completes."""
        tokens = [token for sentence in document for token in sentence]
        start = 0
        while start < len(tokens):
            room = self.length - len(self._row) - 2
            if room < min(len(tokens) - start, SHORTEST_START) and self._row:
                yield from self.flush()
                continue
            self._row += [self.cls, *tokens[start : start + room], self.sep]
            start += room

    def flush(self) -> Iterator[list[int]]:
        """Yield the row that is not complete, if there is one."""
        if self._row:
            yield self._row
            self._row = []
