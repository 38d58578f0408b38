"""Files of predictions: of GLUE in the form of its leaderboard, of questions in that of the official evaluators."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from headway.bench.data.transfer.spec import Example
from headway.bench.data.transfer.tasks import load
from headway.bench.tasks.finetune.config import FinetuneConfig
from headway.bench.tasks.finetune.data import Evaluation, Scores, evaluation, languages
from headway.bench.tasks.finetune.model import TransferLoss, load_model, load_tokenizer
from headway.bench.tasks.finetune.spans import Candidate
from headway.bench.tasks.finetune.trial import are_finite, model_scores
from headway.bench.tasks.training.distributed import Processes
from headway.bench.tasks.training.run_folder import RunFolder, RunStopped
from headway.storage import atomic_path, write_json

SUBMISSION = {
    ("cola", "test"): "CoLA",
    ("sst2", "test"): "SST-2",
    ("mrpc", "test"): "MRPC",
    ("stsb", "test"): "STS-B",
    ("qqp", "test"): "QQP",
    ("mnli", "test_matched"): "MNLI-m",
    ("mnli", "test_mismatched"): "MNLI-mm",
    ("qnli", "test"): "QNLI",
    ("rte", "test"): "RTE",
    ("wnli", "test"): "WNLI",
    ("diagnostic", "test"): "AX",
}


def write_predictions(config: FinetuneConfig, folder: RunFolder, *, cpu: bool) -> list[str]:
    """Predict with the model in the folder; write files to the folder's predictions/, and return their paths."""
    config = replace(config, start=replace(config.start, model=str(folder.model), tokenizer=None))
    tokenizer, processes = load_tokenizer(config.start), Processes(cpu=cpu)
    loss = TransferLoss(load_model(config, tokenizer, 0), config.task_spec.kind).to(processes.device).eval()
    written = []
    for reference in config.predicting:
        for part in reference.parts:
            for language in languages(reference, part, config.data.languages):
                split = load(reference.task, reference.source, part, language=language, on_error=config.data.on_error)
                ready = evaluation(split, config, tokenizer, labelled=False)
                scores = model_scores(loss, ready.encoded, processes, bf16=bool(config.protocol.bf16))
                if not are_finite(scores, ready.encoded):
                    raise RunStopped(
                        f"predict: scores of {reference.task.name} {part} in {language} became NaN or infinite with "
                        f"{folder.model}. Leave the highest learning rate out, which makes a new sweep."
                    )
                written += _write(folder.path / "predictions", ready, scores)
    return [str(path) for path in written]


def _write(folder: Path, ready: Evaluation, scores: Scores) -> list[Path]:
    split = ready.split
    name = split.task.name
    stem = SUBMISSION.get((name, split.split), f"{name.replace(':', '-')}-{split.split}-{split.language}")
    if ready.task.kind == "spans":
        best = ready.answers(scores)
        answers, choices = folder / f"{stem}.json", folder / f"{stem}-nbest.json"
        write_json(answers, {name: each[0].text if each else "" for name, each in best.items()})
        write_json(choices, {name: _with_probabilities(each) for name, each in best.items()})
        return [answers, choices]
    path = folder / f"{stem}.tsv"
    with atomic_path(path) as temporary:
        lines = [f"{name}\t{prediction}\n" for name, prediction in _rows(ready, scores)]
        temporary.write_text("index\tprediction\n" + "".join(lines), encoding="utf-8")
    return [path]


def _rows(ready: Evaluation, scores: Scores) -> list[tuple[str, str]]:
    rows = []
    low, high = ready.task.bounds
    for example, value in zip(ready.split.examples, ready.predictions(scores), strict=True):
        assert isinstance(example, Example)
        text = f"{min(high, max(low, value)):.3f}" if ready.task.kind == "number" else ready.task.labels[value]
        rows.append((example.id, text))
    return rows


def _with_probabilities(candidates: list[Candidate]) -> list[dict[str, Any]]:
    """Describe candidates, with probabilities that sum to 1 over them."""
    weights = [math.exp(each.score - candidates[0].score) for each in candidates]
    return [
        {"text": each.text, "start": each.start, "score": each.score, "probability": weight / sum(weights)}
        for each, weight in zip(candidates, weights, strict=True)
    ]
