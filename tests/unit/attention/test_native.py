"""The native kernel: float32 against the formula in float64, what it refuses, and how it is compiled and kept."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.autograd import forward_ad
from torch.testing import assert_close

import headway as hw
from headway.attention import BACKENDS, native
from headway.attention.native import build

HERE = native._missing()
needs_compiler = pytest.mark.skipif(HERE is not None, reason=str(HERE))
B, H = 2, 4


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def inputs(q_len, k_len, width=64, v_width=None, heads=H, kv_heads=H, batch=B):
    return (
        torch.randn(batch, heads, q_len, width),
        torch.randn(batch, kv_heads, k_len, width),
        torch.randn(batch, kv_heads, k_len, width if v_width is None else v_width),
    )


def toeplitz(q_len, k_len, batch=1, heads=H):
    return hw.Toeplitz(torch.randn(batch, heads, q_len + k_len - 1), q_len)


def products(q_len, k_len, width, heads=H, batch=B, rows=9, of_keys=False):
    """Products with rows in any order, of which some offsets have none."""
    vectors = torch.randn(batch, heads, k_len if of_keys else q_len, width)
    table = (3 * width) ** -0.5 * torch.randn(heads, rows, width)  # as DeBERTa scales one of three terms
    return hw.RelativeProducts(vectors, table, torch.randint(-1, rows, (q_len + k_len - 1,)), of_keys)


SUMS = {
    "of queries": lambda m, n: products(m, n, 8),
    "of keys": lambda m, n: products(m, n, 5, of_keys=True),
    "both": lambda m, n: products(m, n, 16) + products(m, n, 20, of_keys=True),
    "both and toeplitz": lambda m, n: toeplitz(m, n) + products(m, n, 1) + products(m, n, 64, of_keys=True),
}


def check(q, k, v, bias=None, **options):
    """Against the oracle in float64: at most twice the error of the oracle in float32, and one rounding step."""
    got = hw.attention(q, k, v, bias, backend="native", **options)
    exact = None if bias is None else bias.to(torch.float64)
    want = hw.attention(q.double(), k.double(), v.double(), exact, backend="eager", **options)
    plain = hw.attention(q, k, v, bias, backend="eager", **options)
    assert got.dtype == torch.float32 and got.shape == want.shape
    error, budget = (got - want).abs().max(), 2 * (plain - want).abs().max()
    assert error <= budget + torch.finfo(torch.float32).eps * want.abs().max()
    return got


MASKS = {
    "none": lambda k_len: {},
    "causal": lambda k_len: {"causal": True},
    "lengths": lambda k_len: {"lengths": torch.tensor([k_len, (k_len + 1) // 2])},
    "both": lambda k_len: {"causal": True, "lengths": torch.tensor([k_len // 3, k_len])},
}


@needs_compiler
@pytest.mark.parametrize("masking", MASKS)
@pytest.mark.parametrize("with_bias", [True, False], ids=["toeplitz", "no bias"])
@pytest.mark.parametrize(
    ("q_len", "k_len"), [(1, 1), (1, 63), (63, 1), (7, 5), (63, 97), (97, 63), (48, 128), (128, 129), (200, 300)]
)
def test_lengths_and_masks(q_len, k_len, with_bias, masking):
    bias = toeplitz(q_len, k_len) if with_bias else None
    check(*inputs(q_len, k_len), bias, **MASKS[masking](k_len))


@needs_compiler
@pytest.mark.parametrize("masking", MASKS)
@pytest.mark.parametrize("kind", SUMS)
@pytest.mark.parametrize(("q_len", "k_len"), [(1, 1), (1, 63), (63, 1), (63, 97), (128, 129), (200, 300)])
def test_products_with_offsets(q_len, k_len, kind, masking):
    check(*inputs(q_len, k_len, 16), SUMS[kind](q_len, k_len), **MASKS[masking](k_len))


@needs_compiler
@pytest.mark.parametrize(("batch", "heads"), [(1, 1), (1, H), (B, 1), (B, H)])
def test_products_that_are_shared_or_strided(batch, heads):
    q, k, v = inputs(33, 49)
    of_queries = products(33, 49, 8, heads, batch)
    check(q, k, v, of_queries + products(33, 49, 8, heads, batch, of_keys=True))
    vectors = torch.randn(8, 33, heads, batch).permute(3, 2, 1, 0)
    for strided in (vectors, vectors.to(torch.float64), vectors.transpose(1, 2).contiguous().transpose(1, 2)):
        table = of_queries.offset_vectors[:1].to(strided.dtype)
        check(q, k, v, hw.RelativeProducts(strided, table, of_queries.rows.int()))


@needs_compiler
@pytest.mark.parametrize(
    ("width", "v_width"), [(1, 1), (3, 5), (16, 16), (32, 32), (64, 33), (80, 80), (33, 64), (128, 128), (256, 200)]
)
def test_widths(width, v_width):
    check(*inputs(50, 140, width, v_width), toeplitz(50, 140), causal=True)


@needs_compiler
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize(("batch", "heads"), [(1, 1), (1, H), (B, 1), (B, H)])
def test_groups_and_shared_biases(kv_heads, batch, heads):
    check(*inputs(33, 49, kv_heads=kv_heads), toeplitz(33, 49, batch, heads))


@needs_compiler
def test_strides():
    """As models have them: rows before heads, one tensor for all three; and as nobody does."""
    together = torch.randn(B, 70, 3, H, 32)
    q, k, v = (t.transpose(1, 2) for t in together.unbind(2))
    bias = toeplitz(70, 70)
    got = check(q, k, v, bias)
    assert got.transpose(1, 2).is_contiguous()  # ready for the output projection
    assert_close(got, hw.attention(q.contiguous(), k.contiguous(), v.contiguous(), bias, backend="native"))
    q, k, v = (torch.randn(32, 70, H, B).permute(3, 2, 1, 0) for _ in range(3))
    check(q, k, v, hw.Toeplitz(torch.randn(139, H, 1).permute(2, 1, 0)))
    check(q.flip(0)[:, :, ::2], k[:1].expand(B, -1, -1, -1), v[:, :1].expand(-1, H, -1, -1), toeplitz(35, 70))


@needs_compiler
def test_scale_and_other_dtypes():
    q, k, v = inputs(20, 30)
    bias = toeplitz(20, 30)
    for scale in (0.0, -0.7, 3.0):
        check(q, k, v, bias, scale=scale)
    want = hw.attention(q, k, v, bias, backend="native")
    assert torch.equal(hw.attention(q, k, v, bias.to(torch.float64), backend="native"), want)
    lengths = torch.tensor([30, 7])
    want = hw.attention(q, k, v, lengths=lengths, backend="native")
    assert torch.equal(hw.attention(q, k, v, lengths=lengths.to(torch.uint8), backend="native"), want)


@needs_compiler
def test_nothing_is_read_beyond_the_keys():
    """Of a compiled call nobody has checked the lengths."""
    q, k, v = inputs(30, 60)
    from headway.attention.native import op

    want = hw.attention(q, k[:, :, :30], v[:, :, :30], backend="native")
    got = op.native(q, k[:, :, :30], v[:, :, :30], None, [], [], torch.tensor([30, 45]), False, 64**-0.5)
    assert torch.equal(got, want)


@needs_compiler
def test_queries_that_see_nothing_give_zeros():
    q, k, v = inputs(200, 150)
    got = check(q, k, v, toeplitz(200, 150), causal=True, lengths=torch.tensor([0, 150]))
    assert not got[0].any()
    assert not got[1, :, :50].any() and got[1, :, 50:].abs().sum(-1).min() > 0


@needs_compiler
@pytest.mark.parametrize("size", [1e4, 1e30, torch.finfo(torch.float32).max / 4])
def test_large_values(size):
    q, k, v = inputs(60, 300)
    bias = hw.Toeplitz(size * torch.randn(1, H, 359).clamp(-2, 2))
    got = check(q, k, v, bias)
    assert torch.isfinite(got).all()
    # A whole row so low that nothing but the bias is left of a score.
    lowest = hw.Toeplitz(torch.full((1, 1, 359), torch.finfo(torch.float32).min))
    assert_close(hw.attention(q, k, v, lowest, backend="native"), v.mean(2, keepdim=True).expand_as(got))


@needs_compiler
def test_scores_that_grow_from_block_to_block():
    """Each block of keys raises the maximum, and takes almost everything from the blocks before it."""
    q, k, v = inputs(40, 700)
    rising = torch.linspace(-300, 300, 739)
    check(q, k, v, hw.Toeplitz(rising.expand(1, 1, -1)))
    check(q, k, v, hw.Toeplitz(rising.flip(0).expand(1, 1, -1)))


@needs_compiler
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_what_is_not_a_number_is_not_hidden(wrong):
    q, k, v = inputs(20, 200)
    q[0, 0, 3, 1] = wrong
    got = hw.attention(q, k, v, toeplitz(20, 200), backend="native")
    assert got[0, 0, 3].isnan().all()
    assert got.isnan().sum() == got.shape[-1]


@needs_compiler
def test_the_same_bits_whatever_is_beside_them():
    """Threads, batch, padding and the number of queries change nothing."""
    q, k, v = inputs(200, 200)
    bias = toeplitz(200, 200) + products(200, 200, 16, batch=1) + products(200, 200, 8, batch=1, of_keys=True)
    before = torch.get_num_threads()
    try:
        outcomes = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            outcomes.append(hw.attention(q, k, v, bias, lengths=torch.tensor([200, 90]), backend="native"))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(outcome, outcomes[0]) for outcome in outcomes)
    alone = hw.attention(q[1:, :, :70], k[1:, :, :90], v[1:, :, :90], bias.tile(0, 70, 0, 90), backend="native")
    assert torch.equal(alone, outcomes[0][1:, :, :70])


@needs_compiler
def test_threads_of_its_own_where_torch_has_none(monkeypatch):
    from headway.attention.native import op

    q, k, v = inputs(200, 200)
    monkeypatch.setattr(op, "ALONE", 0)
    want = hw.attention(q, k, v, backend="native")
    before = torch.get_num_threads()
    monkeypatch.setattr(op, "_parallel", lambda: 0)
    try:
        torch.set_num_threads(3)
        assert torch.equal(hw.attention(q, k, v, backend="native"), want)
    finally:
        torch.set_num_threads(before)


@needs_compiler
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_in_one_graph(dynamic):
    torch.compiler.reset()

    def run(q, k, v, values, lengths):
        return hw.attention(q, k, v, hw.Toeplitz(values), causal=True, lengths=lengths)

    fast = torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    with torch.no_grad():
        for length in (40, 57):
            given = (*inputs(length, length), torch.randn(1, H, 2 * length - 1, requires_grad=True))
            lengths = torch.tensor([length, 11])
            assert hw.explain(*given[:3], hw.Toeplitz(given[3])).backend == "native"
            assert torch.equal(fast(*given, lengths), run(*given, lengths))
    torch.compiler.reset()


def test_the_operator_is_sound():
    if HERE is not None:
        pytest.skip(HERE)
    from headway.attention.native import op

    q, k, v = inputs(9, 13)
    pairs = [list(products(9, 13, 8, of_keys=of_keys).tensors.values()) for of_keys in (False, True)]
    utils = ["test_schema", "test_faketensor", "test_aot_dispatch_static"]
    for of_queries, of_keys in ([[], []], pairs):
        given = (q, k, v, torch.randn(1, H, 21), of_queries, of_keys, torch.tensor([13, 4]), True, 0.5)
        torch.library.opcheck(op.native, given, test_utils=utils)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own, when duals are first used
def test_derivatives_carried_forward_are_not_lost():
    q, k, v = inputs(20, 20)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, torch.ones_like(q))
        assert "one is carried forward" in hw.explain(dual, k, v, backend="eager").others["native"]
    assert "carried forward" not in hw.explain(q, k, v, backend="eager").others["native"]


# Compiling.


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """An empty cache, which `build` looks at anew."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HEADWAY_NATIVE", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    return monkeypatch


