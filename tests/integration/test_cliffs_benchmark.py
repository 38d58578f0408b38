"""The benchmark of all kinds of calls runs from end to end on a CPU, and its record becomes a table."""

import copy
import json
import sys

import pytest
import torch

from benchmarks import cliff_rows, cliff_table, cliffs, report
from benchmarks.attention_inputs import BIASES, Inputs
from benchmarks.attention_rows import MODES
from benchmarks.cliff_rows import CLIFFS, GENERAL, PEERS, on_general_kernels, rows, run_once, without_hopper_kernels
from benchmarks.parity import is_right


def run(out, *options):
    with pytest.MonkeyPatch.context() as patch:
        fixed = ["--tiny", "--rounds", "2", "--seconds", "1e5", "--out", str(out)]
        patch.setattr(sys, "argv", ["cliffs", *fixed, *options])
        cliffs.main()


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    out = tmp_path_factory.mktemp("cliffs")
    run(out)
    (path,) = out.iterdir()
    assert path.name.startswith("cliffs_")
    return json.loads(path.read_text())


def test_every_row_is_right_and_keeps_its_samples(record):
    (found,) = record["shapes"].values()
    assert list(found) == list(rows(False, CLIFFS)) and list(record["cliffs"]) == list(CLIFFS)
    for row in found.values():
        for setting in row["settings"].values():
            assert all(is_right(setting[mode]["parity"]) for mode in MODES)
        assert all(len(row["from Python"][mode]["milliseconds"]) == 2 for mode in MODES)
    assert all(set(found[name]["backend"]) == set(MODES) for name in CLIFFS)
    for row in record["host"]["rows"].values():
        assert all(len(row["from Python"][mode]["milliseconds"]) == 2 for mode in MODES)


def of_a_gpu(record):
    record = copy.deepcopy(record)
    environment = {**record["environment"], "gpu": "a GPU", "triton": "3.6.0"}
    return {**record, "environment": environment, "path": "benchmarks/results/a.json"}


def test_the_table_has_every_row_with_its_aim(record):
    text = cliff_table.page(of_a_gpu(record))
    (found,) = record["shapes"].values()
    name, base = "DeBERTa, c2p + p2c, 512 rows by buckets", CLIFFS["DeBERTa, c2p + p2c, 512 rows by buckets"].base
    samples = [[found[row]["from Python"][mode]["milliseconds"] for row in (name, base)] for mode in MODES]
    middle = [sum(a / b for a, b in zip(ours, theirs, strict=True)) / 2 for ours, theirs in samples]
    assert f"| {name} | 3.50 / 4.50 | {middle[0]:.2f} / {middle[1]:.2f} |" in text
    assert all(f"| {name} | " in text for name in (*CLIFFS, *PEERS.values()))
    assert f"| {cliffs.HOST} (torch without bias: " in text
    assert cliff_table.wrong(record) == {}


def test_what_is_wrong_refused_or_late_has_no_number(record):
    record = of_a_gpu(record)
    (found,) = record["shapes"].values()
    for name, checked in {
        "Toeplitz, D = 64": {"parity": {"output": 1.01}},
        "Toeplitz, D = 32": {"problem": cliffs.LATE},
        f"Toeplitz, D = 32{GENERAL}": {"problem": "NotImplementedError: backend 'triton' cannot run this call"},
    }.items():
        found[name] = {"settings": {"": dict.fromkeys(MODES, checked)}, "chosen": {}}
    text = cliff_table.page(record)
    assert "| Toeplitz, D = 64 | 1.00 / 1.15 | wrong / wrong |" in text
    assert "| Toeplitz, D = 32 | 1.15 / 1.35 | – / – | – / – |" in text
    problems = cliff_table.wrong(record)
    where = {name: [f"{name}, n=16 B=3, {mode}" for mode in MODES] for name in ("Toeplitz, D = 64", "Toeplitz, D = 32")}
    assert problems == {
        "errors over what is allowed: {'output': 1.01}": where["Toeplitz, D = 64"],
        cliffs.LATE: where["Toeplitz, D = 32"],
    }


def test_docs_get_the_section_with_the_first_record(record, monkeypatch):
    monkeypatch.setattr(report, "TABLES", {"cliffs": report.cliffs})
    page = "Before.\n\n<!-- table: cliffs -->\n<!-- end -->\n"
    monkeypatch.setattr(report, "newest_or_none", lambda name: None)
    assert report.rendered(page) == page
    monkeypatch.setattr(report, "newest_or_none", lambda name: of_a_gpu(record))
    written = report.rendered(page)
    assert "## Every kind of call\n" in written and report.rendered(written) == written
    assert "<!-- table: cliffs -->\n<!-- end -->" in (report.ROOT / "docs" / "gpu.md").read_text() or list(
        (report.ROOT / "benchmarks" / "results").glob("cliffs_*.json")
    )


