"""The blockwise backend never holds an n x n array: measured by what torch's allocator reports, in both passes."""

import warnings

import pytest
import torch

import headway as hw
from headway.attention.blockwise import op

H, D = 2, 8
FLOAT = 4  # bytes


def allocations(run):
    """Bytes of the largest allocation during run(), and the most that was held at once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the profiler's own
        with torch.profiler.profile(profile_memory=True) as profile:
            kept = run()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    assert events, "the profiler saw no allocation"
    held, most = 0, 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    del kept
    return max(event.nbytes() for event in events), most


def learned(*shape):
    return torch.randn(*shape, requires_grad=True)


def products(n, of_keys=False):
    return hw.RelativeProducts.clipped(learned(1, H, n, D), learned(H, 33, D), n, n, left=16, of_keys=of_keys)


KINDS = {
    "none": lambda n: (None, None),
    "toeplitz": lambda n: (hw.Toeplitz(learned(1, H, 2 * n - 1)), None),
    "low rank": lambda n: (hw.LowRank(learned(1, H, n, 4), learned(1, H, n, 4)), None),
    "segments": lambda n: (hw.SegmentTable(learned(H, 2, 2), *[torch.randint(2, (1, n))] * 2), None),
    "relative keys": lambda n: (hw.RelativeKeys(learned(H, 33, D)), None),
    "products of queries": lambda n: (products(n), None),
    "products of keys": lambda n: (products(n, of_keys=True), None),
    "relative values": lambda n: (None, hw.RelativeValues(learned(H, 33, D))),
}


def step(n, kind, backend, **options):
    q, k, v = (learned(1, H, n, D) for _ in range(3))
    parts = KINDS[kind](n)

    def run():
        output = hw.attention(q, k, v, *parts, backend=backend, **options)
        output.sum().backward()
        return output

    return run


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def test_the_measurement_sees_a_whole_matrix():
    n = 512
    largest, most = allocations(step(n, "toeplitz", "eager"))
    assert largest >= H * n * n * FLOAT
    assert most >= 2 * H * n * n * FLOAT


@pytest.mark.parametrize("options", [{}, {"causal": True, "dropout": 0.1}], ids=["plain", "causal, dropout"])
@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_linear(monkeypatch, kind, options):
    monkeypatch.setattr(op, "KEPT", 0)
    one, two = (allocations(step(n, kind, "blockwise", **options)) for n in (2048, 4096))
    for small, large in zip(one, two, strict=True):
        assert large <= 2.2 * small
    largest, most = two
    assert largest < H * 4096 * 4096 * FLOAT / 4
    assert most < H * 4096 * 4096 * FLOAT / 2


@pytest.mark.parametrize("kind", ["toeplitz", "relative values"])
def test_weights_are_kept_up_to_a_fixed_number(monkeypatch, kind):
    """The weights of the shorter length are kept, whole and once; the longer length needs less memory."""
    monkeypatch.setattr(op, "KEPT", H * 2048 * 2048)
    kept, _ = allocations(step(2048, kind, "blockwise"))
    assert kept == op.KEPT * FLOAT
    largest, _ = allocations(step(2049, kind, "blockwise"))
    assert largest < kept / 2
