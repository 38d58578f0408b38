"""The peak of memory that the process's own account shows."""

import subprocess
import sys

import pytest

from headway.bench.cost.memory import RESET, STATUS, Peak

MEBI = 2**20

linux = pytest.mark.skipif(not (STATUS.exists() and RESET.exists()), reason="the account is Linux's")


PEAKS = """
from mmap import mmap
from headway.bench.cost.memory import Peak

def hold(mebibytes):  # of the system's memory, not of an allocator that may keep it
    with mmap(-1, mebibytes * 2**20) as pages:
        for page in range(0, len(pages), 4096):
            pages[page] = 1

peak = Peak("cpu")
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
    monkeypatch.setattr("headway.bench.cost.memory.STATUS", tmp_path / "none")
    peak = Peak("cpu")
    peak.reset()
    assert peak.read() is None
