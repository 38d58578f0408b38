"""The findings of an analysis in words, each sentence made from measures.json."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from headway.bench.report.page import number, percent

GOOD = 0.9  # R² from which the page says that scores depend almost entirely on the offset

RANKS = ("numerical", "relative", "effective")

KIND_WORDS = {
    "previous": "the previous token",
    "next": "the next token",
    "first": "the first token",
    "local": "tokens nearby",
    "broad": "everything alike",
    "other": "none of these",
}


def findings(measures: dict[str, Any]) -> list[str]:
    """Write the findings at the top of the page."""
    sentences = (_table, _seam, _heads, _fits, _kinds, _texts, _same_token)
    return [sentence for sentence in (say(measures) for say in sentences) if sentence]


def left_out(measures: dict[str, Any]) -> dict[str, str]:
    """Return the reason why each missing part of the analysis is missing."""
    reasons = {
        "table": "The model adds no position to its input, so there is no table of position embeddings to look at.",
        "segments": "The model knows no segments (sentence A, sentence B), so there is no segment pattern.",
        "curves": "The model adds no position bias to its scores, so there are no bias curves.",
        "texts": "No text was analysed, so there are no ranks and no attention on real inputs. "
        "Give one: headway analyze MODEL --text FILE.",
    }
    missing = {part: reason for part, reason in reasons.items() if measures[part] is None}
    if measures["heads"]["r2_carried"] is None:
        missing["carried"] = (
            "The model was not run on positions alone (a decoder that attends to an encoder cannot be), so there is no "
            "R² of positions as they arrive through the network."
        )
    return missing


def tiles(measures: dict[str, Any]) -> list[tuple[str, str]]:
    """List the numbers at the top of the page, with their names."""
    heads = measures["heads"]
    most = max(heads["fits"], key=int)
    shown = [
        ("positions analysed", f"{measures['model']['positions']:,}"),
        ("median Toeplitz R² of F_P over heads", number(_median(heads["r2"]))),
        (f"median R² of TISA fits, S = {most}", number(_median(heads["fits"][most]["r2_matrix"]))),
    ]
    if measures["table"] is not None:
        shown.insert(1, ("Toeplitz R² of the position table", number(measures["table"]["r2"])))
    if measures["texts"] is not None:
        rank = _median(measures["texts"]["ranks"]["average"]["whole"]["effective"])
        shown.append(("median effective rank of scores on text", number(rank, 1)))
    return shown


def kind_counts(measures: dict[str, Any]) -> list[dict[str, Any]]:
    """Count heads of each kind, from positions alone and on texts."""
    alone = Counter(np.ravel(measures["heads"]["kinds"]).tolist())
    text = None if measures["texts"] is None else Counter(np.ravel(measures["texts"]["kinds"]).tolist())
    return [
        {"kind": kind, "words": words, "alone": alone[kind], "text": None if text is None else text[kind]}
        for kind, words in KIND_WORDS.items()
    ]


def _table(measures: dict[str, Any]) -> str:
    table = measures["table"]
    if table is None:
        return "Position is not added to the input: it acts inside the attention heads alone."
    windows = table["windows"]
    r2 = windows["r2"][0]
    sentence = (
        f"{percent(table['r2'])} of the variance of E_P E_Pᵀ follows from the offset j − i alone "
        f"(Toeplitz R² = {number(table['r2'])})"
    )
    if len(r2) > 1:
        sentence += f"; within windows of {windows['size']} positions between {percent(min(r2))} and {percent(max(r2))}"
    return sentence + "."


def _seam(measures: dict[str, Any]) -> str:
    if measures["table"] is None or measures["table"]["seam"]["start"] is None:
        return ""
    start = measures["table"]["seam"]["start"]
    return (
        f"The position vectors change abruptly at position {start}: those on either side have other lengths or other "
        f"angles to their neighbours, as positions do that were trained on different amounts of text."
    )


def _heads(measures: dict[str, Any]) -> str:
    r2 = np.array(measures["heads"]["r2"])
    by = ", by Eq. (2) of Wennberg and Henter (2021) as it is written," if _is_equation(measures) else ""
    return (
        f"The position scores F_P{by} of {(r2 >= GOOD).sum()} of the {r2.size} heads depend almost entirely on the "
        f"offset (Toeplitz R² ≥ {GOOD}); the median over heads is {number(float(np.median(r2)))}."
    )


def _is_equation(measures: dict[str, Any]) -> bool:
    """Return whether F_P is Eq. (2) as written; older analyses, which do not record it, include norms and biases."""
    return bool(measures["heads"].get("formula") == "equation")


def _fits(measures: dict[str, Any]) -> str:
    fits = measures["heads"]["fits"]
    shares = [percent(_median(fit["r2_profile"])) for fit in fits.values()]
    return f"With {_joined(list(fits))} TISA kernels a fit explains {_joined(shares)} of the median head's profile."


def _kinds(measures: dict[str, Any]) -> str:
    counts = [row for row in kind_counts(measures) if row["alone"]]
    parts = [f"{row['alone']} to {row['words']}" for row in counts if row["kind"] != "other"]
    rest = sum(row["alone"] for row in counts if row["kind"] == "other")
    if rest:
        parts.append(f"{rest} to none of these")
    return f"From positions alone, heads attend {_joined(parts)}."


def _texts(measures: dict[str, Any]) -> str:
    if measures["texts"] is None:
        return ""
    ranks = measures["texts"]["ranks"]
    whole, width = ranks["average"]["whole"], ranks["head_dim"]
    sentence = (
        f"On {len(ranks['lengths'])} texts, score matrices have a median numerical rank of "
        f"{number(_median(whole['numerical']), 0)} and an effective rank of {number(_median(whole['effective']), 1)}, "
        f"with heads {width} wide"
    )
    if ranks["within_theorem"] is None:
        return f"{sentence}; {percent(ranks['beyond_head_dim'])} exceed that width, which a bias on the scores allows."
    holds = "none exceeds that width, as must be" if ranks["within_theorem"] else "some exceed that width"
    return f"{sentence}; {holds} where position is added to the input alone."


def _same_token(measures: dict[str, Any]) -> str:
    same_token = (measures["texts"] or {}).get("same_token")
    if same_token is None:
        return ""
    share = np.array(same_token["share"])
    layer, head = np.unravel_index(share.argmax(), share.shape)
    return (
        f"Tokens that a text has more than once attend to their other places most in layer {layer}, head {head}: "
        f"{percent(float(share.max()))} of that head's attention, where attention to all tokens alike would give "
        f"{percent(same_token['chance'])}."
    )


def rank_table(measures: dict[str, Any]) -> dict[str, list[str]]:
    """Write the median and range over heads of each rank in `RANKS`, for each part of the scores."""
    if measures["texts"] is None:
        return {}
    average = measures["texts"]["ranks"]["average"]
    return {part: [_spread(average[part][rank]) for rank in RANKS] for part in average}


def _spread(values: Any) -> str:
    return f"{number(_median(values), 1)} ({number(float(np.min(values)), 1)} to {number(float(np.max(values)), 1)})"


def _joined(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _median(values: Any) -> float:
    return float(np.median(values))
