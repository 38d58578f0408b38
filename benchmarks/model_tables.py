"""Tables and the picture of whole models: pretraining, costs and translation; `benchmarks.report` writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.bench.report.study.pictures import Bar, bars, stack
from headway.bench.statistics import ratio, spread

if TYPE_CHECKING:
    from headway.bench.cost import CostTable, Measurement

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
IN_TABLE_1 = {  # of Chen et al. (2021b): rows and our encodings
    "Shaw et al.": "shaw",
    "Ke et al. (TUPE)": "tupe-rel",
    "DIET-ABS": "diet-abs:rank=64",
    "DIET-REL": "diet-rel",
}


def newest(name: str) -> dict[str, Any]:
    """Read the newest committed result with a name, and its path."""
    found = newest_or_none(name)
    assert found is not None, f"{RESULTS} has no result of {name}"
    return found


def newest_or_none(name: str) -> dict[str, Any] | None:
    """Read the newest committed result with a name, if there is one, and its path."""
    paths = sorted(RESULTS.glob(f"{name}_*.json"), key=lambda path: (path.name.split("_")[3][:10], path.name))
    return {**json.loads(paths[-1].read_text()), "path": paths[-1].relative_to(ROOT)} if paths else None


def pretraining() -> str:
    """Write training speed beside transformers' fastest BERT; the newest run of each length that has both."""
    runs = _pretraining_runs(
        lambda table, cell: table.fastest_transformers(cell, "training", same_work=True) is not None
    )

    def shown(table: CostTable, cell: Measurement) -> list[str]:
        rate, share = cell.tokens_per_second("training"), table.mfu(cell)
        faster = [table.speed_over_transformers(cell, "training", same_work=same) for same in (False, True)]
        speed = ["–" if rate is None else f"{rate / 1e3:,.0f}", "–" if share is None else f"{100 * share:.0f} %"]
        return [*speed, *(_cell(each and each.median) for each in faster)]

    head = ("tokens/s, thousands", "MFU", "× transformers, fastest", "× same work")
    tables = {n: table for n, (_, table) in runs.items()}
    return _pretraining_table(runs, head, shown) + "\n" + _about_settings(tables)


def pretraining_short() -> str:
    """Write the rows of `pretraining` that the README shows."""
    runs = _pretraining_runs(
        lambda table, cell: table.fastest_transformers(cell, "training", same_work=True) is not None
    )
    cells = {(n, cell.row): cell for n, (_, table) in runs.items() for cell in table.measurements if cell.length == n}
    fastest, same_work = (
        {n: table.fastest_transformers(cells[n, "none"], "training", same_work=same) for n, (_, table) in runs.items()}
        for same in (False, True)
    )
    as_it_comes = next(row for _, row in cells if row.startswith("transformers") and "compile=false" in row)
    rows = {
        "transformers, as it comes": dict.fromkeys(runs, as_it_comes),
        "transformers, its fastest setting": fastest,
        "transformers, doing the same work (its head at masked places alone)": same_work,
        "headway, learned positions at the input": dict.fromkeys(runs, "learned"),
        "headway, DIET-REL": dict.fromkeys(runs, "diet-rel"),
    }
    lines = ["| thousand tokens a second (over the fastest setting) | " + " | ".join(f"n = {n}" for n in runs) + " |"]
    lines.append("|---" * (len(runs) + 1) + "|")
    for label, names in rows.items():
        columns = []
        for n, (_, table) in runs.items():
            cell, base = cells[n, names[n] or ""], fastest[n]
            rate, over = cell.tokens_per_second("training"), base and table.ratio(cell, "training", base)
            columns.append(f"{rate / 1e3:,.0f} ({1 / over.median:.2f})" if rate and over else "–")
        lines.append(f"| {label} | " + " | ".join(columns) + " |")
    [path] = {path for path, _ in runs.values()}
    environment = next(iter(runs.values()))[1].environment
    about = f"{environment['gpu']}, torch {environment['torch']}, bf16, {environment['date']}; [{path}]({path})."
    return "\n".join([*lines, "", about])


def pretraining_over_none() -> str:
    """Write what position costs in a whole model, over `none`; the newest run of each length with all encodings."""
    runs = _pretraining_runs(lambda table, cell: cell.row == "shaw" and cell.inference is not None)

    def shown(table: CostTable, cell: Measurement) -> list[str]:
        over = [table.ratio(cell, mode) for mode in ("training", "inference")]
        return [_cell(each and each.median) for each in over]

    return _pretraining_table(runs, ("training / none", "inference / none"), shown, skip="transformers")


