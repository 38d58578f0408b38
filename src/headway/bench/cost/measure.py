"""`measure`: build every row, check it, and time those that are right, in turns."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence

import torch

from headway.bench.cost.bench import Case, Turn
from headway.bench.cost.config import CostConfig
from headway.bench.cost.parity import wrong
from headway.bench.cost.table import CostTable, Measurement, Timing
from headway.bench.cost.turns import Lost, Player, players
from headway.storage import environment

TURN_SECONDS = {"cpu": 0.25, "cuda": 0.3}  # how long a turn should take at least
MOST_STEPS = 200
GRACE = 60.0  # seconds by which a turn may miss the deadline before its row is taken to hang


def measure(config: CostConfig, tell: Callable[[str], None] = lambda text: None) -> CostTable:
    """Time, memory, parameters and FLOPs of every row, in every model and at every length.

    Rows of one model and length take turns, round after round, each in its own process. A row whose output or gradients
    are wrong, and one that breaks, is in the table with its problem and without times. In a script, call it under
    `if __name__ == "__main__":`, as everything that starts processes.

    Args:
        tell: called with what is going on.
    """
    cores = _cores()
    config = config.resolved(cores)
    assert config.models is not None and config.together is not None
    groups = [(model, length) for model in config.models for length in config.lengths]
    share = None if config.minutes is None else 60 * config.minutes / len(groups)
    begin = time.monotonic()
    threads = torch.get_num_threads() if config.device == "cpu" else max(1, cores // config.together)
    found: list[Measurement] = []
    for number, (model, length) in enumerate(groups):
        cases = [Case(config=config, row=row, model=model, length=length, threads=threads) for row in config.encodings]
        deadline = None if share is None else begin + (number + 1) * share

        def say(text: str, model: str = model, length: int = length) -> None:
            tell(f"{model}, n = {length}: {text}")

        found += _race(cases, deadline, say)
    return CostTable(config=config, environment={**environment(), "threads": threads}, measurements=tuple(found))


def _race(cases: Sequence[Case], deadline: float | None, tell: Callable[[str], None]) -> list[Measurement]:
    """All rows of one model and length."""
    config = cases[0].config
    assert config.together is not None
    with players(cases, config.together, _earlier(deadline), tell) as all_players:
        for player in all_players:
            if player.prepared is not None:
                player.problem = wrong(player.prepared.parity)
        turns: dict[str, dict[str, list[Turn]]] = {player.case.row: {} for player in all_players}
        for mode in config.modes:
            steps = _steps(all_players, mode, deadline)
            for number in range(config.rounds):
                if number > 0 and deadline is not None and time.monotonic() > deadline:
                    break
                tell(f"{mode}, round {number + 1} of {config.rounds}")
                able = [player for player in all_players if player.problem is None]
                for player in able[number % max(1, len(able)) :] + able[: number % max(1, len(able))]:
                    turn = _turn(player, mode, steps, deadline)
                    if turn is not None:
                        turns[player.case.row].setdefault(mode, []).append(turn)
        return [_measurement(player, turns[player.case.row]) for player in all_players]


def _earlier(deadline: float | None) -> float | None:
    """Until when rows get ready: a quarter of what is left belongs to the rounds."""
    now = time.monotonic()
    return None if deadline is None else now + 0.75 * (deadline - now)


def _steps(all_players: Sequence[Player], mode: str, deadline: float | None) -> int:
    """How many steps are a turn, the same for all rows, by the baseline's time."""
    able = [player for player in all_players if player.problem is None]
    able.sort(key=lambda player: player.case.row != player.case.config.baseline)
    for player in able:
        turn = _turn(player, mode, 1, deadline)
        if turn is not None:
            least = TURN_SECONDS[torch.device(player.case.config.device).type]
            return min(MOST_STEPS, math.ceil(least / turn.seconds))
    return 1


def _turn(player: Player, mode: str, steps: int, deadline: float | None) -> Turn | None:
    limit = None if deadline is None else max(deadline, time.monotonic()) + GRACE
    try:
        return player.turn(mode, steps, limit)
    except Lost as problem:
        player.give_up(str(problem))
        return None


def _measurement(player: Player, turns: dict[str, list[Turn]]) -> Measurement:
    case, prepared = player.case, player.prepared
    timings = {}
    if prepared is not None and player.problem is None:
        for mode, found in turns.items():
            timings[mode] = Timing(
                seconds=tuple(turn.seconds for turn in found),
                launched=tuple(turn.launched for turn in found),
                flops=prepared.flops[mode],
                peak_bytes=prepared.peak_bytes[mode],
            )
    return Measurement(
        row=case.row,
        model=case.model,
        length=case.length,
        batch=case.config.batch_of(case.length),
        parameters=None if prepared is None else prepared.parameters,
        parity=None if prepared is None else prepared.parity,
        problem=player.problem,
        **timings,
    )


def _cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
