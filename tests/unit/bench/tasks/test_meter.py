"""The meter: means of what it was given, and the first step that broke."""

from __future__ import annotations

import json
import math

import pytest
import torch

from headway.bench.tasks.training.distributed import Processes
from headway.bench.tasks.training.journal import Meter


@pytest.fixture(scope="module")
def processes():
    return Processes(cpu=True)


def add(meter, step, loss, norm=1.0):
    meter.add(step, torch.tensor(loss), torch.tensor(norm))


def test_the_mean_since_the_last_reset(processes):
    meter = Meter(processes)
    for step, loss in enumerate([4.0, 2.0, 3.0]):
        add(meter, step, loss, norm=float(step))
    reading = meter.read()
    assert (reading.loss, reading.gradient_norm, reading.broken_step) == (3.0, 2.0, None)
    meter.reset()
    add(meter, 3, 1.5)
    assert meter.read().loss == 1.5


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_the_first_broken_step_is_remembered(processes, broken):
    meter = Meter(processes)
    add(meter, 5, 1.0)
    add(meter, 6, 1.0, norm=broken)
    add(meter, 7, broken)
    add(meter, 8, 1.0)
    assert meter.read().broken_step == 6


def test_it_goes_on_exactly_from_what_was_saved(processes):
    whole, first = Meter(processes), Meter(processes)
    for step, loss in enumerate([0.1, 0.7, 1 / 3]):
        add(whole, step, loss)
        if step < 2:
            add(first, step, loss)
    second = Meter(processes, **json.loads(json.dumps(first.saved())))
    add(second, 2, 1 / 3)
    assert second.read() == whole.read()
