"""Make a page for each encoding from its class: docstring, options, parameters, committed costs, picture, citation."""

from __future__ import annotations

import inspect
import re

import torch
from generate.citations import citations
from generate.costs import cost_section
from generate.pictures import HEAD_DIM, LENGTH, PATTERNS, STEPS, amount, picture

from headway.encodings import ENCODINGS, SHARINGS, encoding, option_names
from headway.encodings.overview import Overview, overview

SIZES = {"num_layers": 12, "num_heads": 12, "head_dim": 64, "max_length": 512}  # BERT-base
METHODS = {"input": "embed", "queries and keys": "rotate", "scores": "bias", "values": "value_bias"}
COLUMN = 10  # where the text of a docstring's fields begins
FIELD = re.compile(r"^(\w+): +(.*)$")


def fields(doc: str) -> tuple[str, dict[str, str], str]:
    """Split a docstring into its summary, fields and remarks."""
    summary, *rest = inspect.cleandoc(doc).split("\n\n")
    found: dict[str, list[str]] = {}
    for line in rest[0].splitlines():
        if match := FIELD.match(line):
            found[match[1]] = [match[2]]
        else:
            list(found.values())[-1].append(line[COLUMN:])
    return summary, {name: "\n".join(lines) for name, lines in found.items()}, "\n\n".join(rest[1:])


def index_page() -> str:
    lines = ["# Encodings", "", "| encoding | acts on | parameters | extends | " + " | ".join(PATTERNS) + " |"]
    lines.append("|---|---|--:|---" + "|--:" * len(PATTERNS) + "|")
    for row in overview(**SIZES):
        r2 = [amount(value).removeprefix("= ") for value in picture(row.name).explained]
        lines.append(
            f"| [{row.name}]({row.name}.md) | {', '.join(row.places) or 'nothing'} | {row.parameters:,} | "
            f"{'yes' if row.extends else 'no'} | {' | '.join(r2)} |"
        )
    lines += [
        "",
        "Parameters are those of BERT-base: 12 layers of 12 heads × 64, 512 positions, default options. The last "
        "columns show what an encoding can express. One layer reads the same word "
        f"{LENGTH} times, so that its tokens differ in position alone, and all its parameters are fitted to three "
        f"patterns of scores. R² is the share of a pattern's variance that they reach (heads are {HEAD_DIM} wide):",
        "",
        "![Three patterns of scores](patterns.svg)",
        "",
        "An encoding of offsets cannot point at the first word. One whose rank is below the length cannot express a "
        "sharp diagonal. A fixed one has the pattern that it has. These are limits of one layer; words and further "
        f"layers add to it. The fits take {STEPS} steps of Adam when this site is built; each page shows its own.",
        "",
        "`sharing` (none, head or layer), `segments` (none, input or per-head) and `segment_sharing` combine with all "
        "names, and names with each other: `learned+tisa`. `headway list` prints the parameters for other sizes.",
    ]
    return "\n".join(lines)


def encoding_page(name: str) -> str:
    kind = ENCODINGS[name]
    row = next(each for each in overview(**SIZES) if each.name == name)
    summary, told, remarks = fields(kind.__doc__ or "")
    parts = [
        f"# {name}",
        f"{summary} Class [`{kind.__name__}`][headway.encodings.{kind.__name__}].",
        "## Formula",
        f"```text\n{told['Formula']}\n```",
        *([f"Symbols: the paper's letters and ours.\n\n```text\n{told['Symbols']}\n```"] if "Symbols" in told else []),
        *([f"**Where it departs from the paper:** {prose(told['Departs'])}."] if "Departs" in told else []),
        prose(remarks),
        "## Where it acts",
        acts(row),
        "## Parameters",
        parameters(name, told["Yields"]),
        "## What it can express",
        f"![Scores of three heads of {name}]({name}.svg)",
        f"Scores of one layer that reads the same word {LENGTH} times, fitted to three patterns ([how](index.md)).",
        "## Cost",
        cost_section(name),
        "## Use",
        use(name),
        "## Paper",
        prose(told["Paper"]),
        "```bibtex\n" + "\n\n".join(citations(kind.paper)) + "\n```",
        f"Checked against the formula by hand in float64: `{told['Checked']}`.",
    ]
    return "\n\n".join(part for part in parts if part)


def prose(text: str) -> str:
    """Turn docstring text into Markdown: join its lines, and escape all markup but `code`."""
    return re.sub(r"([*_\[\]<])(?![^`]*`(?:[^`]*`[^`]*`)*[^`]*$)", r"\\\1", " ".join(text.split()))


def acts(row: Overview) -> str:
    if not row.places:
        return "Nowhere."
    where = " and ".join(f"the {place} (`{METHODS[place]}`)" for place in row.places)
    extends = "It is defined at any length" if row.extends else "It ends at `max_length`; longer inputs raise"
    return f"On {where}. {extends}."


def parameters(name: str, yields: str) -> str:
    kind = ENCODINGS[name]
    lines = [f"Yields {prose(yields)}."]
    if kind.default_sharing is None:
        lines.append(f"Of BERT-base (12 layers of 12 heads × 64, 512 positions): **{count(name, None):,}**.")
    else:
        lines.append("| sharing | parameters of BERT-base |\n|---|--:|")
        for sharing in SHARINGS:
            default = " (default)" if sharing == kind.default_sharing else ""
            lines[-1] += f"\n| {sharing}{default} | {count(name, sharing):,} |"
    return "\n\n".join(lines)


def count(name: str, sharing: str | None) -> int:
    with torch.device("meta"):
        built = encoding(name, sharing=sharing, **SIZES)
    return sum(parameter.numel() for parameter in built.parameters())


def use(name: str) -> str:
    defaults = inspect.signature(ENCODINGS[name]).parameters
    options = [f"`{option}={defaults[option].default!r}`" for option in option_names(ENCODINGS[name])]
    told = f"Options, with their defaults: {', '.join(options)}." if options else "It has no options."
    return (
        "```python\nimport headway as hw\n\n"
        f'encoding = hw.encoding("{name}", num_layers=12, num_heads=12, head_dim=64)\n'
        f'config = hw.preset("bert-base", encoding="{name}")  # in a whole model\n```\n\n{told}'
    )