def test_some_rows_alone_and_an_unknown_name(tmp_path):
    run(tmp_path, "--only", "low rank 64", "D = 256")
    (path,) = tmp_path.iterdir()
    found = json.loads(path.read_text())
    assert list(found["cliffs"]) == ["Toeplitz, D = 256", "low rank 64, D = 128"] and "host" not in found
    with pytest.raises(SystemExit, match=r"--only 'nobody'.*Toeplitz, D = 64; "):
        run(tmp_path, "--only", "nobody")


def test_what_time_does_not_suffice_for_is_left_out_and_said(tmp_path):
    with pytest.raises(SystemExit, match=r"left out: [^:]*:\n  Toeplitz, D = 32, n=16 B=3, forward\n"):
        run(tmp_path, "--only", "D = 32", "--seconds", "0")
    assert len(list(tmp_path.glob("cliffs_*.json"))) == 1


def test_a_wrong_row_has_no_time_and_the_others_have(tmp_path, monkeypatch):
    def doubled(gpu, chosen):
        every = rows(gpu, chosen)
        right = every["Toeplitz, D = 32"].settings[""]
        every["Toeplitz, D = 32"].settings[""] = lambda x: 2 * right(x)
        return every

    monkeypatch.setattr(cliffs, "rows", doubled)
    with pytest.raises(SystemExit, match=r"over what is allowed: [^\n]*\n  Toeplitz, D = 32, n=16 B=3, forward\n"):
        run(tmp_path, "--only", "Toeplitz, D = 32", "Toeplitz, D = 80")
    found = json.loads(next(tmp_path.glob("cliffs_*.json")).read_text())["shapes"]["n=16 B=3"]
    timed = {name for name, row in found.items() if "from Python" in row}
    assert timed == set(found) - {"Toeplitz, D = 32"}


def test_without_a_gpu_it_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["cliffs"])
    with pytest.raises(SystemExit, match="needs a CUDA GPU"):
        cliffs.main()


def test_rows_of_a_gpu_name_kernels_and_have_bases():
    every = rows(True, CLIFFS)
    for name, cliff in CLIFFS.items():
        base = every[cliff.base]
        assert set(base.settings) == {"cuDNN", "FlashAttention-2", "efficient"}
        assert (base.form, base.causal, base.bias) == (cliff.form, cliff.causal, "none")
        assert every[name].form == every[name + GENERAL].form == cliff.form
    assert len({cliff.base for cliff in CLIFFS.values()}) == 9


def test_general_kernels_are_those_of_a_gpu_without_hoppers(monkeypatch):
    hopper = pytest.importorskip("headway.attention.triton.hopper")
    monkeypatch.setattr(hopper, "_capable", lambda device: True)
    like = torch.empty(2, 3, 512, 64, dtype=torch.bfloat16, device="meta")
    seen = []

    def attend(x):
        seen.append(hopper.takes_kind(like.dtype, 64, torch.device("cuda", 0)))
        return x

    assert on_general_kernels(attend)(1) == 1
    attend(1)
    assert seen == [False, True]
    with pytest.raises(RuntimeError, match="inside"), without_hopper_kernels():
        raise RuntimeError("inside")
    assert hopper._capable(0)


def test_calls_that_are_made_ahead_are_those_of_the_rows(monkeypatch):
    made = []
    monkeypatch.setattr(cliff_rows, "train", lambda attend, x, wanted: made.append((x.form, wanted, attend(x).shape)))
    run_once("Toeplitz, D = 80" + GENERAL, (16, 3), gpu=False)
    assert made == [(CLIFFS["Toeplitz, D = 80"].form, BIASES["Toeplitz"].wanted, (1, 10, 16, 80))]


def test_processes_make_calls_ahead():
    name = "Toeplitz, D = 32" + GENERAL
    assert cliff_rows.compile_ahead([name], (16, 3), 1000.0, gpu=False) == 1
    assert cliff_rows.compile_ahead([name], (0, 3), 1000.0, gpu=False) == 0  # a call that cannot be made


def test_padding_is_a_suffix_and_one_text_is_whole():
    x = Inputs(512, 32, "cpu")
    assert x.lengths.min() == 448 and x.lengths.max() == 512
    torch.testing.assert_close(x.key_mask[:, 0, 0].sum(1), x.lengths)
    assert torch.equal(x.documents[0].bincount(), torch.full((4,), 128))
