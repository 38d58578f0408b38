"""One row's model: the words that it is given, its steps, what is checked of them, and its peak memory."""

import subprocess
import sys

import pytest
import torch
from torch._inductor.output_code import CompiledFxGraph
from torch.testing import assert_close

from headway.attention.call import self_attention
from headway.bench.cost import CostConfig
from headway.bench.cost.steps import (
    CLEAR_REFS,
    MASK,
    STATUS,
    Case,
    MaskedBatch,
    PeakMemory,
    TimedModel,
    locked_compiled_graphs,
)
from headway.models import EncoderForMaskedLM, context, preset

MEBI = 2**20

linux = pytest.mark.skipif(not (STATUS.exists() and CLEAR_REFS.exists()), reason="the account is Linux's")


def drawn(**changes):
    return MaskedBatch.random(**{"batch": 3, "length": 40, "vocabulary": 2000, "seed": 5, "device": "cpu", **changes})


def test_fifteen_percent_of_every_sequence_are_masked():
    words = drawn()
    assert ((words.input_ids == MASK).sum(1) == 6).all()  # 15 % of 40
    assert (words.input_ids.gather(1, words.columns) == MASK).all()
    assert (words.answers != MASK).all()


def test_the_same_seed_draws_the_same():
    assert torch.equal(drawn().input_ids, drawn().input_ids)
    assert not torch.equal(drawn().input_ids, drawn(seed=6).input_ids)


def test_both_forms_of_labels_ask_the_same():
    torch.manual_seed(0)
    words = drawn()
    model = EncoderForMaskedLM(preset("tiny", vocab_size=2000, encoding="learned")).eval()
    inputs = words.inputs(segments=False)
    few, everywhere = model(**inputs, **words.masked_labels()), model(**inputs, **words.all_labels())
    assert_close(few.loss, everywhere.loss)
    assert few.logits.shape == (18, 2000)


def test_first_sequences_keep_their_words_and_answers():
    words, few = drawn(), drawn().first(2)
    assert torch.equal(few.input_ids, words.input_ids[:2])
    assert torch.equal(few.masked_labels()["labels"], words.masked_labels()["labels"][:12])


def test_segments_halve_a_sequence():
    ids = drawn().inputs(segments=True)["token_type_ids"]
    assert ids.shape == (3, 40)
    assert (ids[:, :20] == 0).all() and (ids[:, 20:] == 1).all()


def timed_model(row, modes):
    config = CostConfig(encodings=(row,), modes=modes, lengths=(16,), models=("tiny",), batch=2, device="cpu").resolved(
        cores=2
    )
    return TimedModel(Case(config=config, row=row, model="tiny", length=16, threads=torch.get_num_threads()))


def test_a_broken_path_is_seen_before_it_is_timed(monkeypatch):
    monkeypatch.setattr(context, "self_attention", lambda qkv, **given: self_attention(qkv, **{**given, "bias": None}))
    errors = timed_model("diet-rel", ("inference",)).prepare().parity
    assert errors["output"] > 1 and errors["inference"] > 1


def test_training_that_does_not_learn_is_an_error():
    trained = timed_model("none", ("training",))
    trained.prepare()
    trained.time("training", 45)
    assert trained.steps == 2 + 1 + 45  # those that are not timed learn as well
    trained.first_loss = 1e-3
    with pytest.raises(
        FloatingPointError,
        match=r"the loss of row 'none' did not fall: 0\.001 at the first step, \d+\.\d+ after 50 steps",
    ):
        trained.time("training", 1)


def test_numbers_that_are_not_finite_are_an_error():
    broken = timed_model("none", ("inference",))
    with torch.no_grad():
        broken.model.encoder.norm.weight.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="inference: hidden states of row 'none' became NaN"):
        broken.time("inference", 1)


def test_a_loss_that_is_no_number_names_row_and_step():
    broken = timed_model("none", ("training",))
    with torch.no_grad():
        broken.model.encoder.norm.weight.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="training: the loss of row 'none' became NaN within 4 steps"):
        broken.time("training", 3)


def test_rows_that_get_ready_use_the_gpu_one_at_a_time(monkeypatch):
    """Else the variant of a kernel that torch's compiler keeps is the one that was disturbed least."""
    told = []

    class Lock:
        def __enter__(self):
            told.append("locked")

        def __exit__(self, *_):
            told.append("free")

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: told.append("done"))
    monkeypatch.setattr(CompiledFxGraph, "__call__", lambda graph, inputs: told.append("runs") or inputs)
    with locked_compiled_graphs(Lock()):
        assert CompiledFxGraph.__call__(None, [1, 2]) == [1, 2]
    assert told == ["locked", "runs", "done", "free"]
    CompiledFxGraph.__call__(None, [])
    assert told[4:] == ["runs"]
    told.clear()
    timed_model("none", ("training", "inference")).prepare(Lock())
    assert told == ["locked", "free"] * 3


PEAKS = """
from mmap import mmap
from headway.bench.cost.steps import PeakMemory

def hold(mebibytes):  # of the system's memory, not of an allocator that may keep it
    with mmap(-1, mebibytes * 2**20) as pages:
        for page in range(0, len(pages), 4096):
            pages[page] = 1

peak = PeakMemory("cpu")
peak.reset()
hold(256)
print(peak.read())
peak.reset()
hold(64)
print(peak.read())
"""


@linux
def test_a_peak_is_seen_after_it_has_gone():
    """In a process of its own: what this one gave back to the system meanwhile would count."""
    done = subprocess.run([sys.executable, "-c", PEAKS], capture_output=True, text=True, check=True)
    high, low = (int(line) for line in done.stdout.split())
    assert 250 * MEBI < high < 300 * MEBI
    assert 60 * MEBI < low < 120 * MEBI


def test_elsewhere_it_is_not_known(monkeypatch, tmp_path):
    monkeypatch.setattr("headway.bench.cost.steps.STATUS", tmp_path / "none")
    peak = PeakMemory("cpu")
    peak.reset()
    assert peak.read() is None
