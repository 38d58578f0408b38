"""The benchmark of attention runs from end to end on a CPU, and its record becomes tables."""

import json
import sys

import pytest
import torch

from benchmarks import attention, attention_tables, parity
from benchmarks.attention_inputs import BIASES, BUCKETS, FARTHEST, Form, Inputs, log_bucket_rows
from benchmarks.attention_rows import MODES, by_headway, by_torch, rows, train
from benchmarks.attention_shape import Bench, check_setting, right_tiles, time_shape
from benchmarks.flex_tiles import settings

TASKS = [(bias, causal, Form()) for bias in BIASES for causal in (False, True)] + [
    ("Toeplitz", False, Form(heads=12, key_heads=4, width=16)),
    ("matrix of each sequence", True, Form(heads=12, key_heads=4, width=16)),
]


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    out = tmp_path_factory.mktemp("attention")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "TINY", ((16, 2),))
        patch.setattr(sys, "argv", ["attention", "--tiny", "--rounds", "2", "--out", str(out)])
        attention.main()
    (path,) = out.iterdir()
    return json.loads(path.read_text())


def test_every_row_is_right_repeats_itself_and_keeps_its_samples(record):
    (found,) = record["shapes"].values()
    assert list(found) == list(rows(gpu=False))
    for row in found.values():
        for setting in row["settings"].values():
            assert all(parity.is_right(setting[mode]["parity"]) for mode in MODES)
        assert all(row["repeats"].values())
        assert all(len(row["from Python"][mode]["milliseconds"]) == 2 for mode in MODES)
        assert "kept" not in row or row["kept"] == pytest.approx(0.9, abs=0.03)


def test_tables_show_medians_what_is_wrong_and_what_does_not_repeat(record):
    (found,) = record["shapes"].values()
    for row in found.values():
        row["replayed"] = row["from Python"]
    rename = {"torch, no bias": "torch, cuDNN, no bias", "torch, dropout": "torch, cuDNN, dropout"}
    found = {rename.get(name, name): row for name, row in found.items()}
    found["torch, cuDNN, causal"] = found["torch, FlexAttention, learned Toeplitz"] = found["torch, cuDNN, no bias"]
    found["torch, FlashAttention-2, no bias"] = {
        "settings": {"": {mode: {"parity": {"output": 7.0}} for mode in MODES}}, "chosen": {},
    }  # fmt: skip
    found["headway, no bias"]["repeats"]["q"] = False
    middle = [sum(found["headway, no bias"]["replayed"][mode]["milliseconds"]) / 2 for mode in MODES]
    full = {
        **record,
        "environment": {**record["environment"], "gpu": "a GPU", "triton": "3.6.0"},
        "shapes": {"n=16 B=2": found},
        "memory": {"headway, no bias": {"1024": 2**30, "2048": "OutOfMemoryError: no"}},
        "path": "a.json",
    }
    shown = attention_tables.times(full)
    assert f"| headway, no bias | {middle[0]:.3f} / {middle[1]:.3f} |" in shown
    assert "| torch, FlashAttention-2, no bias | wrong / wrong |" in shown
    assert "2 rounds in turns" in shown
    assert "| headway, low rank 64 |" in attention_tables.times_from_python(full)
    assert "| torch, FlashAttention-2, no bias |  | – / – |" in attention_tables.over_cudnn(full)
    assert "| torch, learned matrix / headway, learned matrix (Dense) |" in attention_tables.same_work(full)
    assert "| headway, no bias | no: gradient of q |" in attention_tables.bits(full)
    assert "| headway, no bias | 1.00 | – |" in attention_tables.memory(full)


@pytest.mark.parametrize(("bias", "causal", "form"), TASKS)
def test_pieces_add_up_to_the_whole(monkeypatch, bias, causal, form):
    x = Inputs(10, 3, "cpu", form=form, parameters=BIASES[bias].reads)
    whole = parity.by_formula(x, bias, causal, torch.float64)
    for scores in (10 * 10 * 5, 10 * 10 * 12 * 2):  # five heads at a time, or three that share keys; two sequences
        monkeypatch.setattr(parity, "SCORES_AT_ONCE", scores)
        pieces = parity.by_formula(x, bias, causal, torch.float64)
        assert set(pieces) == {"output", *BIASES[bias].wanted}
        for name, tensor in pieces.items():
            torch.testing.assert_close(tensor, whole[name])