def falls_back(reason):
    q, k, v = inputs(20, 20)
    bias = toeplitz(20, 20).frozen()
    told = hw.explain(q, k, v, bias)
    assert told.backend == "sdpa"
    assert reason in told.others["native"]
    assert f"not native: {told.others['native']}" in str(told)
    with pytest.raises(NotImplementedError, match=r"backend 'native' cannot run this call: .*Use backend='auto'"):
        hw.attention(q, k, v, bias, backend="native")
    assert_close(hw.attention(q, k, v, bias), hw.attention(q, k, v, bias, backend="eager"))


def test_turned_off(fresh):
    fresh.setenv("HEADWAY_NATIVE", "0")
    falls_back("it is turned off by HEADWAY_NATIVE=0")


def test_no_compiler(fresh, tmp_path):
    fresh.setenv("PATH", str(tmp_path))
    falls_back("it needs a C++ compiler, and there is none of c++, g++, clang++")


def test_cxx_is_no_program(fresh):
    fresh.setenv("CXX", "no-such-compiler")
    falls_back("it needs a C++ compiler, and CXX=no-such-compiler is not a program")


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_compilation_that_fails(fresh, tmp_path):
    fails = (
        'case "$*" in *--version*) exit 0;; esac; echo "note" >&2; echo "kernel.cpp:1: error: no such flag" >&2; exit 3'
    )
    fresh.setenv("CXX", script(tmp_path / "cxx", fails))
    falls_back("kernel.cpp:1: error: no such flag")
    assert list((tmp_path / "cache" / "headway").iterdir()) == []  # nothing half done


