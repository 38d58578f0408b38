"""The peak of memory that the process's own account shows."""

import pytest
import torch

from headway.cost.memory import RESET, STATUS, Peak

MEBI = 2**20

linux = pytest.mark.skipif(not (STATUS.exists() and RESET.exists()), reason="the account is Linux's")


@linux
def test_a_peak_is_seen_after_it_has_gone():
    peak = Peak("cpu")
    peak.reset()
    large = torch.ones(64 * MEBI)  # 256 MiB
    del large
    high = peak.read()
    assert 250 * MEBI < high < 300 * MEBI
    peak.reset()
    small = torch.ones(16 * MEBI)
    assert 60 * MEBI < peak.read() < 120 * MEBI
    del small


def test_elsewhere_it_is_not_known(monkeypatch, tmp_path):
    monkeypatch.setattr("headway.cost.memory.STATUS", tmp_path / "none")
    peak = Peak("cpu")
    peak.reset()
    assert peak.read() is None
