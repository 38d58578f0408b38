"""When work is done plainly, recorded and replayed, with a stand-in for CUDA graphs that remembers the work."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch

from headway.bench import recording
from headway.bench.recording import NotRecorded, Recordings, own_stream


class Graph:
    """Keeps what was called while it was recorded."""

    def __init__(self):
        self.recorded = []

    def replay(self):
        for call in self.recorded:
            call()


@pytest.fixture
def device(monkeypatch):
    """A stand-in for CUDA: `device.run(call)` is a kernel, which a recording keeps and does not do."""

    class Device:
        recorder = None

        def run(self, call):
            self.recorder.recorded.append(call) if self.recorder else call()

    made = Device()

    @contextmanager
    def graph(recorder, **options):
        made.recorder, made.options = recorder, options
        try:
            yield
        finally:
            made.recorder = None

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "stream")
    return made


def test_off_all_work_is_done():
    done = []
    recordings = Recordings(on=False)
    for number in range(3):
        recordings("key", lambda number=number: done.append(number))
    assert done == [0, 1, 2] and not recordings.graphs


def test_first_plainly_then_recorded_then_replayed(device):
    recordings, hosts, kernels = Recordings(on=True), [], []

    def work():
        hosts.append("python")
        device.run(lambda: kernels.append("kernel"))

    for calls in range(1, 6):
        recordings("key", work)
        assert len(kernels) == calls  # done once a call, whichever way
    assert len(hosts) == 2  # plainly, and while it was recorded
    assert device.options["pool"] == "pool" and device.options["capture_error_mode"] == "thread_local"


def test_each_key_has_its_own_recording(device):
    recordings, done = Recordings(on=True), []
    for key in ("a", "b", "a", "b", "b", "a"):
        recordings(key, lambda key=key: device.run(lambda: done.append(key)))
    assert done == ["a", "b", "a", "b", "b", "a"]


def test_beyond_the_most_keys_work_is_done_plainly(device, monkeypatch):
    monkeypatch.setattr(recording, "MOST", 2)
    recordings, hosts = Recordings(on=True), []
    for _ in range(3):
        for key in range(3):
            recordings(key, lambda key=key: hosts.append(key))
    assert hosts.count(0) == hosts.count(1) == 2 and hosts.count(2) == 3
    assert len(recordings.graphs) == 2


def test_what_cannot_be_recorded_says_why(device):
    recordings = Recordings(on=True)

    def work():
        if device.recorder:
            raise RuntimeError("operation not permitted\nCUDA kernel errors might be asynchronous")

    recordings("key", work)
    with pytest.raises(NotRecorded, match=r"^operation not permitted$"):
        recordings("key", work)


def test_full_memory_is_no_fault_of_the_recording(device):
    recordings = Recordings(on=True)

    def work():
        if device.recorder:
            raise torch.OutOfMemoryError("full")

    recordings("key", work)
    with pytest.raises(torch.OutOfMemoryError):
        recordings("key", work)


def test_an_optimizer_is_capturable_only_while_it_is_recorded(device):
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
    recordings, seen = Recordings(on=True, optimizer=optimizer), []
    for _ in range(3):
        recordings("key", lambda: seen.append(optimizer.param_groups[0]["capturable"]))
    assert seen == [False, True]
    assert optimizer.param_groups[0]["capturable"] is False


def test_a_stream_of_its_own_is_of_no_matter_on_a_cpu():
    with own_stream(torch.device("cpu")):
        assert torch.ones(2).sum() == 2
