"""Pictures in SVG without scripts: bars beside a paper's, scatter plots with named points, and curves of heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot

from markupsafe import Markup, escape

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 60, 130, 16, 48
SMALL = (110, 56)  # width and height of a head's curve
BAR, NAMES, LABELS = 11, 210, 96  # height of a bar; width for names of rows and for the numbers behind bars
LINE, LETTER = 13, 6.6  # height of a line of text, and mean width of a letter
STANDALONE = (  # the styles of base.css and study.css that a picture needs outside a page
    "text{font:12px sans-serif;fill:#1b1f24}.title{font-weight:bold}.soft{fill:#545d68}.ours{fill:#0b62a4}"
    ".papers{fill:none;stroke:#c04f00;stroke-width:1.5}.whisker{stroke:#1b1f24}.axis{stroke:#545d68}"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """A row of `bars`: its difference from the baseline.

    Args:
        ours: median, lowest and highest difference; None without results.
        paper: published difference, if there is one.
    """

    name: str
    ours: tuple[float, float, float] | None
    paper: float | None


def bars(title: str, unit: str, rows: Sequence[Bar], digits: int) -> Markup:
    """Draw differences from the baseline as bars from a common zero: ours filled, the paper's outlined below it."""
    values = [0.0, *(value for row in rows for value in (*(row.ours or ()), row.paper) if value is not None)]
    low, high = min(values), max(values)
    left = NAMES + (LABELS if low < 0 else 0)
    scale = (WIDTH - left - LABELS) / ((high - low) or 1.0)
    zero, top, step = left - low * scale, 42, 2 * BAR + 12
    height = top + step * len(rows) + 6
    about = "; filled: ours, outlined: the paper" if any(row.paper is not None for row in rows) else ""
    parts = [
        Markup(
            '<text class="title" x="0" y="14">{}</text><text class="soft" x="0" y="31">{}</text>'
            '<line class="axis" x1="{:.1f}" x2="{:.1f}" y1="{}" y2="{}"/>'
        ).format(title, f"difference from the baseline, {unit}{about}", zero, zero, top - 4, height)
    ]
    described = []
    for number, row in enumerate(rows):
        y = top + number * step
        parts.append(Markup('<text x="{}" y="{}" text-anchor="end">{}</text>').format(NAMES - 8, y + BAR + 4, row.name))
        described.append(row.name)
        if row.ours is not None:
            middle, *ends = (zero + value * scale for value in row.ours)
            text = _signed(row.ours[0], digits)
            parts.append(_bar("ours", zero, middle, (min(ends), max(ends)), y, text))
            parts.append(
                Markup('<line class="whisker" x1="{:.1f}" x2="{:.1f}" y1="{y}" y2="{y}"/>').format(*ends, y=y + BAR / 2)
            )
            described.append(f"ours {text}")
        if row.paper is not None:
            end, text = zero + row.paper * scale, _signed(row.paper, digits)
            parts.append(_bar("papers", zero, end, (end, end), y + BAR + 2, text))
            described.append(f"paper {text}")
    label = f"{title}, difference from the baseline, {unit}: {'; '.join(described)}"
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, height, label, Markup("").join(parts)
    )


def _bar(kind: str, zero: float, end: float, whisker: tuple[float, float], y: float, text: str) -> Markup:
    """Draw a bar from zero to its end, and its number beyond the whisker."""
    left, width = min(zero, end), max(1.0, abs(end - zero))
    after, anchor = (max(left + width, whisker[1]) + 5, "start") if end >= zero else (min(left, whisker[0]) - 5, "end")
    return Markup(
        '<rect class="{}" x="{:.1f}" y="{}" width="{:.1f}" height="{}"/>'
        '<text class="soft" x="{:.1f}" y="{}" text-anchor="{}">{}</text>'
    ).format(kind, left, y, width, BAR, after, y + BAR - 1, anchor, text)


def _signed(value: float, digits: int) -> str:
    return f"{round(value, digits) + 0.0:+.{digits}f}".replace("-", "−")


def stack(pictures: Sequence[Markup]) -> str:
    """Join pictures of `bars` one below another into an SVG file that needs no other styles."""
    height, parts = 0, []
    for picture in pictures:
        own = int(str(picture).split('viewBox="', 1)[1].split('"', 1)[0].split()[3])
        body = str(picture).split(">", 1)[1].rsplit("</svg>", 1)[0]
        parts.append(f'<g transform="translate(0 {height})">{body}</g>')
        height += own + 18
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-8 -4 {WIDTH + 16} {height + 4}" width="{WIDTH + 16}">'
    return f"{head}<style>{STANDALONE}</style>{''.join(parts)}</svg>\n"


