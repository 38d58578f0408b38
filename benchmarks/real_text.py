"""Tables and the picture of the studies of encoders, from results/; `python -m benchmarks.report` writes them."""

from __future__ import annotations

import io
import json
from collections import Counter
from itertools import chain
from pathlib import Path
from statistics import fmean, median
from typing import Any

from scipy.stats import spearmanr

from headway.storage import file_name

ROOT = Path(__file__).parents[1]
STUDIES = ROOT / "results" / "studies"
ENCODINGS = STUDIES / "encodings" / "results.json"
SHORTER = STUDIES / "encodings-86m" / "results.json"  # once more, with fewer steps, one rate and four tasks
SAME_TOKEN = STUDIES / "same-token" / "results.json"  # four of its rows with another seed
DRAWN = (
    "none", "sinusoidal", "sinusoidal, amplitude 0.03", "learned", "alibi", "rope", "shaw", "t5", "diet-rel",
    "diet-abs 64, shared", "tisa", "tupe-rel",
)  # fmt: skip


def encodings_on_text() -> str:
    """Write every row that was trained, the lowest loss first; medians over seeds of fine-tuning."""
    found = json.loads(ENCODINGS.read_text())
    columns = {column["name"]: (column, cells) for column, cells in zip(found["columns"], found["cells"], strict=True)}
    loss = columns["Loss"][1]
    trained = [row for row in found["rows"] if loss[row["name"]]["summary"]]
    shown = [name for name in columns if name != "GLUE"]
    lines = ["| | position | " + " | ".join(shown) + " |", "|---" * (len(shown) + 2) + "|"]
    for row in sorted(trained, key=lambda row: loss[row["name"]]["summary"]["median"]):
        cells = [_number(columns[name][1][row["name"]], columns[name][0]) for name in shown]
        lines.append(f"| {row['name']} | {row['place']} | " + " | ".join(cells) + " |")
    tokens = next(run["tokens"] for run in found["pretraining"])
    seeds = max(len(columns["CoLA"][1][row["name"]]["values"]) for row in trained)
    again = any(len(loss[row["name"]]["values"]) > 1 for row in trained)
    rates = [f"{rate:g}" for rate in found["recipes"]["fine-tuning, cola"]["grid"]["rates"]]
    environment = found["environment"]
    lines += [
        "",
        f"{tokens / 1e6:.0f}M tokens each, {'one seed or two' if again else 'one seed'} of pretraining; fine-tuning: "
        f"medians of {seeds} seeds, {'the better of rates' if rates[1:] else 'rate'} {' and '.join(rates)}; "
        f"{environment['gpu']}, torch {environment['torch']}, {found['study']['collected'][:10]}; from "
        "results/studies/encodings.",
    ]
    return "\n".join(lines)


def same_token() -> str:
    """Write STS-B of several pretrainings beside how much each layer's heads attend to other places of one token."""
    found, shorter, again = (json.loads(path.read_text()) for path in (ENCODINGS, SHORTER, SAME_TOKEN))
    of_row: dict[str, float] = {}  # STS-B of an encoder
    shares, lines = {}, {}
    for study, seed, *others in (
        (found, "", _medians(shorter, "STS-B"), {}),
        (again, f", seed {again['study']['seeds'][0]}", {}, _medians(again, "STS-B, 30 x")),
    ):
        scores = _medians(study, "STS-B")
        for row, analysis in study["analysis"].items():
            if analysis.get("same_token"):
                name = f"{row}{seed}"
                of_row[name], shares[name] = scores[row], analysis["same_token"]
                cells = [f"{each[row]:.1f}" if row in each else "–" for each in (scores, *others)]
                cells += [f"{max(layer):.2f}" for layer in shares[name]["share"]]
                lines[name] = f"| {name} | " + " | ".join(cells) + " |"
    shorter_tokens = shorter["pretraining"][0]["tokens"]
    largest = [max(map(max, shares[name]["share"])) for name in of_row]
    together = spearmanr(list(of_row.values()), largest).statistic
    some = next(iter(shares.values()))
    heads = ["STS-B", f"pretrained on {shorter_tokens / 1e6:.0f}M tokens", "positions 30 x as fast"]
    heads += [f"layer {layer}" for layer in range(1, 1 + len(some["share"]))]
    return "\n".join(
        [
            "| | " + " | ".join(heads) + " |",
            "|---" * (len(heads) + 1) + "|",
            *(lines[name] for name in sorted(lines, key=lambda name: -of_row[name])),
            "",
            f"Layers: of the head that has most, the share of attention on other places of the same token in held-out "
            f"text; by chance {some['chance']:.2f}. Rank correlation of STS-B with the largest share of all layers: "
            f"{together:.2f}. From results/studies/encodings, encodings-86m (one rate, 4 epochs) and same-token.",
        ]
    )


