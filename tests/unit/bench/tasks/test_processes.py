"""One process: what the many agree on is what the one says."""

from __future__ import annotations

import pytest
import torch

from headway.bench.tasks.training.distributed import Processes, distribute
from headway.bench.tasks.training.objective import MaskedWords
from headway.models import EncoderForMaskedLM, preset


@pytest.fixture(scope="module")
def processes():
    return Processes(cpu=True)


def objective():
    small = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 40}
    return MaskedWords(EncoderForMaskedLM(preset("tiny", **small)))


def test_alone_it_is_the_main_process(processes):
    assert (processes.rank, processes.world, processes.main) == (0, 1, True)
    assert processes.on_main(lambda: 7) == 7
    assert processes.sum(torch.tensor(2.0)) == 2.0
    with pytest.raises(OSError, match="no disk"):
        processes.on_main(lambda: (_ for _ in ()).throw(OSError("no disk")))


def test_an_error_of_ones_own_is_not_taken_for_a_dead_process(processes):
    with pytest.raises(RuntimeError, match="connection of layers"), processes.explain_lost_processes(lambda: ""):
        raise RuntimeError("connection of layers")


def test_one_process_has_nobody_to_share_parameters_with(processes):
    with pytest.raises(ValueError, match=r"fsdp: expected several processes.*torchrun"):
        distribute(objective(), processes, fsdp=True)
    module = objective()
    assert distribute(module, processes, fsdp=False) is module


def test_the_objective_sums_over_masked_words_and_counts_what_was_named():
    torch.manual_seed(0)
    module = objective().eval()
    words = torch.randint(5, 40, (2, 9))
    places = torch.tensor([1, 4, 12, 0])
    labels = torch.tensor([words[0, 1], 7, words[1, 3], -100])
    batch = {"input_ids": words, "masked_positions": places, "labels": labels}
    found = module(batch, torch.tensor(1.0))
    scores = module.model(words).logits.flatten(0, 1)[places[:3]].double().log_softmax(-1)
    by_hand = -sum(scores[row, label] for row, label in enumerate(labels[:3]))
    named = (scores.argmax(-1) == labels[:3]).sum()
    torch.testing.assert_close(found, torch.stack([by_hand, named.double(), torch.tensor(3.0).double()]))
    module.train()
    assert module(batch, torch.tensor(4.0)).shape == ()
    assert module.count(batch) == 3
