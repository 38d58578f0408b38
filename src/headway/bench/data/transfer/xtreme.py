"""XTREME's tasks with a sentence pair or a question, and SQuAD, on which the questions are trained.

Papers:  Hu et al. (2020), "XTREME"; Conneau et al. (2018), XNLI; Yang et al. (2019), PAWS-X; Artetxe et al. (2020),
         XQuAD; Lewis et al. (2020), MLQA; Clark et al. (2020), TyDi QA; Rajpurkar et al. (2016), SQuAD

Each is read as its authors publish it and as XTREME does: there files have no header, and those of the hidden test sets
(XNLI and PAWS-X test, TyDiQA dev, MLQA test) have no labels.
"""

from __future__ import annotations

from headway.bench.data.transfer.glue import NLI, SPLITS, YES_NO
from headway.bench.data.transfer.spec import FileLayout, HubLayout, Table, TaskSpec

XNLI_LANGUAGES = ("en", "ar", "bg", "de", "el", "es", "fr", "hi", "ru", "sw", "th", "tr", "ur", "vi", "zh")
PAWSX_LANGUAGES = ("en", "de", "es", "fr", "ja", "ko", "zh")
XQUAD_LANGUAGES = ("en", "ar", "de", "el", "es", "hi", "ru", "th", "tr", "vi", "zh")  # and ro, which came later
MLQA_LANGUAGES = ("en", "ar", "de", "es", "hi", "vi", "zh")
TYDIQA_LANGUAGES = {
    "en": "english",
    "ar": "arabic",
    "bn": "bengali",
    "fi": "finnish",
    "id": "indonesian",
    "ko": "korean",
    "ru": "russian",
    "sw": "swahili",
    "te": "telugu",
}
TYDIQA_DEV = (440, 921, 113, 782, 565, 276, 812, 499, 669)
TYDIQA_TRAIN = (3696, 14_805, 2390, 6855, 5702, 1625, 6490, 2755, 5563)
MLQA_DEV = (1148, 517, 512, 500, 507, 511, 504)
MLQA_TEST = (11_590, 5335, 4517, 5253, 4918, 5495, 5137)

_PLAIN = Table(first=0, second=1, label=2, width=3)
_XNLI = Table(first="sentence1", second="sentence2", label="gold_label", language="language")
_PAWSX = Table(first="sentence1", second="sentence2", label="label", id="id")
_ANSWERS = ("f1", "exact_match")


def _tydiqa(split: str) -> tuple[FileLayout, ...]:
    """Name the file of a language as XTREME does, and as the authors do."""
    return (
        FileLayout(f"tydiqa-goldp-v1.1-{split}/tydiqa.goldp.{{language}}.{split}.json"),
        FileLayout(f"tydiqa-goldp-v1.1-{split}/tydiqa-goldp-{split}-{{prefix}}.json"),
    )


XTREME: tuple[TaskSpec, ...] = (
    TaskSpec(
        name="xnli",
        group="xtreme",
        kind="classes",
        labels=NLI,
        aliases={"contradictory": "contradiction"},  # in the machine-translated training files
        splits={
            "train": (
                FileLayout("train-{language}.tsv", _PLAIN),
                FileLayout("multinli.train.{language}.tsv", Table(first="premise", second="hypo", label="label")),
            ),
            **{
                split: (
                    FileLayout(f"{split}-{{language}}.tsv", _PLAIN),
                    FileLayout(f"xnli.{split}.tsv", _XNLI),
                    FileLayout(f"xnli.{split}.jsonl", _XNLI),
                )
                for split in ("dev", "test")
            },
        },
        hub=HubLayout(
            name="facebook/xnli",
            config="{language}",
            splits=SPLITS,
            table=Table(first="premise", second="hypothesis", label="label"),
        ),
        languages=XNLI_LANGUAGES,
        published={
            (split, language): size
            for language in XNLI_LANGUAGES
            for split, size in (("train", 392_702), ("dev", 2490), ("test", 5010))
        },
    ),
    TaskSpec(
        name="pawsx",
        group="xtreme",
        kind="classes",
        labels=YES_NO,
        splits={
            "train": (
                FileLayout("train-{language}.tsv", _PLAIN),
                FileLayout("{language}/train.tsv", _PAWSX),
                FileLayout("{language}/translated_train.tsv", _PAWSX),
            ),
            **{
                split: (
                    FileLayout(f"{split}-{{language}}.tsv", _PLAIN),
                    FileLayout(f"{{language}}/{split}_2k.tsv", _PAWSX),
                )
                for split in ("dev", "test")
            },
        },
        hub=HubLayout(name="google-research-datasets/paws-x", config="{language}", splits=SPLITS, table=_PAWSX),
        languages=PAWSX_LANGUAGES,
        published={
            (split, language): size
            for language in PAWSX_LANGUAGES
            for split, size in (("train", 49_401), ("dev", 2000), ("test", 2000))
        },
    ),
    TaskSpec(
        name="squad",
        group="xtreme",
        kind="spans",
        metrics=_ANSWERS,
        splits={"train": (FileLayout("train-v1.1.json"),), "dev": (FileLayout("dev-v1.1.json"),)},
        hub=HubLayout(name="rajpurkar/squad", splits={"train": "train", "dev": "validation"}),
        published={("train", "en"): 87_599, ("dev", "en"): 10_570},
    ),
    TaskSpec(
        name="xquad",
        group="xtreme",
        kind="spans",
        metrics=_ANSWERS,
        splits={"test": (FileLayout("xquad.{language}.json"),)},
        hub=HubLayout(name="google/xquad", config="xquad.{language}", splits={"test": "validation"}),
        languages=XQUAD_LANGUAGES,
        published={("test", language): 1190 for language in (*XQUAD_LANGUAGES, "ro")},
    ),
    TaskSpec(
        name="mlqa",
        group="xtreme",
        kind="spans",
        metrics=_ANSWERS,
        answers="mlqa",
        splits={
            split: (FileLayout(f"{split}/{split}-context-{{context}}-question-{{question}}.json"),)
            for split in ("dev", "test")
        },
        hub=HubLayout(
            name="google/xtreme",
            config="MLQA.{context}.{question}",
            splits={"dev": "validation", "test": "test"},
        ),
        languages=MLQA_LANGUAGES,
        published={
            (split, language): size
            for split, sizes in (("dev", MLQA_DEV), ("test", MLQA_TEST))
            for language, size in zip(MLQA_LANGUAGES, sizes, strict=True)
        },
    ),
    TaskSpec(
        name="tydiqa",
        group="xtreme",
        kind="spans",
        metrics=_ANSWERS,
        splits={"train": _tydiqa("train"), "dev": _tydiqa("dev")},
        hub=HubLayout(
            name="google-research-datasets/tydiqa",
            config="secondary_task",
            splits={"train": "train", "dev": "validation"},
            prefixes=TYDIQA_LANGUAGES,
        ),
        languages=tuple(TYDIQA_LANGUAGES),
        language_names=TYDIQA_LANGUAGES,
        published={
            (split, language): size
            for split, sizes in (("train", TYDIQA_TRAIN), ("dev", TYDIQA_DEV))
            for language, size in zip(TYDIQA_LANGUAGES, sizes, strict=True)
        },
        repeated_ids=True,
    ),
)