def scatter(
    points: Sequence[tuple[str, float, float]],
    *,
    x_label: str,
    y_label: str,
    arrows: Sequence[tuple[str, str]] = (),
) -> Markup:
    """Draw named points, and arrows between some of them.

    A name stands right of its point, or left of it where it would not fit; one that fits on neither side is shortened.
    Names that would overlap are moved apart.
    """
    xs, ys = _range([x for _, x, _ in points]), _range([y for _, _, y in points])

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - xs[0]) / (xs[1] - xs[0]) * (WIDTH - LEFT - RIGHT)
        return across, HEIGHT - BOTTOM - (y - ys[0]) / (ys[1] - ys[0]) * (HEIGHT - TOP - BOTTOM)

    parts = [_axes(xs, ys, place, x_label, y_label)]
    at = {name: place(x, y) for name, x, y in points}
    parts += [_arrow(at[first], at[second]) for first, second in arrows]
    taken: list[tuple[float, float, float]] = []  # left and right end, and height, of the names that are placed
    for name, x, y in sorted(points, key=lambda point: -point[2]):
        across, down = place(x, y)
        start, anchor, shown = _place_name(name, across)
        width = LETTER * len(shown)
        left = start if anchor == "start" else start - width
        line = down + 4
        while any(abs(line - other) < LINE and left < end and begin < left + width for begin, end, other in taken):
            line += LINE
        taken.append((left, left + width, line))
        parts.append(
            Markup(
                '<circle class="dots s1" cx="{:.1f}" cy="{:.1f}" r="4"/>'
                '<text x="{:.1f}" y="{:.1f}" text-anchor="{}"><title>{}</title>{}</text>'
            ).format(across, down, start, line, anchor, name, shown)
        )
    label = escape(f"{y_label} against {x_label}: {'; '.join(f'{n} {y:.1f} at {x:.2f}' for n, x, y in points)}")
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, HEIGHT, label, Markup("").join(parts)
    )


def _place_name(name: str, across: float) -> tuple[float, str, str]:
    """Return where the name of a point begins or ends, which of the two (text-anchor), and as much of it as fits."""
    right, left = WIDTH - across - 8, across - 8 - LEFT
    on_right = LETTER * len(name) <= right or right >= left
    letters = int((right if on_right else left) / LETTER)
    shown = name if len(name) <= letters else f"…{name[1 - letters :]}"  # names of models differ at their ends
    return (across + 8, "start", shown) if on_right else (across - 8, "end", shown)


def _arrow(start: tuple[float, float], end: tuple[float, float]) -> Markup:
    """Draw an arrow that ends just before a point."""
    (x, y), length = (end[0] - start[0], end[1] - start[1]), hypot(end[0] - start[0], end[1] - start[1]) or 1.0
    x, y = x / length, y / length
    tip, back = (end[0] - 6 * x, end[1] - 6 * y), (end[0] - 14 * x, end[1] - 14 * y)
    return Markup(
        '<path class="arrow" d="M{:.1f} {:.1f}L{:.1f} {:.1f}M{:.1f} {:.1f}L{:.1f} {:.1f}L{:.1f} {:.1f}"/>'
    ).format(*start, *tip, back[0] - 4 * y, back[1] + 4 * x, *tip, back[0] + 4 * y, back[1] - 4 * x)


def _axes(xs, ys, place, x_label: str, y_label: str) -> Markup:  # type: ignore[no-untyped-def]
    lines = []
    for step in range(5):
        x, y = (low + step / 4 * (high - low) for low, high in (xs, ys))
        across, down = place(x, y)
        lines.append(
            Markup(
                '<line class="gridline" x1="{0}" x2="{1}" y1="{2:.1f}" y2="{2:.1f}"/>'
                '<text x="{3}" y="{4:.1f}" text-anchor="end">{5:.3g}</text>'
                '<text x="{6:.1f}" y="{7}" text-anchor="middle">{8:.3g}</text>'
            ).format(LEFT, WIDTH - RIGHT, down, LEFT - 6, down + 4, y, across, HEIGHT - BOTTOM + 18, x)
        )
    lines.append(
        Markup(
            '<text class="axis-label" x="{}" y="{}" text-anchor="middle">{}</text>'
            '<text class="axis-label" x="16" y="{}" text-anchor="middle" transform="rotate(-90 16 {})">{}</text>'
        ).format((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x_label, HEIGHT / 2, HEIGHT / 2, y_label)
    )
    return Markup("").join(lines)


def head_curve(offsets: Sequence[int], values: Sequence[float], name: str) -> Markup:
    """Draw one head's position score by offset, in its own range, with a dashed line at offset 0."""
    low, high = _range(values)
    width, height = SMALL
    span = (offsets[-1] - offsets[0]) or 1
    points = " ".join(
        f"{(offset - offsets[0]) / span * width:.1f},{(high - value) / (high - low) * (height - 4) + 2:.1f}"
        for offset, value in zip(offsets, values, strict=True)
    )
    zero = -offsets[0] / span * width
    top = offsets[max(range(len(values)), key=lambda at: values[at])]
    label = f"{name}: highest at offset {top}, from {low:.2f} to {high:.2f}"
    return Markup(
        '<svg class="head" viewBox="0 0 {} {}" role="img" aria-label="{}"><title>{}</title>'
        '<line class="cross" x1="{:.1f}" x2="{:.1f}" y1="0" y2="{}"/><polyline class="line s1" points="{}"/></svg>'
    ).format(width, height, label, label, zero, zero, height, points)


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    pad = (high - low) * 0.06 or abs(high) * 0.06 or 1.0
    return low - pad, high + pad