def draw_costs() -> bytes:
    """Draw time over BERT with learned positions beside Chen et al. (2021b), Table 1, for BERT-base at n = 128."""
    from headway.bench.cost import published_ratio

    runs = _pretraining_runs(lambda table, cell: cell.row == "shaw" and cell.inference is not None)
    _, table = runs[min(runs)]
    cells = {cell.row: cell for cell in table.measurements if cell.length == min(runs)}
    pictures = []
    for mode in ("training", "inference"):
        rows = []
        for name, row in IN_TABLE_1.items():
            own, paper = table.ratio(cells[row], mode, "learned"), published_ratio("bert-base", mode, row.split(":")[0])
            ours = None if own is None else tuple(100 * (each - 1) for each in (own.median, own.low, own.high))
            rows.append(Bar(name=name, ours=ours, paper=None if paper is None else 100 * (paper - 1)))
        title = f"BERT-base, {mode}: ours at n = {min(runs)} on one {table.environment['gpu']}, the paper on TPU v2"
        pictures.append(bars(title, "% of the time with learned positions at the input", rows, 1))
    return stack(pictures).encode()


def _pretraining_runs(
    wanted: Callable[[CostTable, Measurement], bool],
) -> dict[int, tuple[Path, CostTable]]:
    """Return the newest run of each length in which some row is `wanted`."""
    from headway.bench.cost import CostTable

    found: dict[int, tuple[Path, CostTable]] = {}
    for path in sorted(RESULTS.glob("pretraining_*.json"), key=_date_and_number):
        table = CostTable.from_json(json.loads(path.read_text()))
        for (_, length), cells in table.groups().items():
            if any(wanted(table, cell) for cell in cells):
                found[length] = (path.relative_to(ROOT), table)
    return dict(sorted(found.items()))


def _pretraining_table(
    runs: dict[int, tuple[Path, CostTable]],
    head: Sequence[str],
    shown: Callable[[CostTable, Measurement], list[str]],
    skip: str | None = None,  # a row
) -> str:
    cells = {(n, cell.row): cell for n, (_, table) in runs.items() for cell in table.measurements if cell.length == n}
    lines = ["| | " + " | ".join(f"n = {n}: {name}" for n in runs for name in head) + " |"]
    lines.append("|---" * (len(head) * len(runs) + 1) + "|")
    for row in dict.fromkeys(row for _, row in cells if row != skip):
        columns: list[str] = []
        for n, (_, table) in runs.items():
            columns += shown(table, cells[n, row]) if (n, row) in cells else ["–"] * len(head)
        lines.append(f"| {row} | " + " | ".join(columns) + " |")
    tables = [table for _, table in runs.values()]
    environment = tables[0].environment
    dates = ", ".join(dict.fromkeys(str(table.environment["date"]) for table in tables))
    files = ", ".join(dict.fromkeys(f"[{path}](../{path})" for path, _ in runs.values()))
    lines.append("")
    lines.append(
        f"BERT-base, a whole optimizer step with dropout 0.1, bf16, torch.compile, replayed as CUDA graphs, "
        f"{environment['gpu']}, torch {environment['torch']}, {dates}; medians of rounds in which the rows take turns; "
        f"{files}."
    )
    return "\n".join(lines)


def _about_settings(tables: dict[int, CostTable]) -> str:
    """Say what the columns of `pretraining` mean, over which rows the ratios are, and how much rounds differ."""
    from headway.bench.cost.flops import PEAK_BF16

    fastest, differ = [], 0.0
    rates = {PEAK_BF16[gpu] for table in tables.values() if (gpu := table.environment["gpu"]) in PEAK_BF16}
    peaks = " or ".join(f"{rate / 1e12:.0f}" for rate in sorted(rates)) or "unknown"
    for n, table in tables.items():
        cells = [each for each in table.measurements if each.length == n]
        names = [table.fastest_transformers(cells[0], "training", same_work=same) for same in (False, True)]
        shown = ["no row" if name is None else f"`{name}`" for name in names]
        fastest.append(f"{shown[0]} and {shown[1]} at n = {n}")
        for cell in cells:
            for timing in filter(None, (cell.training, cell.inference)):
                middle = spread(timing.seconds)
                differ = max(differ, middle.high / middle.median - 1, 1 - middle.low / middle.median)
    return (
        f"× transformers, fastest: over the fastest setting of its BertForMaskedLM in the same rounds; × same work: "
        f"with its head, too, at the masked places alone; they are {', '.join(fastest)}. "
        "`compile=false:graphs=false` is transformers as it comes; `mask=false` never makes the attention mask of ones "
        "that transformers 5.17 makes when it is compiled. MFU: products of matrices by the formulas (6 operations for "
        "each token and number of the body's matrices, attention's products, those of the encoding, the head where it "
        f"is computed) over the data sheet's {peaks} TFLOP/s. 20 and 80 % of a row's rounds are within "
        f"{100 * differ:.1f} % of its median."
    )


