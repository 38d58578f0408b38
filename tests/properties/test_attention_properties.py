"""What attention must satisfy whatever the numbers are: every backend, random lengths, float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import headway as hw
from headway.attention.blockwise import op

H, D = 2, 3
BACKENDS = ["eager", "sdpa", "blockwise"]
CLOSE = {"rtol": 1e-9, "atol": 1e-9}
LAWS = settings(max_examples=30)
odd_lengths = st.sampled_from([1, 2, 5, 63, 97])
seeds = st.integers(0, 2**16)


@pytest.fixture(autouse=True, scope="module")
def _small_blocks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(op, "BLOCK_Q", 16)
        patch.setattr(op, "TILE", H * 16 * 40)
        yield


def rand(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def kinds(batch, m, n):
    ids = torch.randint(3, (batch, m)), torch.randint(3, (batch, n))
    return {
        "none": lambda: None,
        "toeplitz": lambda: hw.Toeplitz(rand(1, H, m + n - 1)),
        "low rank": lambda: hw.LowRank(rand(1, H, m, 2), rand(1, 1, n, 2)),
        "segments": lambda: hw.SegmentTable(rand(H, 3, 3), *ids),
        "relative keys": lambda: hw.RelativeKeys(rand(H, 9, D), q_start=1),
        "edges": lambda: hw.EdgeKeys(rand(H, 4, D), torch.randint(4, (1, m, n))),
        "sum": lambda: hw.Toeplitz(rand(1, 1, m + n - 1)) + hw.RelativeKeys(rand(1, 3, D)) + hw.Dense(rand(1, H, m, n)),
    }


KINDS = sorted(kinds(1, 1, 1))


def same_everywhere(call, *inputs):
    """The oracle's result, after every other backend gave the same, with the same gradients."""
    want = call("eager", *inputs)
    upstream = torch.randn_like(want)
    learned = [t for t in inputs if t.requires_grad]
    grads = torch.autograd.grad(want, learned, upstream)
    for backend in BACKENDS[1:]:
        got = call(backend, *inputs)
        assert_close(got, want, **CLOSE)
        for mine, theirs in zip(torch.autograd.grad(got, learned, upstream), grads, strict=True):
            assert_close(mine, theirs, **CLOSE)
    return want


@LAWS
@given(m=odd_lengths, n=odd_lengths, kind=st.sampled_from(KINDS), causal=st.booleans(), seed=seeds)
def test_backends_agree_at_odd_lengths(m, n, kind, causal, seed):
    torch.manual_seed(seed)
    q, k, v = rand(2, H, m, D).requires_grad_(), rand(2, H, n, D).requires_grad_(), rand(2, H, n, D).requires_grad_()
    bias = kinds(2, m, n)[kind]()
    want = same_everywhere(lambda backend, *qkv: hw.attention(*qkv, bias, causal=causal, backend=backend), q, k, v)
    assert torch.isfinite(want).all()
    if m > n and causal:
        assert (want[:, :, : m - n] == 0).all()


@LAWS
@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    causal=st.booleans(),
    backend=st.sampled_from(BACKENDS),
    seed=seeds,
)
def test_packed_documents_are_separate_calls(sizes, causal, backend, seed):
    torch.manual_seed(seed)
    total = sum(sizes)
    q, k, v = rand(1, H, total, D), rand(1, H, total, D), rand(1, H, total, D)
    ids = torch.cat([torch.full((size,), n) for n, size in enumerate(sizes)])[None]
    bias = hw.Toeplitz(rand(1, H, 2 * total - 1))
    packed = hw.attention(q, k, v, bias, documents=ids, causal=causal, backend=backend)
    start = 0
    for size in sizes:
        stop = start + size
        own = bias.tile(start, stop, start, stop)
        alone = hw.attention(*(t[:, :, start:stop] for t in (q, k, v)), own, causal=causal, backend=backend)
        assert_close(packed[:, :, start:stop], alone, **CLOSE)
        start = stop


@LAWS
@given(groups=st.sampled_from([1, 2, 4]), kind=st.sampled_from(["none", "toeplitz"]), seed=seeds, m=st.integers(1, 20))
def test_grouped_heads_are_repeated_heads(groups, kind, seed, m):
    torch.manual_seed(seed)
    n = 7
    q = rand(2, 4, m, D).requires_grad_()
    k, v = rand(2, 4 // groups, n, D).requires_grad_(), rand(2, 4 // groups, n, D).requires_grad_()
    bias = None if kind == "none" else hw.Toeplitz(rand(1, 4, m + n - 1))
    grouped = same_everywhere(lambda backend, *qkv: hw.attention(*qkv, bias, backend=backend), q, k, v)
    repeated = hw.attention(q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1), bias, backend="eager")
    assert_close(grouped, repeated, **CLOSE)