def learned_positions() -> str:
    """Write what `headway analyze` says of the study's encoders: scores by offset, ranks and kinds of heads."""
    found = json.loads(ENCODINGS.read_text())
    losses = _medians(found, "Loss")
    places = {row["name"]: row["place"] for row in found["rows"]}
    kinds = ("previous", "next", "local", "first", "broad", "other")
    heads = ("R² of position scores", "without index 0", "rank of scores: words", "and positions", *kinds)
    lines = ["| | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for row in sorted(found["analysis"], key=lambda row: losses[row]):
        if row.endswith("segments at the input"):  # the same encoder
            continue
        measures = json.loads((ENCODINGS.parent / "analysis" / file_name(row) / "measures.json").read_text())
        of_heads, texts = measures["heads"], measures["texts"]
        cells = ["–", "–"]
        if places[row] != "nowhere":
            r2, less_first = (list(chain(*of_heads[name])) for name in ("r2", "r2_without_first"))
            cells = [f"{median(r2):.2f}", f"{median(less_first):.2f}"]
            cells[0] += "" if min(r2) == max(r2) else f" ({min(r2):.2f} to {max(r2):.2f})"
        ranks = texts["ranks"]["average"]
        for kind in ("words", "whole"):
            cells.append(f"{median(chain(*ranks[kind]['effective'])):.0f}" if kind in ranks else "–")
        counts = Counter(chain(*texts["kinds"]))
        cells += [str(counts[kind]) for kind in kinds]
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "Lowest loss first. R²: share of the variance of a head's position scores that depends on the offset alone, "
        "median (range) over heads. Rank: effective, of a head's scores on texts of up to 128 tokens, median over "
        "heads. The rest: how many of 32 heads attend in text to the token before, the token after, five to either "
        "side, the first, everything alike. From results/studies/encodings/analysis.",
    ]
    return "\n".join(lines)


def cross_lingual() -> str:
    """Write zero-shot scores by encoding, Table 3: medians over seeds, and the average's range."""
    return _zero_shot("xtreme")


def cross_lingual_ablation() -> str:
    """Write zero-shot scores of the rows of Table 5."""
    return _zero_shot("xtreme-ablation")


def _zero_shot(study: str) -> str:
    found = json.loads((STUDIES / study / "results.json").read_text())
    columns = [column["name"] for column in found["columns"]]
    losses = {run["row"]: run["evaluation_loss"] for run in found["pretraining"]}
    lines = ["| | position | loss | " + " | ".join(columns) + " |", "|---" * (len(columns) + 3) + "|"]
    for row in found["rows"]:
        cells = [cells[row["name"]] for cells in found["cells"]]
        if cells[-1]["summary"]:
            shown = [f"{cell['summary']['median']:.1f}" for cell in cells]
            seeds = cells[-1]["values"].values()
            average = f"{shown[-1]} ({min(seeds):.1f} to {max(seeds):.1f})"
            start = f"| {row['name']} | {row['place']} | {losses[row['name']]:.2f} | "
            lines.append(start + " | ".join([*shown[:-1], average]) + " |")
    tokens = found["pretraining"][0]["tokens"]
    about = (
        f"{tokens / 1e6:.0f}M tokens each, one seed of pretraining, 3 of fine-tuning; loss: of pretraining, held out; "
        f"from results/studies/{study}."
    )
    return "\n".join([*lines, "", about])


