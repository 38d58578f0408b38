"""The skeleton of every page: one HTML file with its styles, scripts and data inside.

A page's template extends `base.html.jinja`. What users and models named is escaped; a content security policy in the
page forbids every request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from headway.storage import atomic_path

TEMPLATES = files("headway.bench.report") / "templates"


def write_page(
    path: Path,
    template: str,
    *,
    styles: Sequence[str] = (),
    scripts: Sequence[str] = (),
    data: Mapping[str, Any] | None = None,
    **context: Any,
) -> Path:
    """Render a template and write the page, at once or not at all.

    Args:
        template: its name in `templates/`.
        styles: files of `templates/styles/` that follow base.css.
        scripts: files of `templates/scripts/`, joined in this order into one module.
        data: values for scripts, each in an element of its own: `readJson("name")`.
        context: values for the template.
    """
    text = (
        _environment()
        .get_template(template)
        .render(
            styles=_joined("styles", ["base.css", *styles]),
            scripts=_joined("scripts", scripts),
            data={name: script_json(value) for name, value in (data or {}).items()},
            **context,
        )
    )
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def script_json(value: Any) -> Markup:
    """Write JSON that cannot end the script element in which it stands."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))


def number(value: float | None, digits: int = 3) -> str:
    """Write a number with a true minus sign; a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}f}".replace("-", "−")


def percent(value: float | None) -> str:
    """Write a share in per cent, and never round it up to 100 or down to 0."""
    if value is None:
        return "–"
    if 0.0 < value < 0.005:
        return "under 1 %"
    if 0.995 <= value < 1.0:
        return "over 99 %"
    return f"{value:.0%}".replace("%", " %")


def symbols(text: str) -> Markup:
    """Escape text, and write the papers' symbols with subscripts, such as F_P."""
    return Markup(re.sub(r"\b([A-Z])_([A-Z])(?![A-Za-z])", r"\1<sub>\2</sub>", str(escape(text))))


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("headway.bench.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number, percent=percent, symbols=symbols)
    return environment


def _joined(folder: str, names: Sequence[str]) -> Markup:
    return Markup("\n".join((TEMPLATES / folder / name).read_text(encoding="utf-8") for name in names))