def test_the_mask_of_dropout_is_seen_from_outside():
    x, row = Inputs(70, 2, "cpu"), by_torch(None, dropout=0.1)
    kept = parity.kept_by_dropout(row.settings[""], x)
    exact = parity.judge(x, row.bias, row.causal, kept)
    assert parity.is_right(check_setting(exact, row, row.settings[""], x)["forward+backward"]["parity"])
    other = parity.judge(x, row.bias, row.causal, ~kept)
    assert not parity.is_right(check_setting(other, row, row.settings[""], x)["forward"]["parity"])


@pytest.mark.parametrize("name", ["output", "q", "values"])
@pytest.mark.parametrize("wrong", [lambda t: 1.05 * t, lambda t: t / 0])
def test_a_wrong_output_or_gradient_is_not_right(name, wrong):
    x, row = Inputs(20, 2, "cpu", parameters=("values",)), by_headway("Toeplitz", "eager")
    exact, got = parity.judge(x, row.bias, row.causal), train(row.settings[""], x, row.wanted)
    assert parity.is_right(exact.ratios(got))
    assert not parity.is_right(exact.ratios({**got, name: wrong(got[name])}))


def test_the_fastest_tiles_that_are_right_are_taken(monkeypatch):
    shape, name = (16, 2), "torch, FlexAttention, learned Toeplitz"
    bench = Bench(False, (shape,), rounds=1, rows={name: rows(gpu=True)[name]})
    right = by_headway("Toeplitz", "eager").settings[""]
    tiles = dict.fromkeys(settings(16), right)
    wrong, slow, fast, broken = list(tiles)[:4]
    tiles[wrong] = lambda x: 2 * right(x)
    monkeypatch.setattr("benchmarks.attention_shape.settings", lambda length: tiles)
    times = {wrong: 1.0, slow: 3.0, fast: 2.0}
    bench.tiles = {shape: {each: {mode: {"milliseconds": time} for mode in MODES} for each, time in times.items()}}
    bench.tiles[shape][broken] = {mode: {"problem": "out of shared memory"} for mode in MODES}
    (x,) = bench.inputs(shape).values()
    bench.judges[shape] = parity.judge(x, "Toeplitz", False)
    assert set(right_tiles(bench, shape, name, x)) == {wrong, fast}
    time_shape(bench, shape, 0.0)
    found = bench.found[shape][name]
    assert found["chosen"] == dict.fromkeys(MODES, fast)
    assert found["settings"][broken]["forward"] == {"problem": "out of shared memory"}
    assert set(found["settings"]) == {wrong, slow, fast, broken}


def test_a_wrong_row_of_ours_stops_everything(tmp_path, monkeypatch):
    monkeypatch.setattr(attention, "TINY", ((16, 2),))
    double = by_headway("none", "eager").settings[""]
    every = {**rows(gpu=False), "headway, no bias": by_torch(None)}
    every["headway, no bias"].settings[""] = lambda x: 2 * double(x)
    monkeypatch.setattr(attention, "rows", lambda gpu: every)
    monkeypatch.setattr(sys, "argv", ["attention", "--tiny", "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"headway, no bias, n = 16, forward.*nothing is timed"):
        attention.main()
    assert [path.name for path in tmp_path.iterdir()] == ["unfinished_attention.json"]


def test_buckets_of_deberta_are_those_of_transformers():
    from transformers.models.deberta_v2.modeling_deberta_v2 import build_relative_position

    for length in (1, 100, 700):
        like = torch.zeros(1, length, 1)
        theirs = build_relative_position(like, like, BUCKETS, FARTHEST)[0]  # (Lq, Lk), of i - j
        rows = log_bucket_rows(length)
        offsets = torch.arange(length) - torch.arange(length)[:, None] + length - 1
        torch.testing.assert_close(rows[offsets], theirs.clamp(-BUCKETS, BUCKETS - 1) + BUCKETS)
