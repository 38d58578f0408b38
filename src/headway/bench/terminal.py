"""Tables that fit the terminal: where one would be too wide, several that repeat the names of the rows."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

LONGEST_NAME = 34  # of a row; longer ones take several lines


def fitting_tables(
    names: Sequence[str], columns: Sequence[tuple[str, Sequence[str]]], width: int, *, title: str = ""
) -> list[Table]:
    """Lay out columns so that no table is wider than the terminal and no header or cell is cut.

    Args:
        names: of the rows.
        columns: a header and a cell for each row; both may have several lines.
        title: of the first table.
    """
    first = min(LONGEST_NAME, max(map(text_width, names)))
    groups: list[list[tuple[str, Sequence[str]]]] = []
    room = 0
    for head, cells in columns:
        needed = max(map(text_width, (head, *cells))) + 2  # padding and a divider
        if not groups or room < needed:
            groups.append([])
            room = width - first - 3  # padding of the first column and two edges
        groups[-1].append((head, cells))
        room -= needed
    tables = [_table(names, first, group) for group in groups]
    tables[0].title = Text(title)
    return tables


def text_width(text: str) -> int:
    """Return the width of the longest line on a terminal."""
    return max(map(cell_len, text.splitlines()), default=0)


def _table(names: Sequence[str], first: int, columns: Sequence[tuple[str, Sequence[str]]]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("", overflow="fold", width=first)
    for head, _ in columns:
        table.add_column(Text(head), justify="right", no_wrap=True)
    for name, *cells in zip(names, *(cells for _, cells in columns), strict=True):
        table.add_row(Text(name), *map(Text, cells))
    return table