@LAWS
@given(order=st.permutations(range(4)), kind=st.sampled_from(KINDS), backend=st.sampled_from(BACKENDS), seed=seeds)
def test_sequences_do_not_see_one_another(order, kind, backend, seed):
    """Permuting the batch permutes the output, with everything that belongs to a sequence."""
    torch.manual_seed(seed)
    m, n = 6, 9
    q, k, v = rand(4, H, m, D), rand(4, H, n, D), rand(4, H, n, D)
    bias = kinds(4, m, n)[kind]()
    mask, lengths = torch.rand(4, 1, m, n) > 0.3, torch.randint(n + 1, (4,))
    order = list(order)
    moved = bias
    if kind == "segments":
        moved = hw.SegmentTable(bias.table, bias.q_segments[order], bias.k_segments[order])
    one = hw.attention(q, k, v, bias, mask=mask, lengths=lengths, backend=backend)
    other = hw.attention(q[order], k[order], v[order], moved, mask=mask[order], lengths=lengths[order], backend=backend)
    assert_close(other, one[order], **CLOSE)


@LAWS
@given(kind=st.sampled_from(KINDS), backend=st.sampled_from(BACKENDS), seed=seeds, m=odd_lengths)
def test_lengths_are_slices(kind, backend, seed, m):
    torch.manual_seed(seed)
    n = 9
    q, k, v = rand(3, H, m, D), rand(3, H, n, D), rand(3, H, n, D)
    lengths = torch.randint(1, n + 1, (3,))
    bias = kinds(3, m, n)[kind]()
    padded = hw.attention(q, k, v, bias, lengths=lengths, backend=backend)
    for b, length in enumerate(lengths.tolist()):
        own = bias
        if bias is not None:
            own = bias.bind(m, n).tile(0, m, 0, length)
        if kind == "segments":
            own = hw.SegmentTable(bias.table, bias.q_segments[b : b + 1], bias.k_segments[b : b + 1, :length])
        alone = hw.attention(q[b : b + 1], k[b : b + 1, :, :length], v[b : b + 1, :, :length], own, backend=backend)
        assert_close(padded[b : b + 1], alone, **CLOSE)


@LAWS
@given(backend=st.sampled_from(BACKENDS), seed=seeds, n=st.integers(1, 20), steps=st.integers(1, 5))
def test_cached_decoding_is_the_end_of_the_whole(backend, seed, n, steps):
    """The last queries alone, with the bias of their rows, give the last rows of the whole."""
    torch.manual_seed(seed)
    steps = min(steps, n)
    q, k, v = rand(1, H, n, D), rand(1, H, n, D), rand(1, H, n, D)
    values, table = rand(1, H, 2 * n - 1), rand(H, 5, D)
    whole = hw.attention(q, k, v, hw.Toeplitz(values) + hw.RelativeKeys(table), causal=True, backend=backend)
    bias = hw.Toeplitz(values).tile(n - steps, n, 0, n) + hw.RelativeKeys(table, q_start=n - steps)
    last = hw.attention(q[:, :, -steps:], k, v, bias, causal=True, backend=backend)
    assert_close(last, whole[:, :, -steps:], **CLOSE)


@LAWS
@given(backend=st.sampled_from(BACKENDS), seed=seeds, m=odd_lengths, n=odd_lengths)
def test_what_is_equal_for_all_keys_changes_nothing(backend, seed, m, n):
    """A softmax does not see a term of the query alone."""
    torch.manual_seed(seed)
    q, k, v = rand(2, H, m, D), rand(2, H, n, D), rand(2, H, n, D)
    want = hw.attention(q, k, v, backend=backend)
    rows = hw.LowRank(rand(1, H, m, 1), torch.ones(1, 1, n, 1, dtype=torch.float64))
    for bias in (rows, hw.RelativeKeys(rand(H, 1, D)), hw.Toeplitz(rand(1, H, 1).expand(-1, -1, m + n - 1))):
        assert_close(hw.attention(q, k, v, bias, backend=backend), want, **CLOSE)


@LAWS
@given(backend=st.sampled_from(["eager", "blockwise"]), seed=seeds, m=odd_lengths, n=odd_lengths, causal=st.booleans())
def test_one_vector_for_all_values_is_added_once(backend, seed, m, n, causal):
    """Weights sum to one, so an equal value bias is added whole to each row that sees anything."""
    torch.manual_seed(seed)
    q, k, v, vector = rand(2, H, m, D), rand(2, H, n, D), rand(2, H, n, D), rand(H, 1, D)
    plain = hw.attention(q, k, v, causal=causal, backend=backend)
    joined = hw.attention(q, k, v, value_bias=hw.RelativeValues(vector), causal=causal, backend=backend)
    unseeing = max(0, m - n) if causal else 0
    assert_close(joined[:, :, unseeing:], plain[:, :, unseeing:] + vector, **CLOSE)
    assert (joined[:, :, :unseeing] == 0).all()
