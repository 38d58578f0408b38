"""The ledger as text: a table for the terminal, one claim in full, and Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headway.bench.claims.claim import Contrast
from headway.bench.claims.verdicts import Entry, Finding
from headway.bench.judge import WORST_FIRST

STYLES = {
    "supported": "green", "not seen": "yellow", "contradicted": "red", "not tested": "dim", "not testable": "dim",
}  # fmt: skip


def format_value(contrast: Contrast, value: float) -> str:
    return f"{value:,.{contrast.by.digits}f}"


def format_difference(finding: Finding) -> str:
    """Write the difference with its interval or noise band; in percent for relative measures."""
    assert finding.judgement is not None
    by = finding.contrast.by
    return finding.judgement.write(1, " %") if by.relative else finding.judgement.write(by.digits)


def write_absence(finding: Finding) -> str:
    """Say that a comparison has no result, and why where both sides were measured."""
    return "no result" + (f": {finding.why_missing}" if finding.why_missing else "")


def write_finding(finding: Finding, *, measure: bool = False, reason: bool = True) -> str:
    """Write one comparison as a line.

    Args:
        measure: name the measure.
        reason: say why a comparison is not testable, not only that.
    """
    contrast = finding.contrast
    better, than = contrast.names
    names = f"{better}{f' – {than}' if than else ''}{f', {contrast.measured}' if measure and than else ''}"
    if finding.better is None or finding.than is None:
        return f"{names}: {write_absence(finding)}"
    values = f"{format_value(contrast, finding.better)} – {format_value(contrast, finding.than)}"
    losses = "" if finding.losses is None else " (losses {:.2f}, {:.2f})".format(*finding.losses)
    why = f": {finding.untestable}" if reason else ""
    untestable = f"; not testable{why}" if finding.untestable else ""
    return f"{names}: {values} = {format_difference(finding)}{losses}{untestable}"


def write_findings(entry: Entry, *, absent: bool, reasons: bool = True) -> list[str]:
    """Write the comparisons of a claim as lines, those without results only if `absent`."""
    several = len({finding.contrast.measured for finding in entry.findings}) > 1
    found = [each for each in entry.findings if absent or each.better is not None]
    return [write_finding(each, measure=several, reason=reasons) for each in found]


def scale_of(entry: Entry) -> str:
    """Say what our results were measured on; what several comparisons share is said once."""
    return "; ".join(dict.fromkeys(part for finding in entry.findings for part in finding.scale.split("; ") if part))


def measure_of(entry: Entry) -> str:
    """Name the measure that decided; nothing where there are several, which then stand beside each comparison."""
    names = list(dict.fromkeys(finding.contrast.measured for finding in entry.findings))
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
    claim, ours = entry.claim, write_findings(entry, absent=False, reasons=False)
    measured = bool(ours)
    reasons = dict.fromkeys(each.untestable for each in entry.findings if each.better is not None and each.untestable)
    absent = len(entry.findings) - len(ours)
    ours += [f"{absent} of {len(entry.findings)} comparisons without results"] if absent else []
    about = [f"not testable: {reason}" for reason in reasons]
    about += filter(None, (measure_of(entry), scale_of(entry))) if measured else []
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
    if finding.judgement is None or finding.better is None or finding.than is None:
        return [*lines, f"    {write_absence(finding)}"]
    over = [block for block in finding.blocks if block]
    lines += [
        f"    found     {format_value(contrast, finding.better)} and {format_value(contrast, finding.than)}: "
        f"{format_difference(finding)}",
        f"    interval  {finding.judgement.basis}",
        *([f"    over      {', '.join(over)}"] if over else []),
        *(["    losses    {:.3f} and {:.3f} in pretraining".format(*finding.losses)] if finding.losses else []),
        *(f"    {each}: {format_value(contrast, a)} and {format_value(contrast, b)}" for each, a, b in finding.pairs),
        *(f"    from      {source}" for source in finding.sources),
        f"    verdict   {finding.verdict}{f': {finding.untestable}' if finding.untestable else ''}",
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
        basis = dict.fromkeys(finding.judgement.basis for finding in entry.findings if finding.judgement is not None)
        ours += [f"*{text}*" for text in (measure_of(entry), scale_of(entry), "; ".join(basis)) if text and basis]
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
