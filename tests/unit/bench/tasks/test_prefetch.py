"""Batches ahead of time: in order, no more than asked, and errors where they belong."""

from __future__ import annotations

import threading

import pytest

from headway.bench.tasks.training.loop import prefetched


@pytest.mark.parametrize("steps", [range(0), range(1), range(3, 5), range(4, 20)])
def test_every_step_once_and_in_order(steps):
    made = []

    def make(step):
        made.append(step)
        return step * step

    assert list(prefetched(make, steps)) == [(step, step * step) for step in steps]
    assert made == list(steps)


def test_work_goes_on_while_the_consumer_does():
    second = threading.Event()

    def make(step):
        if step == 1:
            second.set()
        return threading.current_thread()

    stream = prefetched(make, range(10))
    _, thread = next(stream)
    assert thread is not threading.current_thread()
    assert second.wait(timeout=10)  # made although nobody has asked for it
    stream.close()


def test_an_error_is_raised_at_its_step_and_stops_the_thread():
    def make(step):
        if step == 2:
            raise ValueError("no such shard")
        return step

    stream = prefetched(make, range(10))
    assert [next(stream), next(stream)] == [(0, 0), (1, 1)]
    with pytest.raises(ValueError, match="no such shard"):
        next(stream)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("batches")]
