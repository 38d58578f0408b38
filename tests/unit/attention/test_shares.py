"""How blocks of threads share the backward pass on Hopper: evenly, and with an order of turns at every tile."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")


@pytest.mark.parametrize(
    ("batch", "heads", "length", "teams"),
    [(128, 12, 512, 1), (512, 12, 128, 1), (16, 12, 2048, 11), (2, 12, 8192, 11), (1, 200, 512, 1)],
)
def test_blocks_share_keys_only_where_the_batch_is_too_small(batch, heads, length, teams):
    from headway.attention.triton.hopper import shares

    slots, found = shares(batch, heads, length // 64, length // 128, 132)
    assert found == teams
    assert 1 <= slots <= batch
    assert teams == 1 or slots * heads * teams <= 132  # they run at the same time


def rank(turn: int, member: int, teams: int, item: int, key_blocks: int, tile: int, tiles: int, seen: int) -> int:
    """As `Walk::rank` in hopper_walk.cuh."""
    start, first = item * key_blocks, turn // teams * teams
    begin, end = max(0, start - first), min(teams, start + seen - first)
    begun = ((tile + 1) * teams + tiles - 1) // tiles
    before = max(0, first - start)
    if member < begun:
        return before + max(0, min(begun, end) - (member + 1))
    return before + end - member - 1 + max(0, min(begun, end) - begin)


@pytest.mark.parametrize("teams", [1, 2, 3, 5, 11])
@pytest.mark.parametrize(("key_blocks", "tiles"), [(1, 1), (4, 8), (7, 3), (16, 32), (3, 11)])
def test_turns_at_a_tile_are_an_order_that_never_waits_in_a_circle(teams, key_blocks, tiles):
    items, causal = 5, key_blocks * 2 == tiles
    seen = [min(key_blocks, tile // 2 + 1) if causal else key_blocks for tile in range(tiles)]
    walks = []  # of each block of threads: its steps (sequence, tile, rank) in order
    for member in range(teams):
        steps = []
        for turn in range(member, items * key_blocks, teams):
            item, block = divmod(turn, key_blocks)
            visible = [tile for tile in range(tiles) if block < seen[tile]]
            begin = max(visible[0], member * tiles // teams)
            for tile in [tile for tile in visible if tile >= begin] + [tile for tile in visible if tile < begin]:
                steps.append((item, tile, rank(turn, member, teams, item, key_blocks, tile, tiles, seen[tile])))
        walks.append(steps)
    for item in range(items):
        for tile in range(tiles):
            ranks = sorted(r for steps in walks for i, t, r in steps if (i, t) == (item, tile))
            assert ranks == list(range(seen[tile]))
    done, at = [0] * (items * tiles), [0] * teams
    while any(place < len(steps) for place, steps in zip(at, walks, strict=True)):
        moved = False
        for member, steps in enumerate(walks):
            while at[member] < len(steps):
                item, tile, turn = steps[at[member]]
                if done[item * tiles + tile] != turn:
                    break
                done[item * tiles + tile] += 1
                at[member] += 1
                moved = True
        assert moved, "all wait for one another"
