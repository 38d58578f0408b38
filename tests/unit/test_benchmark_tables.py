"""Tables of benchmarks, and those that `fitting_tables` makes, on a terminal of 80 columns."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from benchmarks import attention, cliffs, cpu_attention, pretraining, translation
from benchmarks.attention_shape import Bench
from benchmarks.cliff_rows import CLIFFS, GENERAL, PEERS, rows
from headway.bench.cost import CostConfig, CostTable, Measurement, Timing
from headway.bench.terminal import fitting_tables


def console():
    return Console(file=io.StringIO(), width=80)


def checked(console, *headers):
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for header in headers:
        assert header in text, header
    return text


def test_attention():
    samples = {"replayed": {mode: {"milliseconds": [123.456]} for mode in attention.MODES}}
    rows = ("torch, FlexAttention, learned Toeplitz", "headway, no bias")
    shapes = {f"n={length} B={batch}": dict.fromkeys(rows, samples) for length, batch in attention.SHAPES}
    there = console()
    attention.print_times(shapes, "replayed", there)
    text = checked(there, *shapes)
    assert text.count("123.456 / 123.456") == len(rows) * len(shapes)


def test_cliffs():
    bench = Bench(True, cliffs.SHAPES, 1, rows(True, CLIFFS))
    record = cliffs.record_of(bench, CLIFFS, {})
    samples = {mode: {"milliseconds": [123.456]} for mode in attention.MODES}
    for found in record["shapes"].values():
        for row in found.values():
            row["replayed"] = samples
    record["host"] = {
        "name": cliffs.HOST,
        "aim": cliffs.HOST_AIM,
        "rows": {name: {"from Python": samples} for name in ("headway", "headway" + GENERAL)},
    }
    record["host"]["rows"]["torch, no bias"] = {"from Python": {mode: {"milliseconds": [7.0]} for mode in samples}}
    there = console()
    cliffs.print_cells(record, there)
    text = checked(there, "aim", "general", *(f"n={length}" for length, _ in cliffs.SHAPES))
    assert text.count("1.00 / 1.00") == 2 * (2 * len(CLIFFS) + len(PEERS))
    assert text.count("123.46 / 123.46") == 2
    assert text.count("7.00 / 7.00") == 2  # in the name of a row, which both tables have


def test_attention_on_a_cpu():
    ratios = {name: {"median": 1.23} for name in cpu_attention.TRAINING}
    lengths = [
        {"length": length, "ratios": {"training": ratios, "inference": ratios}} for length, _ in cpu_attention.SHAPES
    ]
    there = console()
    cpu_attention.print_ratios(lengths, there)
    text = checked(there, "training", "inference", *(f"n = {length}" for length, _ in cpu_attention.SHAPES))
    assert text.count("1.23") == 2 * len(lengths) * len(ratios)


def test_pretraining():
    seconds = (0.9, 1.0, 1.1)
    timed = Timing(seconds=seconds, launched=seconds, flops=10**12, peak_bytes=None)
    config = CostConfig(encodings=pretraining.ROWS, models=("bert-base",), lengths=(512,), device="cuda", bf16=True)
    table = CostTable(
        config=config,
        environment={"gpu": "NVIDIA H200"},
        measurements=tuple(
            Measurement(row=row, model="bert-base", length=512, batch=64_000, training=timed, inference=timed)
            for row in pretraining.ROWS
        ),
    )
    there = console()
    there.print(pretraining.speed(table, 512))
    checked(there, "tokens/s", "20-80 %", "MFU", "over trans-", "formers", "same", "work", "32,768.0", "rank=128")


def test_translation():
    encodings = ("learned+diet-abs:rank=64,sharing=layer,segments=per-head", "t5")
    found = {
        "seconds": {key: [0.5, 0.6, 0.7] for key in encodings},
        "times_marian": {key: {"median": 1.5, "low": 1.4, "high": 1.6} for key in encodings},
        "tokens": 10**8,
        "wrong": {"shaw": "greedy words " + "[1, 2, 3]" * 20},
    }
    there = console()
    there.print(translation.table("decoding", found, absolute=True))
    checked(there, "encoding", "times MarianMT", "tokens a second", "1.50 (1.40 to 1.60)", "166,666,667")


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_table_too_wide_becomes_several(width):
    columns = [(f"column {number}", [f"{number}.5", f"{10 * number}"]) for number in range(12)]
    there = Console(file=io.StringIO(), width=width)
    tables = fitting_tables(["a row", "another"], columns, width, title="A title")
    for table in tables:
        there.print(table)
    text = there.file.getvalue()
    assert max(map(len, text.splitlines())) <= width and "…" not in text
    assert sum(len(table.columns) - 1 for table in tables) == len(columns)
    assert text.count("another") == len(tables) > (1 if width < 200 else 0)
    assert text.count("A title") == 1
