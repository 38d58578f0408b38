"""The parallel text of WMT: training corpora of each year, and its test sets, as files and on the Hub.

Files have the names that statmt.org gives them, plain or with .gz or .xz after the name, in one folder for each pair of
languages: de-en/europarl-v7.de-en.de, de-en/newstest2014.de and so on. The pair is written with English last in both
directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Corpora by year and language beside English; each is two files that end in the language.
TRAINING: dict[str, dict[str, tuple[str, ...]]] = {
    "wmt14": {
        "de": ("europarl-v7.de-en", "commoncrawl.de-en", "news-commentary-v9.de-en"),
        "fr": (
            "europarl-v7.fr-en",
            "commoncrawl.fr-en",
            "undoc.2000.fr-en",
            "news-commentary-v9.fr-en",
            "giga-fren.release2.fixed",
        ),
    },
    "wmt15": {"de": ("europarl-v7.de-en", "commoncrawl.de-en", "news-commentary-v10.de-en")},
    # Chen et al. (2021b), App. A, name these three of WMT 2018, which has more.
    "wmt18": {
        "cs": ("europarl-v7.cs-en", "commoncrawl.cs-en", "news-commentary-v13.cs-en"),
        "de": ("europarl-v7.de-en", "commoncrawl.de-en", "news-commentary-v13.de-en"),
    },
}
# Sentences of test sets by the language beside English.
NEWSTEST_SENTENCES: dict[str, dict[str, int]] = {
    "newstest2012": {"cs": 3003, "de": 3003, "fr": 3003},
    "newstest2013": {"cs": 3000, "de": 3000, "fr": 3000},
    "newstest2014": {"cs": 3003, "de": 3003, "fr": 3003},
    "newstest2015": {"cs": 2656, "de": 2169},
    "newstest2016": {"cs": 2999, "de": 2999},
    "newstest2017": {"cs": 3005, "de": 3004},
    "newstest2018": {"cs": 2983, "de": 2998},
}
NEWSTEST_ON_HUB = {  # dataset and split; {} is the pair
    "newstest2013": "hub:wmt14:{}:validation",
    "newstest2014": "hub:wmt14:{}:test",
    "newstest2015": "hub:wmt15:{}:test",
    "newstest2016": "hub:wmt16:{}:test",
    "newstest2017": "hub:wmt18:{}:validation",
    "newstest2018": "hub:wmt18:{}:test",
}


def wmt_text(year: str, direction: str, folder: Path | None, *, dev: str, test: Sequence[str]) -> dict[str, Any]:
    """Return the settings of `ParallelData` for a year's training text and named test sets.

    Args:
        year: a key of `TRAINING`, such as wmt14.
        direction: such as EN-DE.
        folder: has a folder for each pair, such as de-en/; None takes the Hub, whose training text has all corpora of
            the year.
        dev: test set to evaluate on in training, such as newstest2013.
        test: test sets to score.
    """
    source, target = direction.lower().split("-")
    other = target if source == "en" else source
    pair = f"{other}-en"
    common = {"languages": f"{source}-{target}"}
    if folder is None:
        return {
            **common,
            "source": f"hub:{year}:{pair}",
            "dev_source": NEWSTEST_ON_HUB[dev].format(pair),
            "test": {name: NEWSTEST_ON_HUB[name].format(pair) for name in test},
        }
    corpora = TRAINING[year][other]
    wanted = [f"{name}.{side}" for name in (*corpora, dev, *test) for side in (source, target)]
    found = {name: _find(folder / pair / name) for name in wanted}
    if missing := [name for name, path in found.items() if path is None]:
        raise FileNotFoundError(
            f"data: {direction} needs {', '.join(dict.fromkeys(wanted))} in {folder / pair}, plain or with .gz or .xz; "
            f"there is no {', '.join(dict.fromkeys(missing))}. They are on statmt.org/{year}."
        )

    def files(names: Sequence[str], side: str) -> str:
        return "+".join(str(found[f"{name}.{side}"]) for name in names)

    return {
        **common,
        "source": files(corpora, source),
        "target": files(corpora, target),
        "dev_source": files([dev], source),
        "dev_target": files([dev], target),
        "test": {name: f"{files([name], source)},{files([name], target)}" for name in test},
    }


def _find(path: Path) -> Path | None:
    """Return a file, or its compressed form, or None."""
    return next((each for each in (path, *(Path(f"{path}{end}") for end in (".gz", ".xz"))) if each.is_file()), None)
