"""Saved results of a small study that nobody ran, with a hostile name and everything that a report can show."""

from __future__ import annotations

HOSTILE = "<script>document.title = 'taken'</script> & 100% {x}_$y|z"


def cell(values, *, expected=3, published=None, verdict=None):
    ordered = sorted(values)
    summary = None
    if values:
        summary = {
            "median": ordered[len(ordered) // 2],
            "low": ordered[0],
            "high": ordered[-1],
            "deviation": 1.0 if len(values) > 1 else None,
            "runs": len(values),
        }
    test = None
    if verdict is not None:
        test = {"pairs": len(values), "difference": -1.5, "p": 0.25, "adjusted": 0.5, "needed": 7, "verdict": verdict}
    return {
        "values": {str(seed): value for seed, value in enumerate(values)},
        "expected": expected,
        "rate": 0.001,
        "summary": summary,
        "published": published,
        "test": test,
    }


def row(name, encoding, place):
    return {
        "name": name,
        "encoding": encoding,
        "changes": {},
        "published": {},
        "place": place,
        "contestant": encoding.split(":")[0],
    }


def column(name, **rest):
    return {
        "name": name,
        "source": "finetune",
        "task": "cola",
        "value": "score",
        "measure": "Matthews",
        "scale": 100.0,
        "digits": 1,
        "higher": True,
        "chance": 0.0,
        "order": True,
        **rest,
    }


def timing(seconds):
    return {"seconds": seconds, "flops": 2_000_000_000, "peak_bytes": 3 * 2**20}


def study_results():
    names = ("learned", HOSTILE, "diet-rel")
    cost_rows = [
        {
            "row": encoding,
            "model": "tiny",
            "length": 128,
            "batch": 8,
            "parameters": 1000,
            "problem": None,
            "ratios": {"training": {"median": ratio, "low": ratio - 0.1, "high": ratio + 0.1}},
            "training": timing(0.01 * ratio),
        }
        for encoding, ratio in (("learned", 1.0), ("tisa", 1.2), ("diet-rel", 1.1))
    ]
    cost_rows[1] |= {"training": None, "ratios": {"training": None}, "problem": "outputs differ from the formula"}
    return {
        "study": {
            "name": "fake",
            "size": "quick",
            "title": f"A study of {HOSTILE}",
            "paper": "Somebody (2021)",
            "notes": ["A note with <b>markup</b>."],
            "baseline": "learned",
            "seeds": [0],
            "command": "headway study fake",
            "store": "jobs",
            "collected": "2026-01-01 00:00:00",
            "level": 0.05,
        },
        "rows": [
            row("learned", "learned:segments=input", "input"),
            row(HOSTILE, "tisa", "per-head"),
            row("diet-rel", "diet-rel", "per-head"),
        ],
        "columns": [
            column("CoLA"),
            column("Loss", measure="nats", scale=1.0, digits=3, higher=False, source="pretrain"),
        ],
        "cells": [
            {
                "learned": cell([30.0, 32.0, 31.0], published=58.7),
                HOSTILE: cell([-4.0, 5.0], verdict="too few seeds"),
                "diet-rel": cell([40.0, 41.0, 42.0], published=60.3, verdict="above"),
            },
            {"learned": cell([2.5], expected=1), HOSTILE: cell([], expected=1), "diet-rel": cell([2.25], expected=1)},
        ],
        "claims": [
            {
                "says": "per-head is above input",
                "column": "CoLA",
                "better": ["diet-rel"],
                "than": ["learned"],
                "margin": 0.0,
                "paper": "Chen et al.",
                "verdict": "contradicted",  # not what the cells say: a report judges anew
            }
        ],
        "recipes": {"pretraining": {"seed": 0, "text": {"corpus": [HOSTILE]}}},
        "pretraining": [
            {
                "row": name,
                "seed": 0,
                "parameters": 1234567,
                "evaluation_loss": 2.5,
                "masked_accuracy": 0.25,
                "seconds": 12.0,
                "tokens": 1000,
                "tokens_per_second": 5000.0,
                "curves": {"loss": [[10, 4.0 + at], [20, 3.0 + at]], "evaluation_loss": [[20, 3.1]]},
            }
            for at, name in enumerate(names)
        ],
        "analysis": {
            name: {
                "offsets": [-2, -1, 0, 1, 2],
                "curves": [[[0.0, 1.0, 0.5, 0.2, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0]]],
                "toeplitz_r2": [[1.0, None]],
                "kinds": [["previous", "flat"]],
                "head_dim": 16,
                "ranks": {"whole": {"effective": [[10.0, 12.0]], "relative": [[14.0, 16.0]]}},
                "folder": "analyse-0",
            }
            for name in names[:2]
        },
        "cost": {"rows": cost_rows, "config": {"modes": ["training"]}, "environment": {}},
        "baselines": {"cola": {"bag of words": {"matthews": 0.01}}},
        "data": [{"words": 300, "rows": 40, "tokens": 2000, "corpus": [HOSTILE]}],
        "environment": {"torch": "2.13", "gpu": None},
        "jobs": [
            {
                "key": "pretrain-0",
                "kind": "pretrain",
                "label": "pretrain learned",
                "row": "learned",
                "state": "done",
                "earlier": False,
                "seconds": 12.0,
                "cpu_seconds": 11.0,
                "bytes": 100,
                "why": "",
            },
            {
                "key": "finetune-1",
                "kind": "finetune",
                "label": f"cola, {HOSTILE}",
                "row": HOSTILE,
                "state": "failed",
                "earlier": False,
                "seconds": None,
                "cpu_seconds": None,
                "bytes": None,
                "why": "jobs/finetune-1/log.txt (status 1):\nValueError: <b>broken</b>",
            },
        ],
    }
