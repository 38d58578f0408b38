"""The ledger for people: a table for the terminal, one claim in full, and Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headway.bench.claims.claim import Contrast
from headway.bench.claims.settings import Choice
from headway.bench.claims.verdicts import WORST_FIRST, Entry, Finding

STYLES = {"supported": "green", "not seen": "yellow", "contradicted": "red", "not tested": "dim"}


def format_value(contrast: Contrast, value: float) -> str:
    return f"{value:,.{contrast.by.digits}f}"


def format_difference(finding: Finding) -> str:
    """Write +0.571 [+0.521, +0.621], or the noise band where there is no interval; in percent for relative measures."""
    assert finding.difference is not None and finding.half_width is not None
    relative = finding.contrast.by.relative
    digits = 1 if relative else finding.contrast.by.digits
    middle = f"{_round(finding.difference, digits):+,.{digits}f}{' %' if relative else ''}"
    if finding.measured:
        ends = (finding.difference - finding.half_width, finding.difference + finding.half_width)
        return f"{middle} [{', '.join(f'{_round(end, digits):+,.{digits}f}' for end in ends)}]"
    return f"{middle} (noise ±{finding.half_width:,.{digits}f})" if finding.half_width else middle


def _round(value: float, digits: int) -> float:
    return round(value, digits) + 0.0  # turns -0.0 into 0.0


def name_sides(contrast: Contrast) -> tuple[str, str]:
    """Name both sides; the second is empty where both are one encoding by two measures."""
    if contrast.than_measure is not None:
        return f"{contrast.better.words}, {contrast.by.words}", ""
    other = contrast.than
    return contrast.better.words, other.words if isinstance(other, Choice) else "the bound"


def write_finding(finding: Finding, *, measure: bool = False) -> str:
    """Write one comparison as a line, with the name of its measure where asked for."""
    contrast = finding.contrast
    better, than = name_sides(contrast)
    names = f"{better}{f' – {than}' if than else ''}{f', {contrast.by.words}' if measure and than else ''}"
    if finding.better is None or finding.than is None:
        return f"{names}: no result"
    values = f"{format_value(contrast, finding.better)} – {format_value(contrast, finding.than)}"
    return f"{names}: {values} = {format_difference(finding)}"


def write_findings(entry: Entry, *, absent: bool) -> list[str]:
    """Write the comparisons of a claim as lines, those without results only if `absent`."""
    several = len({finding.contrast.measure for finding in entry.findings}) > 1
    return [write_finding(each, measure=several) for each in entry.findings if absent or each.better is not None]


def scale_of(entry: Entry) -> str:
    """Say what our results were measured on."""
    return "; ".join(dict.fromkeys(finding.scale for finding in entry.findings if finding.scale))


def measure_of(entry: Entry) -> str:
    """Name the measure that decided; nothing where there are several, which then stand beside each comparison."""
    names = list(dict.fromkeys(finding.contrast.by.words for finding in entry.findings))
    return f"{'stand-in: ' if entry.stood_in else ''}{names[0]}" if len(names) == 1 else ""


def count_verdicts(entries: Sequence[Entry]) -> str:
    found = Counter(entry.verdict for entry in entries)
    return ", ".join(f"{found[verdict]} {verdict}" for verdict in reversed(WORST_FIRST))


def print_table(entries: Sequence[Entry], notes: Sequence[str] = (), console: Console | None = None) -> None:
    """Print all claims: name and verdict on the left, the paper's numbers and ours on the right."""
    console = Console() if console is None else console
    table = Table(show_lines=True, title=f"{len(entries)} claims: {count_verdicts(entries)}")
    table.add_column("claim", no_wrap=True)
    table.add_column(Text("the paper, and ours: better – than = difference [interval]"), overflow="fold")
    for entry in entries:
        claim = entry.claim
        verdict = Text.assemble((claim.key, "bold"), "\n", (entry.verdict, STYLES[entry.verdict]))
        verdict.append("\nby a stand-in" if entry.stood_in else "", "dim")
        table.add_row(verdict, _numbers(entry))
    console.print(table)
    for note in notes:
        console.print(f"not used: {note}", style="dim", markup=False, highlight=False)
    console.print("one in full: headway claims CLAIM; the rule: headway claims --rule", style="dim", highlight=False)


