"""torch's FlexAttention, compiled for real: inference only on a CPU."""

import shutil

import pytest
import torch
from torch.testing import assert_close

import headway as hw

B, H, D = 2, 2, 16

pytestmark = [
    pytest.mark.slow,  # every case compiles C++ code
    pytest.mark.skipif(
        not any(shutil.which(name) for name in ("g++", "c++", "clang++")), reason="no C++ compiler is installed"
    ),
    pytest.mark.skipif(
        torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"), reason="torch compiles it for AVX2 only"
    ),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's compiler uses torch.jit
]


@pytest.fixture(autouse=True)
def compiled_anew():
    """torch compiles it for each case, and stops after eight."""
    torch.compiler.reset()


SMALL = torch.uint8
CASES = {
    "toeplitz, causal": (17, 33, lambda: hw.Toeplitz(torch.randn(1, H, 49)), lambda: {"causal": True}),
    "rows that see nothing": (33, 17, lambda: None, lambda: {"causal": True}),
    "documents nobody shares": (
        17,
        17,
        lambda: None,
        lambda: {"documents": (torch.full((B, 17), 3), torch.zeros(B, 17, dtype=torch.long))},
    ),
    "segments in bytes, lengths": (
        17,
        33,
        lambda: hw.SegmentTable(
            torch.randn(H, 3, 3), torch.randint(3, (B, 17)).to(SMALL), torch.randint(3, (1, 33)).to(SMALL)
        ),
        lambda: {"lengths": torch.tensor([0, 9])},
    ),
    "edges and relative keys, mask": (
        17,
        33,
        lambda: (
            hw.EdgeKeys(torch.randn(1, 4, D), torch.randint(4, (1, 17, 33))) + hw.RelativeKeys(torch.randn(H, 5, D), 3)
        ),
        lambda: {"mask": torch.rand(B, 1, 17, 33) > 0.3},
    ),
    "low rank and dense": (
        17,
        33,
        lambda: hw.LowRank(torch.randn(1, H, 17, 2), torch.randn(B, 1, 33, 2)) + hw.Dense(torch.randn(1, 1, 17, 33)),
        lambda: {"scale": 0.3},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_flex_is_the_oracle(case):
    torch.manual_seed(0)
    m, n, bias, options = CASES[case]
    bias, options = bias(), options()
    q, k, v = torch.randn(B, H, m, D), torch.randn(B, 1, n, D), torch.randn(B, 1, n, D)
    with torch.no_grad():
        want = hw.attention(q, k, v, bias, backend="eager", **options)
        got = hw.attention(q, k, v, bias, backend="flex", **options)
    assert torch.isfinite(got).all()
    assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert torch.equal((got == 0).all(-1), (want == 0).all(-1))


def test_a_bias_in_float64_beside_float32():
    """Of which torch's kernel made NaN."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, B, H, 17, D)
    bias = hw.Toeplitz(torch.randn(1, H, 33, dtype=torch.float64))
    with torch.no_grad():
        want = hw.attention(q, k, v, bias, backend="eager")
        got = hw.attention(q, k, v, bias, backend="flex")
    assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["low rank", "relative keys"])
def test_under_autocast_a_bias_keeps_its_digits(kind):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, B, H, 17, D)
    bias = {
        "low rank": hw.LowRank(*(3 * torch.randn(2, 1, H, 17, 8))),
        "relative keys": hw.RelativeKeys(torch.randn(1, 9, D)),
    }[kind]
    with torch.no_grad():
        right = hw.attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), bias, backend="flex")
        with torch.autocast("cpu", torch.bfloat16):
            found = hw.attention(q, k, v, bias, backend="flex")
    assert torch.equal(found, right)
