"""Tables of the studies of translation, from results/; `python -m benchmarks.report` writes them."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
STUDIES = ROOT / "results" / "studies"
MULTI30K = ROOT / "results" / "translation" / "multi30k"
EUROPARL = ROOT / "results" / "translation" / "europarl"


def translation_multi30k() -> str:
    """Write BLEU of each encoding on dev and test, seed by seed, and the paired bootstrap against sinusoids."""
    scores = [json.loads(path.read_text()) for path in sorted(MULTI30K.glob("scores-seed*.json"))]
    dev: dict[str, list[float]] = {}
    for path in sorted(MULTI30K.glob("*/result.json")):
        dev.setdefault(path.parent.name.rpartition("-seed")[0], []).append(json.loads(path.read_text())["bleu"])
    heads = [f"test, seed {seed}" for seed in range(len(scores))]
    lines = [f"| BLEU | dev, median | {' | '.join(heads)} | chrF of test, median |", "|---" * (len(heads) + 3) + "|"]
    for name in sorted(dev, key=lambda name: median(dev[name])):
        cells, chrf = [], []
        for seed, score in enumerate(scores):
            system = score["systems"][f"{name}-seed{seed}.de"]
            tests = {row["system"]: row["p_value"] for row in score["bootstrap"]["rows"] if row["metric"] == "BLEU"}
            p = tests[f"{name}-seed{seed}.de"]
            cells.append(f"{system['bleu']:.1f}" + ("" if p is None else f" (p = {p:.3f})"))
            chrf.append(system["chrf"])
        lines.append(f"| {name} | {median(dev[name]):.1f} | {' | '.join(cells)} | {median(chrf):.1f} |")
    signature = next(iter(scores[0]["systems"].values()))["bleu_signature"]
    lines += ["", f"p: paired bootstrap against sinusoidal of the same seed. SacreBLEU {signature}."]
    return "\n".join(lines)


def translation_europarl() -> str:
    """Test BLEU of each encoding, seed by seed where it was trained, and the paired bootstrap against sinusoids."""
    runs = {path.parent.name: json.loads(path.read_text()) for path in sorted(EUROPARL.glob("*/result.json"))}
    scores = [json.loads(path.read_text()) for path in sorted(EUROPARL.glob("scores-seed*.json"))]
    names = sorted({run.rpartition("-seed")[0] for run in runs}, key=lambda name: -runs[f"{name}-seed0"]["saved_loss"])
    heads = [f"test, seed {seed}" for seed in range(len(scores))]
    lines = [f"| BLEU | dev loss | {' | '.join(heads)} | chrF of test | length |", "|---" * (len(heads) + 4) + "|"]
    for name in names:
        cells: list[str] = []
        chrf, length, loss = [], [], []
        for seed, score in enumerate(scores):
            system = f"{name}-seed{seed}.de"
            if system not in score["systems"]:
                cells.append("–")
                continue
            found = score["systems"][system]
            tests = {row["system"]: row["p_value"] for row in score["bootstrap"]["rows"] if row["metric"] == "BLEU"}
            p = tests[system]
            cells.append(f"{found['bleu']:.1f}" + ("" if p is None else f" (p = {p:.3f})"))
            chrf.append(found["chrf"])
            length.append(found["length_ratio"])
            loss.append(runs[f"{name}-seed{seed}"]["saved_loss"])
        medians = f"{median(chrf):.1f} | {median(length):.3f}"
        lines.append(f"| {name} | {median(loss):.3f} | {' | '.join(cells)} | {medians} |")
    environment = json.loads((EUROPARL / "sinusoidal-seed0" / "config.json").read_text())["environment"]
    signature = next(iter(scores[0]["systems"].values()))["bleu_signature"]
    some = next(iter(runs.values()))
    lines += [
        "",
        f"{some['steps']:,} steps, {some['tokens'] / 1e6:.0f}M tokens of both languages, {some['epochs']:.1f} epochs "
        f"each; loss, chrF and length (words over the reference's): medians over the row's seeds. p: paired bootstrap "
        f"against sinusoidal of the same seed, at least 0.001. SacreBLEU {signature}. {environment['gpu']}, torch "
        f"{environment['torch']}; from results/translation/europarl.",
    ]
    return "\n".join(lines)


def shaw_ablations() -> str:
    """Write Shaw's Tables 2 and 3 at this size: BLEU of dev for each row, beside the paper's figures."""
    from headway.bench.study.plans.shaw_tables import CLIPS, PARTS

    names = {(True, True): "keys and values", (True, False): "keys", (False, True): "values"}
    tables = (
        ("shaw-clip", "clipping distance, Table 2", {f"k = {clip}": figure for clip, figure in CLIPS.items()}),
        ("shaw-parts", "parts, Table 3", {names.get(part, "neither"): figure for part, figure in PARTS.items()}),
        ("shaw-translation", "beside sinusoids, Sec. 4.2", {}),
    )
    lines = []
    for study, title, published in tables:
        found = json.loads((STUDIES / study / "results.json").read_text())
        seeds = found["study"]["seeds"]
        heads = " | ".join(f"seed {seed}" for seed in seeds)
        lines += ["", f"| {title} | median | {heads} | published |", "|---" * (len(seeds) + 3) + "|"]
        for row in found["rows"]:
            cell = found["cells"][0][row["name"]]
            values = " | ".join(f"{cell['values'][str(seed)]:.1f}" for seed in seeds)
            figure = published.get(row["name"], "–")
            lines.append(f"| {row['name']} | {cell['summary']['median']:.1f} | {values} | {figure} |")
    lines += [
        "",
        "BLEU of dev; published: newstest 2013, WMT 2014 English to German, models of 512. From results/studies.",
    ]
    return "\n".join(lines[1:])
