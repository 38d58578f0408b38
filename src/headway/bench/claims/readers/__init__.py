"""Committed results, as the project's commands wrote them. What is absent is absent; what cannot be read raises.

    pretraining_CORPUS/NAME/        config.json, result.json of `headway pretrain`
    glue_CORPUS/NAME/TASK/          config.json, and result.json (or summary.json) of `headway finetune`
    xtreme_CORPUS/NAME/TASK/        the same, with --transfer
    lengths_CORPUS/NAME.json        {"losses": {"128": ..., "256": ..., ...}}, null where a model has no positions
    analysis/NAME/                  config.json, measures.json of `headway analyze`, of models of pretraining_wiki
    translation/CORPUS/NAME/        config.json, result.json of `headway translate train`; a CORPUS has one direction
    translation/CORPUS/[NAME/]*.json  of `headway translate score --out`, of translations in NAME/ or named NAME.*
    studies/STUDY/results.json      of `headway study`; analysis/ROW/measures.json beside it, where it was kept
    parameters/*.json               of `headway list --parameters --json`
    cost/*.json, ../benchmarks/results/pretraining_*.json    of `headway cost --out`, names ending in _DATE.json

NAME is free: encoding, sharing, options and seed are read from the configuration. Fine-tuned, analysed and lengthened
models are those of the pretraining run of the same NAME, or of the one that their own configuration names.
"""

from __future__ import annotations

from pathlib import Path

from headway.bench.claims.readers.costs import costs, parameters
from headway.bench.claims.readers.encoders import Join, analysis, glue, lengths, pretrained, training_trend, xtreme
from headway.bench.claims.readers.studies import study
from headway.bench.claims.readers.translation import translation
from headway.bench.claims.samples import Results, Sample

__all__ = ["read_results"]


def read_results(folder: Path) -> Results:
    """Read everything in a folder of results, and the cost beside it in benchmarks/results."""
    if not folder.is_dir():
        raise FileNotFoundError(
            f"results: expected a folder of results, got {folder}. Name the one of a checkout with --results."
        )
    samples: list[Sample] = []
    notes: list[str] = []
    errors: dict[tuple[str, str, str], float] = {}
    for place in _folders(folder, "pretraining_*"):
        corpus = place.name.removeprefix("pretraining_")
        runs = {path.name: run for path in _folders(place) if (run := pretrained(path, samples)) is not None}
        join = Join(runs, samples, notes)
        for kind, read in (("glue", glue), ("xtreme", xtreme)):
            for path in sorted((folder / f"{kind}_{corpus}").glob("*/*/config.json")):
                join(path.parent, path.parent.parent.name, read)
        for path in sorted((folder / f"lengths_{corpus}").glob("*.json")):
            join(path, path.stem, lengths)
        if corpus == "wiki":
            for path in sorted((folder / "analysis").glob("*/measures.json")):
                join(path.parent, path.parent.name, analysis)
    for path in sorted((folder / "studies").glob("*/results.json")):
        study(path, samples, notes)
    samples += training_trend(samples)
    for place in _folders(folder / "translation"):
        translation(place, samples, errors, notes)
    for path in sorted((folder / "parameters").glob("*.json")):
        samples += parameters(path)
    measured = (folder / "cost", "*.json"), (folder.resolve().parent / "benchmarks" / "results", "pretraining_*.json")
    samples += costs([path for place, pattern in measured for path in place.glob(pattern)])
    return Results(samples=tuple(samples), errors=errors, notes=tuple(notes))


def _folders(folder: Path, pattern: str = "*") -> list[Path]:
    return sorted(path for path in folder.glob(pattern) if path.is_dir())