def _date_and_number(path: Path) -> tuple[str, int]:
    """Return when a result was measured; of one day, those with a higher number at the end are newer."""
    found = re.search(r"(\d{4}-\d\d-\d\d)(?:_(\d+))?$", path.stem)
    return (found[1], int(found[2] or 1)) if found else ("", 0)


def cost_on_cpu() -> str:
    """Write what position costs a small model on a CPU, over none in the same rounds."""
    from headway.bench.cost import CostTable

    record = newest("cost")
    table = CostTable.from_json({name: record[name] for name in ("config", "environment", "measurements")})
    ((model, length), cells) = next(iter(table.groups().items()))
    lines = ["| over none (20 % and 80 % of rounds) | training | inference |", "|---|---|---|"]
    for cell in cells:
        shown = []
        for mode in ("training", "inference"):
            ratio = table.ratio(cell, mode)
            shown.append("–" if ratio is None else f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})")
        lines.append(f"| {cell.row} | {' | '.join(shown)} |")
    environment = record["environment"]
    lines.append("")
    lines.append(
        f"{model}, n = {length}, float32, {environment['threads']} threads, torch {environment['torch']}, "
        f"{record['path'].stem.split('_')[3]}; [{record['path'].name}](../{record['path']})."
    )
    return "\n".join(lines)


def translation() -> str:
    """Write decoding and training beside MarianMT, and what position costs; the newest file of each machine."""
    paths = sorted(RESULTS.glob("translation_*.json"), key=lambda path: (path.name.split("_")[3][:10], path.name))
    newest_of = {path.name.split("_")[1]: path for path in paths}
    head = (
        "machine | encoding | decoding × MarianMT | training × MarianMT | decoding / sinusoidal | training / sinusoidal"
    )
    lines, notes = [f"| {head} |", "|---" * 6 + "|"], []
    for machine, path in newest_of.items():
        record = json.loads(path.read_text())
        environment, options = record["environment"], record["options"]
        parts = [record.get(part) for part in ("decoding", "training")]
        for row in options["encodings"]:
            faster = [_cell(part and part["times_marian"].get(row, {}).get("median")) for part in parts]
            over = [_cell(part and _over(part["seconds"], row, "sinusoidal")) for part in parts]
            lines.append(f"| {machine} | {row} | " + " | ".join((*faster, *over)) + " |")
        shortest = max(2, round(options["shortest"] * options["length"]))
        where = environment.get("gpu", f"{environment['threads']} thread(s) of {environment['processor']}")
        notes.append(
            f"{machine}: {where}, torch {environment['torch']}, {environment['date']}, load "
            f"{environment['load_before']:.1f} before the run; {options['size']}, {options['batch']} sources of "
            f"{shortest} to {options['length']} tokens, beam {options['beam']}; "
            f"[{path.name}](../{path.relative_to(ROOT)})."
        )
    return "\n".join([*lines, "", *notes])


def _over(seconds: dict[str, list[float]], row: str, base: str) -> float | None:
    """Return the median of a row's time over another's in the same round."""
    if row not in seconds or base not in seconds:
        return None
    return ratio(seconds[row], seconds[base]).median


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def fused_on_cpu() -> str:
    """Write the times of fused models beside the best of transformers."""
    from benchmarks.fuse import MODES, summary

    record = newest("fuse")
    environment, cases = record["environment"], record["cases"]
    head = [f"{mode}: {what}" for mode in MODES for what in ("best of transformers, ms", "fused, ms", "times as fast")]
    lines = ["| model, batch | " + " | ".join(head) + " |", "|---" * (len(head) + 1) + "|"]
    for name, case in cases.items():
        cells = [cell for mode in MODES for cell in summary(case[mode])]
        lines.append(f"| {name.split(' ')[0]}, {case['batch']} × {case['length']} | " + " | ".join(cells) + " |")
    lines.append("")
    lines.append(
        f"CPU, {environment['threads']} threads of {environment['processor']}, torch {environment['torch']}, "
        f"transformers {environment['transformers']}, float32, {environment['date']}, "
        f"load {environment['load_before']:.1f} before the run; medians, and ratios of rows that take turns with their "
        f"20 and 80 % quantiles; raw numbers in "
        f"[{record['path']}](../{record['path']})."
    )
    return "\n".join(lines)