def test_what_is_made_cannot_be_loaded(fresh, tmp_path):
    makes = 'for last; do :; done; case "$*" in *--version*) ;; *) echo nonsense > "$last";; esac'
    fresh.setenv("CXX", script(tmp_path / "cxx", makes))
    falls_back(str(tmp_path / "cache" / "headway" / "attention_"))


def test_a_cache_that_cannot_be_written(fresh, tmp_path):
    (tmp_path / "cache").write_text("a file")
    falls_back("cache" if build.shutil.which("c++") else "it needs a C++ compiler")


@needs_compiler
def test_compiled_once_by_the_compiler_that_was_asked_for(fresh, tmp_path):
    real = next(filter(None, map(build.shutil.which, build.COMPILERS)))
    count = tmp_path / "count"
    fresh.setenv("CXX", script(tmp_path / "cxx", f'echo "$*" >> {count}; exec {real} "$@"') + " -DASKED")
    q, k, v = inputs(20, 20)
    want = hw.attention(q, k, v, backend="native")
    build._found.cache_clear()  # as in another process
    assert torch.equal(hw.attention(q, k, v, backend="native"), want)
    compilations = [line for line in count.read_text().splitlines() if "kernel.cpp" in line]
    assert len(compilations) == 1 and "-DASKED" in compilations[0] and "-march=native" in compilations[0]
    (made,) = (tmp_path / "cache" / "headway").iterdir()
    made.unlink()
    fresh.setattr(build, "FLAGS", (*build.FLAGS, "-DOTHER"))
    build._found.cache_clear()
    hw.attention(q, k, v, backend="native")
    (other,) = (tmp_path / "cache" / "headway").iterdir()
    assert other.name != made.name


@needs_compiler
def test_processes_that_compile_at_once(fresh, tmp_path):
    code = (
        "import torch, headway as hw; torch.manual_seed(0); q = torch.randn(1, 2, 20, 8);"
        "print(hw.attention(q, q, q, backend='native').double().sum().item())"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert printed[0] == printed[1] != ""
    (made,) = (tmp_path / "cache" / "headway").iterdir()
    assert made.suffix == ".so"


@needs_compiler
@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's account of what is loaded")
def test_one_openmp_serves_both():
    q, k, v = inputs(100, 100)
    hw.attention(q, k, v, backend="native")
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line}
    made = [name for name in mapped if os.path.basename(name).startswith("attention_")]
    assert made
    linked = subprocess.run(["ldd", made[0]], capture_output=True, text=True, check=True).stdout
    assert "omp" not in linked  # it asks for none: torch's runs its threads


def test_the_source_is_where_the_build_looks_for_it():
    assert build.SOURCE.is_file()
    assert BACKENDS["native"] is native.plan