def papers_grid() -> str:
    """Write the papers' grid on one encoder: the median over seeds at each rate, beside simple classifiers."""
    found = json.loads((ROOT / "results" / "finetuning" / "grid_bert_small.json").read_text())
    rates = sorted({run["rate"] for runs in found["runs"].values() for run in runs})
    heads = (*(f"rate {rate:.0e}".replace("e-0", "e-") for rate in rates), "most frequent label", "bag of words")
    lines = ["| | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    count = 0
    for task, runs in found["runs"].items():
        cells = []
        for rate in rates:
            scores = [100 * run["score"] for run in runs if run["rate"] == rate]
            cells.append(f"{median(scores):.1f} ({min(scores):.1f} to {max(scores):.1f})")
            count += len(scores)
        simple = (found["baselines"][task][name].values() for name in ("most frequent", "bag of words"))
        lines.append(f"| {task} | " + " | ".join([*cells, *(f"{100 * fmean(values):.1f}" for values in simple)]) + " |")
    lines += [
        "",
        f"{count} runs in {found['seconds']} seconds ({found['note']}); {found['machine']}; {found['model']}.",
    ]
    return "\n".join(lines)


def table_by_steps() -> str:
    """Write R² of the learned table's products, of runs that differ in nothing but their steps."""
    lines = ["| steps | loss | R² of E_P E_Pᵀ | without [CLS] |", "|---|---|---|---|"]
    folders = (ROOT / "results" / "pretraining_wiki").glob("learned-*-steps")
    for folder in sorted(folders, key=lambda folder: int(folder.name.split("-")[1])):
        result = json.loads((folder / "result.json").read_text())
        table = json.loads((ROOT / "results" / "analysis" / folder.name / "measures.json").read_text())["table"]
        numbers = (f"{result['evaluation_loss']:.3f}", f"{table['r2']:.3f}", f"{table['r2_without_first']:.3f}")
        lines.append(f"| {int(folder.name.split('-')[1]):,} | " + " | ".join(numbers) + " |")
    return "\n".join([*lines, "", "From results/pretraining_wiki and results/analysis."])


PRETRAINED = {
    "minilm": "MiniLM, all-MiniLM-L6-v2",
    "albert_rxnmapper": "ALBERT of chemical reactions, rxnmapper 0.4.3",
}


def pretrained_positions() -> str:
    """Write what `headway analyze` says of real checkpoints: the table, the heads' scores, fits of S kernels."""
    heads = ("table", "windows of 128", "heads, median", "lowest..highest", "S = 1", "S = 3", "S = 5", "kinds of heads")
    lines = ["| R² | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for file, name in PRETRAINED.items():
        found = json.loads((ROOT / "results" / "analysis" / f"{file}.json").read_text())
        model, heads_of = found["model"], found["heads"]
        layers = sorted({shared: layer for layer, shared in enumerate(model["shared_layers"])}.values())
        every = [value for layer in layers for value in heads_of["r2"][layer]]
        windows = found["table"]["windows"]["r2"][0]
        fits = [
            sum(value for layer in layers for value in fit["r2_profile"][layer]) / len(every)
            for fit in heads_of["fits"].values()
        ]
        kinds = Counter(kind for layer in layers for kind in heads_of["kinds"][layer])
        cells = [
            f"{found['table']['r2']:.2f}",
            f"{min(windows):.2f}..{max(windows):.2f}",
            f"{median(every):.2f}",
            f"{min(every):.2f}..{max(every):.2f}",
            *(f"{fit:.2f}" for fit in fits),
            ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()),
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", "512 positions; fits: mean over heads, of their profile by offset. From results/analysis."]
    return "\n".join(lines)


def draw_encodings() -> bytes:
    """Draw loss while training and loss on longer texts, as SVG."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams.update({"svg.hashsalt": "headway", "svg.fonttype": "none"})
    found = json.loads(ENCODINGS.read_text())
    colors = [*matplotlib.colormaps["tab10"].colors, "black", "magenta"]  # type: ignore[attr-defined]
    styles = dict(zip(DRAWN, colors, strict=True))
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    training, longer = figure.subplots(1, 2)
    for run in found["pretraining"]:
        if run["row"] in styles and run["seed"] == 0:
            steps, losses = zip(*run["curves"]["evaluation_loss"], strict=True)
            training.plot(steps, losses, marker=".", color=styles[run["row"]], label=run["row"])
    at = [column["value"] for column in found["columns"] if column["source"] == "lengths"]
    cells = [
        cells for column, cells in zip(found["columns"], found["cells"], strict=True) if column["source"] == "lengths"
    ]
    for row, color in styles.items():
        known = [(int(n), c[row]["summary"]["median"]) for n, c in zip(at, cells, strict=True) if c[row]["summary"]]
        if len(known) > 1:
            longer.plot(*zip(*known, strict=True), marker="o", color=color, label=row)
    training.set(xlabel="step of 256 sequences", ylabel="loss of masked words, nats", title="Pretraining, 128 tokens")
    training.set_yscale("log")  # most end close to each other
    training.set_yticks([3, 3.5, 4, 5, 6, 7], ["3", "3.5", "4", "5", "6", "7"])
    longer.set(xlabel="tokens of a text", title="Longer texts than trained on", xscale="log")
    longer.set_xticks([int(n) for n in at], at)
    for axes in (training, longer):
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    lines = dict(zip(*reversed(training.get_legend_handles_labels()), strict=True))
    figure.legend([lines[row] for row in DRAWN], DRAWN, loc="outside right upper", fontsize=8)
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return file.getvalue()


def _medians(found: dict[str, Any], name: str) -> dict[str, float]:
    """Return the medians of a column by row, where there are results."""
    cells = next(
        cells for column, cells in zip(found["columns"], found["cells"], strict=True) if column["name"] == name
    )
    return {row: cell["summary"]["median"] for row, cell in cells.items() if cell["summary"]}


def _number(cell: dict[str, Any], column: dict[str, Any]) -> str:
    """Write the median over seeds of fine-tuning, and all seeds of pretraining, which are few."""
    digits = column["digits"]
    if not cell["summary"]:
        return "–"
    if column["source"] == "pretrain":
        return ", ".join(f"{value:.{digits}f}" for value in cell["values"].values())
    return f"{cell['summary']['median']:.{digits}f}"
