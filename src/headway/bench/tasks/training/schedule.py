"""The learning rate of a step."""

from __future__ import annotations


def linear(step: int, *, steps: int, warmup: float, peak: float) -> float:
    """Up from 0 to `peak` in a share `warmup` of the steps, then down, to reach 0 after the last one.

    Paper:    Devlin et al. (2019), App. A.2, linear decay; Chen et al. (2021b), Table 7, warm-up as a proportion
    Formula:  peak * s / w for s < w, else peak * (n - s) / (n - w), with w = round(warmup * n)
    Symbols:  s -> step, from 0; n -> steps
    Checked:  tests/unit/bench/tasks/test_schedule.py, against transformers
    """
    rising = round(warmup * steps)
    if step < rising:
        return peak * step / rising
    return peak * max(0, steps - step) / max(1, steps - rising)


def inverse_square_root(step: int, *, warmup: int, peak: float) -> float:
    """Up to `peak` in `warmup` steps, then down with the square root of the steps taken.

    Paper:    Vaswani et al. (2017), Eq. (3), where peak = (d_model * warmup)^-0.5
    Formula:  peak * min((warmup / s)^0.5, s / warmup)
    Symbols:  s -> step + 1, step_num
    Checked:  tests/unit/bench/tasks/test_schedule.py
    """
    taken = step + 1
    return peak * float(min((warmup / taken) ** 0.5, taken / warmup))
