"""Docstrings have fields (Paper, Formula, Symbols, ...) in columns: kept as they are written, as a block of text."""

from __future__ import annotations

import re
from typing import Any

import griffe

BRACKET = re.compile(r"([\[\]])(?![^`]*`(?:[^`]*`[^`]*`)*[^`]*$)")  # outside code
FIELD = re.compile(r"^(Paper|Formula|Symbols|Departs|Yields|Checked): +\S")


def fenced(text: str) -> str:
    """The lines from the first field to the next blank line, fenced; brackets elsewhere, as of [CLS], link nowhere."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        if not inside and FIELD.match(line):
            lines.append("```text")
            inside = True
        elif inside and not line.strip():
            lines.append("```")
            inside = False
        lines.append(line if inside else BRACKET.sub(r"\\\1", line))
    return "\n".join([*lines, "```"] if inside else lines)


class Fields(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None and "```" not in obj.docstring.value:
            obj.docstring.value = fenced(obj.docstring.value)
