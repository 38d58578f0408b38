"""Pictures in SVG that need no script: cost against quality, and the curve of every head."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup, escape

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 60, 130, 16, 48
SMALL = (110, 56)  # of a head's curve


def scatter(points: Sequence[tuple[str, float, float]], *, x_label: str, y_label: str) -> Markup:
    """Draw named points; names that would overlap are moved apart."""
    xs, ys = _range([x for _, x, _ in points]), _range([y for _, _, y in points])

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - xs[0]) / (xs[1] - xs[0]) * (WIDTH - LEFT - RIGHT)
        return across, HEIGHT - BOTTOM - (y - ys[0]) / (ys[1] - ys[0]) * (HEIGHT - TOP - BOTTOM)

    parts = [_axes(xs, ys, place, x_label, y_label)]
    taken: list[tuple[float, float]] = []
    for name, x, y in sorted(points, key=lambda point: -point[2]):
        across, down = place(x, y)
        line = down + 4
        while any(abs(line - other) < 13 and abs(across - beside) < 90 for beside, other in taken):
            line += 13
        taken.append((across, line))
        parts.append(
            Markup(
                '<circle class="dots s1" cx="{:.1f}" cy="{:.1f}" r="4"/><text x="{:.1f}" y="{:.1f}">{}</text>'
            ).format(across, down, across + 8, line, name)
        )
    label = escape(f"{y_label} against {x_label}: {'; '.join(f'{n} {y:.1f} at {x:.2f}' for n, x, y in points)}")
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, HEIGHT, label, Markup("").join(parts)
    )


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
    """Draw one head's position score by offset, in its own range; the dashed line is offset 0."""
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
