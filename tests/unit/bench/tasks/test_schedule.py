"""The learning rate against transformers' schedule."""

from __future__ import annotations

import pytest
import torch
from transformers import get_linear_schedule_with_warmup

from headway.bench.tasks.training.optimizer import inverse_square_root, linear


@pytest.mark.parametrize(("steps", "warmup"), [(40, 0.025), (200, 0.1), (7, 0.5), (10, 0.0), (1, 0.0), (3, 0.99)])
def test_every_step_has_the_rate_of_transformers(steps, warmup):
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.0018)
    schedule = get_linear_schedule_with_warmup(optimizer, round(warmup * steps), steps)
    for step in range(steps):
        rate = linear(step, steps=steps, warmup=warmup, peak=0.0018)
        assert rate == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)
        optimizer.step()
        schedule.step()
    assert linear(steps, steps=steps, warmup=warmup, peak=0.0018) == 0.0


def test_the_papers_warm_up_ends_at_its_peak():
    rising = round(0.025 * 500_000)
    assert linear(rising, steps=500_000, warmup=0.025, peak=0.0018) == 0.0018
    assert linear(rising - 1, steps=500_000, warmup=0.025, peak=0.0018) < 0.0018


@pytest.mark.parametrize(("width", "warmup"), [(512, 4000), (1024, 4000), (64, 1)])
def test_inverse_square_root_is_equation_3_of_vaswani_et_al(width, warmup):
    for number in (1, 2, warmup - 1, warmup, warmup + 1, 10 * warmup, 100_000):
        if number >= 1:
            wanted = width**-0.5 * min(number**-0.5, number * warmup**-1.5)
            found = inverse_square_root(number - 1, warmup=warmup, peak=(width * warmup) ** -0.5)
            assert found == pytest.approx(wanted, rel=1e-12)
