"""`headway claims`: the papers' claims, and what the committed results say of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from headway.cli.errors import exit_with_message


@exit_with_message()
def claims(
    claim: Annotated[
        str | None, typer.Argument(metavar="CLAIM", help="Show one claim in full, by its key in the table.")
    ] = None,
    results: Annotated[str, typer.Option(help="Folder of results.")] = "results",
    only: Annotated[
        str | None,
        typer.Option(
            help="Show claims of these verdicts: supported, not-seen, contradicted, not-tested; several with commas."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON in place of a table.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print a table in Markdown.")] = False,
    rule: Annotated[bool, typer.Option("--rule", help="Say how verdicts are reached, and exit.")] = False,
) -> None:
    """Print the ledger: claims of the four papers, their numbers, ours, the interval, and a verdict.

    Verdicts are worked out from saved results by one rule: supported, not seen, contradicted, or not tested where there
    are no results, with the command that would make them.

    \b
    Examples:
      headway claims
      headway claims diet-cost
      headway claims --only contradicted,supported
      headway claims --json --results results
    """
    from headway.bench import judge
    from headway.bench.claims import show
    from headway.bench.claims.ledger import find_entry, ledger, to_json

    if rule:
        typer.echo((judge.__doc__ or "").strip())
        return
    entries, found = ledger(Path(results))
    if claim is not None:
        entries = [find_entry(claim, entries)]
    if only is not None:
        wanted = _verdicts(only)
        entries = [each for each in entries if each.verdict in wanted]
    if as_json:
        typer.echo(json.dumps(to_json(entries, found), indent=2, ensure_ascii=False, allow_nan=False))
    elif as_markdown:
        typer.echo(show.as_markdown(entries))
    elif claim is not None:
        typer.echo("\n\n".join(map(show.as_text, entries)))
    else:
        show.print_table(entries, found.notes)


def _verdicts(text: str) -> set[str]:
    """Read verdicts from a list with commas."""
    from headway.bench.judge import WORST_FIRST

    wanted = {part.strip().replace("-", " ") for part in text.split(",")}
    unknown = sorted(wanted - set(WORST_FIRST))
    if unknown:
        raise ValueError(f"--only: expected some of {', '.join(WORST_FIRST)}, got {', '.join(unknown)}.")
    return wanted
