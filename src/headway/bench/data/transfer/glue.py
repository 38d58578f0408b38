"""GLUE: nine tasks and the diagnostic set, in the original TSV format.

Paper:  Wang et al. (2019), "GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language Understanding"

The files are not CSV: quotation marks are plain characters (many rows have an odd number of them), only CoLA's test
file has a header, MRPC may begin with a byte-order mark, and no two tasks name their columns alike. Test files have no
labels. A few of Quora's questions hold line breaks, so that the published files of QQP have rows in two halves: read
them with on_error="skip", which leaves those out, as the published sizes do.
"""

from __future__ import annotations

from headway.bench.data.transfer.spec import FileLayout, HubLayout, Table, TaskSpec

HUB = "nyu-mll/glue"
NLI = ("entailment", "neutral", "contradiction")
TRUTH = ("entailment", "not_entailment")
YES_NO = ("0", "1")
SPLITS = {"train": "train", "dev": "validation", "test": "test"}


def _glue(
    name: str,
    folder: str,
    table: Table,
    sizes: tuple[int, int, int],
    *,
    hub: Table | None = None,
    plain: Table | None = None,
    **rest: object,
) -> TaskSpec:
    """Describe a task with train.tsv, dev.tsv and test.tsv; `plain` is the table of files without header."""
    files = {
        split: (FileLayout(f"{folder}/{split}.tsv", table if plain is None or split == "test" else plain),)
        for split in SPLITS
    }
    return TaskSpec(
        name=name,
        group="glue",
        pair=table.second is not None,
        splits=files,
        hub=HubLayout(name=HUB, config=name, splits=SPLITS, table=hub or _on_hub(table)),
        published={(split, "en"): size for split, size in zip(SPLITS, sizes, strict=True)},
        **{"kind": "classes", "labels": YES_NO, **rest},  # type: ignore[arg-type]
    )


def _on_hub(table: Table) -> Table:
    return Table(first=table.first, second=table.second, label="label", id="idx")


def _pair(first: str = "sentence1", second: str = "sentence2", *, label: str = "label", id: str = "index") -> Table:
    return Table(first=first, second=second, label=label, id=id)


_NLI = _pair(label="gold_label", id="pairID")
_MNLI_SIZES = {
    "train": 392_702,
    "dev_matched": 9815,
    "dev_mismatched": 9832,
    "test_matched": 9796,
    "test_mismatched": 9847,
}

GLUE: tuple[TaskSpec, ...] = (
    _glue(
        "cola",
        "CoLA",
        Table(first="sentence", id="index"),
        (8551, 1043, 1063),
        plain=Table(first=3, label=1, width=4),
        metrics=("matthews",),
    ),
    _glue("sst2", "SST-2", Table(first="sentence", label="label", id="index"), (67_349, 872, 1821)),
    _glue(
        "mrpc",
        "MRPC",
        _pair("#1 String", "#2 String", label="Quality"),
        (3668, 408, 1725),
        hub=_pair(id="idx"),
        metrics=("accuracy", "f1"),
    ),
    _glue(
        "stsb",
        "STS-B",
        _pair(label="score"),
        (5749, 1500, 1379),
        kind="number",
        labels=(),
        metrics=("pearson", "spearman"),
    ),
    _glue(
        "qqp",
        "QQP",
        _pair("question1", "question2", label="is_duplicate", id="id"),
        (363_846, 40_430, 390_965),
        metrics=("accuracy", "f1"),
    ),
    _glue("qnli", "QNLI", _pair("question", "sentence"), (104_743, 5463, 5463), labels=TRUTH),
    _glue("rte", "RTE", _pair(), (2490, 277, 3000), labels=TRUTH),
    _glue("wnli", "WNLI", _pair(), (635, 71, 146)),
    TaskSpec(
        name="mnli",
        group="glue",
        kind="classes",
        labels=NLI,
        splits={
            split: (
                # of the test sets the leaderboard asks for the index
                FileLayout(f"MNLI/{split}.tsv", _pair(label="gold_label") if split.startswith("test") else _NLI),
                FileLayout(f"MNLI/multinli_1.0_{split}.jsonl", _NLI),
            )
            for split in _MNLI_SIZES
        },
        hub=HubLayout(
            name=HUB,
            config="mnli",
            splits={split: split.replace("dev", "validation") for split in _MNLI_SIZES},
            table=_pair("premise", "hypothesis", id="idx"),
        ),
        published={(split, "en"): size for split, size in _MNLI_SIZES.items()},
    ),
    TaskSpec(
        name="snli",
        group="glue",
        kind="classes",
        labels=NLI,
        splits={
            split: (FileLayout(f"SNLI/{split}.tsv", _NLI), FileLayout(f"SNLI/snli_1.0_{split}.jsonl", _NLI))
            for split in SPLITS
        },
        hub=HubLayout(name="stanfordnlp/snli", splits=SPLITS, table=_pair("premise", "hypothesis")),
        published={("train", "en"): 550_152, ("dev", "en"): 10_000, ("test", "en"): 10_000},
    ),
    TaskSpec(
        name="diagnostic",  # scored by the three-class Matthews correlation, Sec. 4 of the paper
        group="glue",
        kind="classes",
        labels=NLI,
        metrics=("matthews",),
        splits={
            "test": (
                FileLayout("diagnostic/diagnostic-full.tsv", _pair("Premise", "Hypothesis", label="Label")),
                FileLayout("diagnostic/diagnostic.tsv", _pair()),
            )
        },
        hub=HubLayout(name=HUB, config="ax", splits={"test": "test"}, table=_pair("premise", "hypothesis")),
        published={("test", "en"): 1104},
    ),
)
