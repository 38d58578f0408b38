"""The ledger for people: a table on the terminal, one claim in full, Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from headway.bench.claims.claim import Contrast
from headway.bench.claims.settings import Choice
from headway.bench.claims.verdicts import WORST_FIRST, Entry, Finding

STYLES = {"supported": "green", "not seen": "yellow", "contradicted": "red", "not tested": "dim"}


def number(contrast: Contrast, value: float) -> str:
    return f"{value:,.{contrast.by.digits}f}"


def difference(finding: Finding) -> str:
    """+0.571 [+0.521, +0.621], or ± the noise band where there is no interval; in percent for relative measures."""
    assert finding.difference is not None and finding.around is not None
    relative = finding.contrast.by.relative
    digits = 1 if relative else finding.contrast.by.digits
    middle = f"{_round(finding.difference, digits):+,.{digits}f}{' %' if relative else ''}"
    if finding.measured:
        ends = (finding.difference - finding.around, finding.difference + finding.around)
        return f"{middle} [{', '.join(f'{_round(end, digits):+,.{digits}f}' for end in ends)}]"
    return f"{middle} (noise ±{finding.around:,.{digits}f})" if finding.around else middle


def _round(value: float, digits: int) -> float:
    return round(value, digits) + 0.0  # no minus before a zero


def sides(contrast: Contrast) -> tuple[str, str]:
    """Both sides in few words."""
    if contrast.than_measure is not None:
        return f"{contrast.better.words}, {contrast.by.words}", ""
    other = contrast.than
    return contrast.better.words, other.words if isinstance(other, Choice) else "the bound"


def brief(finding: Finding, *, measure: bool = False) -> str:
    """One comparison in a line; with its measure, where that is not told elsewhere."""
    contrast = finding.contrast
    better, than = sides(contrast)
    names = f"{better}{f' – {than}' if than else ''}{f', {contrast.by.words}' if measure and than else ''}"
    if finding.better is None or finding.than is None:
        return f"{names}: no result"
    values = f"{number(contrast, finding.better)} – {number(contrast, finding.than)}"
    return f"{names}: {values} = {difference(finding)}"


def briefs(entry: Entry, *, absent: bool) -> list[str]:
    """All comparisons of an entry, those without results too where asked for."""
    several = len({finding.contrast.measure for finding in entry.findings}) > 1
    return [brief(each, measure=several) for each in entry.findings if absent or each.better is not None]


def scales(entry: Entry) -> str:
    """What ours was measured on."""
    return "; ".join(dict.fromkeys(finding.scale for finding in entry.findings if finding.scale))


def measured_by(entry: Entry) -> str:
    """Which measure decided; nothing where there are several, which then stand beside each comparison."""
    names = list(dict.fromkeys(finding.contrast.by.words for finding in entry.findings))
    return f"{'stand-in: ' if entry.stood_in else ''}{names[0]}" if len(names) == 1 else ""


def counted(entries: Sequence[Entry]) -> str:
    found = Counter(entry.verdict for entry in entries)
    return ", ".join(f"{found[verdict]} {verdict}" for verdict in reversed(WORST_FIRST))


def print_table(entries: Sequence[Entry], notes: Sequence[str] = ()) -> None:
    """All entries, at the terminal's width."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(show_lines=True, expand=True, title=f"{len(entries)} claims: {counted(entries)}")
    for column, ratio in (("claim", 22), ("the paper", 27), ("ours: better – than = difference [interval]", 35)):
        table.add_column(column, ratio=ratio, overflow="fold")
    table.add_column("verdict", no_wrap=True, min_width=13)
    for entry in entries:
        claim = entry.claim
        ours = briefs(entry, absent=False)
        absent = len(entry.findings) - len(ours)
        ours += [f"{absent} of {len(entry.findings)} comparisons without results"] if absent else []
        tail = list(filter(None, (measured_by(entry), scales(entry)))) if len(ours) > bool(absent) else []
        table.add_row(
            Text.assemble((claim.key, "bold"), f"\n{claim.says}"),
            Text.assemble(claim.numbers, (f"\n{claim.paper}, {claim.where}\n{claim.scale}", "dim")),
            Text.assemble("\n".join(ours), ("\n" + "\n".join(tail) if tail else "", "dim")),
            Text.assemble((entry.verdict, STYLES[entry.verdict]), ("\nby a stand-in" if entry.stood_in else "", "dim")),
        )
    console = Console()
    console.print(table)
    for note in notes:
        console.print(f"not used: {note}", style="dim", markup=False, highlight=False)
    console.print("one in full: headway claims CLAIM; the rule: headway claims --rule", style="dim", highlight=False)


def full(entry: Entry) -> str:
    """One claim with every number that decided it."""
    claim = entry.claim
    lines = [
        f"{claim.key}: {claim.says}",
        f"  verdict   {entry.verdict}{' (by a stand-in)' if entry.stood_in else ''}",
        f"  paper     {claim.paper}, {claim.where}",
        f"  numbers   {claim.numbers}",
        f"  measured  {claim.scale}",
        f"  ours      {scales(entry) or 'no results'}",
    ]
    lines += [f"  note      {claim.note}"] if claim.note else []
    for finding in entry.findings:
        lines += ["", *_full(finding)]
    if entry.missing:
        lines += ["", "  to answer it:", *(f"    {command}" for command in entry.missing)]
    return "\n".join(lines)


def _full(finding: Finding) -> list[str]:
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
        f"    found     {number(contrast, finding.better)} and {number(contrast, finding.than)}: {difference(finding)}",
        f"    interval  {finding.basis}",
        *([f"    over      {', '.join(over)}"] if over else []),
        *(f"    {each}: {number(contrast, a)} and {number(contrast, b)}" for each, a, b in finding.pairs),
        *(f"    from      {source}" for source in finding.sources),
        f"    verdict   {finding.verdict}",
    ]
    return lines


def markdown(entries: Sequence[Entry]) -> str:
    """A table for a page, and under it what is missing."""
    lines = [
        f"{len(entries)} claims: {counted(entries)}.",
        "",
        "| claim | the paper | ours: better – than = difference [interval] | verdict |",
        "|---|---|---|---|",
    ]
    for entry in entries:
        claim = entry.claim
        ours = briefs(entry, absent=True)
        measured = any(finding.better is not None for finding in entry.findings)
        basis = dict.fromkeys(finding.basis for finding in entry.findings if finding.basis)
        ours += [f"*{text}*" for text in (measured_by(entry), scales(entry), "; ".join(basis)) if text and measured]
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