def _numbers(entry: Entry) -> Text:
    claim, ours = entry.claim, write_findings(entry, absent=False)
    measured = bool(ours)
    absent = len(entry.findings) - len(ours)
    ours += [f"{absent} of {len(entry.findings)} comparisons without results"] if absent else []
    about = filter(None, (measure_of(entry), scale_of(entry))) if measured else ()
    return Text.assemble(
        (claim.says, "bold"),
        f"\npaper: {claim.numbers}",
        (f"\n{claim.paper}, {claim.where}; {claim.scale}", "dim"),
        "\n" + "\n".join(("ours:", *ours) if len(ours) > 1 else (f"ours: {ours[0]}",)),
        ("".join(f"\n{each}" for each in about), "dim"),
    )


def as_text(entry: Entry) -> str:
    """Write one claim with every number that decided it."""
    claim = entry.claim
    lines = [
        f"{claim.key}: {claim.says}",
        f"  verdict   {entry.verdict}{' (by a stand-in)' if entry.stood_in else ''}",
        f"  paper     {claim.paper}, {claim.where}",
        f"  numbers   {claim.numbers}",
        f"  measured  {claim.scale}",
        f"  ours      {scale_of(entry) or 'no results'}",
    ]
    lines += [f"  note      {claim.note}"] if claim.note else []
    for finding in entry.findings:
        lines += ["", *_finding_in_full(finding)]
    if entry.missing:
        lines += ["", "  to answer it:", *(f"    {command}" for command in entry.missing)]
    return "\n".join(lines)


def _finding_in_full(finding: Finding) -> list[str]:
    contrast = finding.contrast
    unit = " %" if contrast.by.relative else ""
    asked = {
        "above": "the first better" + (f" by at least {contrast.margin:g}{unit}" if contrast.margin else ""),
        "at least": f"the first not worse by {contrast.margin:g}{unit}",
        "alike": f"both within {contrast.margin:g}{unit}",
    }[contrast.kind]
    better = "more" if contrast.favours_more else "less"
    lines = [f"  {contrast.words}", f"    asked     {asked} ({better} is better)"]
    if finding.better is None or finding.than is None:
        return [*lines, "    no result"]
    over = [block for block in finding.blocks if block]
    lines += [
        f"    found     {format_value(contrast, finding.better)} and {format_value(contrast, finding.than)}: "
        f"{format_difference(finding)}",
        f"    interval  {finding.basis}",
        *([f"    over      {', '.join(over)}"] if over else []),
        *(f"    {each}: {format_value(contrast, a)} and {format_value(contrast, b)}" for each, a, b in finding.pairs),
        *(f"    from      {source}" for source in finding.sources),
        f"    verdict   {finding.verdict}",
    ]
    return lines


def as_markdown(entries: Sequence[Entry]) -> str:
    """Write the ledger as a table, and under it the commands for what is missing."""
    lines = [
        f"{len(entries)} claims: {count_verdicts(entries)}.",
        "",
        "| claim | the paper | ours: better – than = difference [interval] | verdict |",
        "|---|---|---|---|",
    ]
    for entry in entries:
        claim = entry.claim
        ours = write_findings(entry, absent=True)
        measured = any(finding.better is not None for finding in entry.findings)
        basis = dict.fromkeys(finding.basis for finding in entry.findings if finding.basis)
        ours += [f"*{text}*" for text in (measure_of(entry), scale_of(entry), "; ".join(basis)) if text and measured]
        paper = [claim.numbers, f"*{claim.paper}, {claim.where}*", f"*{claim.scale}*"]
        cells = [
            f"`{claim.key}`<br>{claim.says}",
            "<br>".join(paper),
            "<br>".join(ours),
            f"**{entry.verdict}**{'<br>by a stand-in' if entry.stood_in else ''}",
        ]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    missing = {entry.claim.key: entry.missing for entry in entries if entry.missing}
    if missing:
        lines += ["", "What would answer the rest:", "", "| claim | command |", "|---|---|"]
        lines += [f"| `{key}` | {'<br>'.join(f'`{each}`' for each in commands)} |" for key, commands in missing.items()]
    return "\n".join(lines)
