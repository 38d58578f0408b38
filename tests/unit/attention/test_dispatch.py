"""Which backend runs, and what `explain` says about it."""

import pytest
import torch
from torch.autograd import forward_ad

import headway as hw
from headway.attention import BACKENDS, native
from headway.attention import call as call_module
from headway.attention.masking import Masking
from headway.attention.request import Plan, Request

B, H, L, D = 1, 2, 200, 4  # longer than call.SHORT
NAMES = ["native", "sdpa", "matrix", "blockwise", "flex", "eager"]


@pytest.fixture(autouse=True)
def _compiler(monkeypatch):
    """Choices as where there is a C++ compiler."""
    monkeypatch.setattr(native, "_missing", lambda: None)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def qkv(length=L, requires_grad=False, **options):
    return [torch.randn(B, H, length, D, requires_grad=requires_grad, **options) for _ in range(3)]


def learned(*shape):
    return torch.randn(*shape, requires_grad=True)


def toeplitz(length=L, requires_grad=True):
    return hw.Toeplitz(torch.randn(1, H, 2 * length - 1, requires_grad=requires_grad))


def low_rank():
    return hw.LowRank(torch.randn(1, H, L, 2), torch.randn(1, H, L, 2))


LABELS = torch.zeros(1, L, L, dtype=torch.long)


def test_the_sequences_here_are_not_short():
    assert L * L > call_module.SHORT


CHOICES = {
    "no bias": (lambda: {}, "native", "our own kernel, compiled for this CPU"),
    "no bias, causal": (lambda: {"causal": True}, "native", "no gradient is needed"),
    "no bias, a mask": (
        lambda: {"mask": torch.ones(1, 1, L, L, dtype=torch.bool)},
        "sdpa",
        "torch's fused kernel; there is no bias",
    ),
    "no bias, learned": (lambda: {"q": learned(B, H, L, D)}, "sdpa", "torch's fused kernel; there is no bias"),
    "no bias, few queries": (lambda: {"q": torch.randn(B, H, 15, D)}, "sdpa", "torch's fused kernel"),
    "fixed toeplitz": (lambda: {"bias": toeplitz(requires_grad=False)}, "native", "our own kernel"),
    "fixed toeplitz, a mask": (
        lambda: {"bias": toeplitz(requires_grad=False), "mask": torch.ones(1, 1, L, L, dtype=torch.bool)},
        "sdpa",
        "the bias needs no gradient",
    ),
    "fixed toeplitz, learned queries": (
        lambda: {"bias": toeplitz(requires_grad=False), "q": learned(B, H, L, D)},
        "sdpa",
        "the bias needs no gradient",
    ),
    "fixed tensor": (lambda: {"bias": torch.randn(1, 1, L, L)}, "sdpa", "the bias needs no gradient"),
    "fixed toeplitz of each sequence": (
        lambda: {
            "bias": hw.Toeplitz(torch.randn(2, 1, 2 * L - 1)),
            **dict(zip("qkv", torch.randn(3, 2, H, L, D), strict=True)),
        },
        "native",
        "our own kernel",
    ),
    "fixed low rank": (
        lambda: {"bias": low_rank()},
        "blockwise",
        "linear memory",
    ),
    "frozen low rank": (
        lambda: {"bias": low_rank().frozen()},
        "sdpa",
        "its matrix costs little",
    ),
    "frozen sum": (
        lambda: {"bias": (hw.Toeplitz(torch.randn(1, H, 2 * L - 1), L) + low_rank()).frozen()},
        "sdpa",
        "its matrix costs little",
    ),
    "frozen relative keys": (
        lambda: {"bias": hw.RelativeKeys(torch.randn(1, 9, D)).frozen()},
        "blockwise",
        "linear memory",
    ),
    "learned toeplitz": (lambda: {"bias": toeplitz()}, "blockwise", "linear memory; tiles of the bias"),
    "learned in a sum": (
        lambda: {"bias": toeplitz(requires_grad=False) + hw.LowRank(learned(1, 1, L, 2), learned(1, 1, L, 2))},
        "blockwise",
        "linear memory",
    ),
    "relative keys": (lambda: {"bias": hw.RelativeKeys(torch.randn(1, 9, D))}, "blockwise", "linear memory"),
    "edge keys": (lambda: {"bias": hw.EdgeKeys(torch.randn(1, 2, D), LABELS)}, "blockwise", "linear memory"),
    "value bias": (lambda: {"value_bias": hw.RelativeValues(learned(1, 9, D))}, "blockwise", "linear memory"),
    "dropout": (lambda: {"bias": toeplitz(), "dropout": 0.1}, "blockwise", "linear memory"),
}


def given(options):
    return dict(zip("qkv", qkv(), strict=True)) | options


@pytest.mark.parametrize("case", CHOICES)
def test_auto(case):
    make, backend, reason = CHOICES[case]
    options = make()
    told = hw.explain(**given(options))
    assert told.backend == backend
    assert reason in told.reason
    assert set(told.others) == set(BACKENDS) - {backend}
    assert all(told.others.values())
    assert str(told).startswith(f"{backend}: ")
    assert str(told).count("\n  not ") == len(BACKENDS) - 1


@pytest.mark.parametrize("case", CHOICES)
def test_what_is_told_is_what_runs(monkeypatch, case):
    make, backend, _ = CHOICES[case]
    ran, planned = [], []
    for name, plan in list(BACKENDS.items()):

        def watched(request, name=name, plan=plan):
            planned.append(name)
            made = plan(request)
            return made if isinstance(made, str) else Plan(lambda request: ran.append(name) or request.q)

        monkeypatch.setitem(BACKENDS, name, watched)
    hw.attention(**given(make()))
    assert ran == [backend]
    assert planned[-1] == backend and len(set(planned)) == len(planned)  # nobody is asked twice, or for nothing
    planned.clear()
    hw.explain(**given(make()))
    assert sorted(planned) == sorted(BACKENDS) and ran == [backend]


def test_without_gradients_a_learned_bias_is_a_fixed_one():
    bias = toeplitz()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert hw.explain(*qkv(), bias).backend == "native"
            assert hw.explain(*qkv(), hw.RelativeKeys(learned(1, 9, D))).backend == "blockwise"
    assert hw.explain(*qkv(), bias).backend == "blockwise"


def test_short_sequences_with_a_bias_learn_by_the_whole_matrix():
    for options in (
        {"bias": toeplitz(5)},
        {"bias": hw.RelativeKeys(learned(1, 3, D))},
        {"value_bias": hw.RelativeValues(learned(1, 3, D))},
    ):
        told = hw.explain(*qkv(5), **options)
        assert told.backend == "matrix"
        assert told.reason.startswith("the sequences are short")
        assert "matrix is preferred" in told.others["blockwise"]
        with torch.no_grad():
            assert hw.explain(*qkv(5), **options).backend != "matrix"
    assert hw.explain(*qkv(5)).backend == "sdpa"


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # of torch itself
def test_other_derivatives_than_the_backward_pass_take_the_oracle():
    q, k, v = qkv(5)
    values = torch.randn(1, H, 9)

    def total(values):
        assert hw.explain(q, k, v, hw.Toeplitz(values)).backend == "eager"
        return hw.attention(q, k, v, hw.Toeplitz(values)).sum()

    leaf = values.clone().requires_grad_()
    assert hw.explain(q, k, v, hw.Toeplitz(leaf)).backend == "matrix"
    (want,) = torch.autograd.grad(hw.attention(q, k, v, hw.Toeplitz(leaf)).sum(), leaf)
    torch.testing.assert_close(torch.func.grad(total)(values), want)
    torch.testing.assert_close(torch.func.jvp(total, (values,), (values,))[1], (want * values).sum())


def test_the_gradient_of_a_gradient_says_who_has_it():
    leaf = torch.randn(1, H, 9, requires_grad=True)
    output = hw.attention(*qkv(5), hw.Toeplitz(leaf), backend="eager")
    (first,) = torch.autograd.grad(output.square().sum(), leaf, create_graph=True)
    assert torch.autograd.grad(first.sum(), leaf)[0].abs().sum() > 0
    # Of a sum the gradient that comes in is a constant, so that nothing but the operator could notice.
    output = hw.attention(*qkv(5), hw.Toeplitz(leaf), backend="matrix").sum()
    with pytest.raises(NotImplementedError, match=r"matrix backend has no second derivative\. Use backend='eager'"):
        torch.autograd.grad(output, leaf, create_graph=True)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # of torch itself
@pytest.mark.parametrize("length", [5, 200])
def test_other_kinds_of_derivative_go_to_the_formula(length):
    """Operators of our own would lose a tangent in silence, and have no rule for vmap."""
    q, k, v = qkv(length)
    left, right = learned(1, H, length, 2), learned(1, H, length, 2)

    def total(left, backend="auto"):
        return hw.attention(q, k, v, hw.LowRank(left, right), backend=backend).square().sum()

    left, right = left.detach(), right.detach()
    change = torch.randn_like(left)
    want = torch.func.jvp(lambda x: total(x, "eager"), (left,), (change,))[1]
    assert want.abs() > 1e-3
    torch.testing.assert_close(torch.func.jvp(total, (left,), (change,))[1], want)
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(total(forward_ad.make_dual(left, change))).tangent
    torch.testing.assert_close(found, want)
    both = torch.stack([left, change])
    torch.testing.assert_close(torch.func.vmap(total)(both), torch.stack([total(left), total(change)]))
    torch.testing.assert_close((torch.func.grad(total)(left) * change).sum(), want)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # of torch itself
def test_second_derivatives_without_a_bias_by_transforms():
    q, k, v = (t.double() for t in qkv(3))
    hessian = torch.func.hessian(lambda x: hw.attention(x, k, v).square().sum())(q)
    want = torch.func.hessian(lambda x: hw.attention(x, k, v, backend="eager").square().sum())(q)
    torch.testing.assert_close(hessian, want)


def test_short_is_a_matter_of_both_lengths(monkeypatch):
    monkeypatch.setattr(call_module, "SHORT", 5 * 5)
    assert hw.explain(*qkv(5), toeplitz(5)).backend == "matrix"
    monkeypatch.setattr(call_module, "SHORT", 5 * 5 - 1)
    assert hw.explain(*qkv(5), toeplitz(5)).backend == "blockwise"


def test_why_not_is_told_for_each():
    told = hw.explain(*qkv(), value_bias=hw.RelativeValues(learned(1, 9, D)))
    assert told.others["sdpa"] == "torch's attention does not give the weights that a value bias needs"
    assert told.others["flex"] == "FlexAttention does not give the weights that a value bias needs"
    assert told.others["eager"].startswith("it would run, but blockwise is preferred (linear memory")


@pytest.mark.parametrize("backend", ["sdpa", "matrix", "blockwise", "eager"])
def test_a_named_backend_runs(monkeypatch, backend):
    ran = []
    plan = BACKENDS[backend]

    def watched(request):
        made = plan(request)
        return Plan(lambda request: ran.append(backend) or made.run(request))

    monkeypatch.setitem(BACKENDS, backend, watched)
    told = hw.explain(*qkv(5), toeplitz(5), backend=backend)
    assert (told.backend, told.reason) == (backend, "asked for by name")
    assert hw.attention(*qkv(5), toeplitz(5), backend=backend).shape == (B, H, 5, D)
    assert ran == [backend]


REFUSED = {
    "sdpa and values": ("sdpa", lambda: {"value_bias": hw.RelativeValues(torch.randn(1, 3, D))}, "a value bias needs"),
    "flex and values": ("flex", lambda: {"value_bias": hw.RelativeValues(torch.randn(1, 3, D))}, "a value bias needs"),
    "flex and dropout": ("flex", lambda: {"dropout": 0.1}, "FlexAttention has no dropout"),
    "native and gradients": ("native", lambda: {"bias": toeplitz(5)}, "it has no derivatives, and one is needed"),
    "native and dropout": ("native", lambda: {"dropout": 0.1}, "for inference and has no dropout"),
    "native and values": ("native", lambda: {"value_bias": hw.RelativeValues(torch.randn(1, 3, D))}, "a value bias"),
    "native and a matrix": ("native", lambda: {"bias": torch.randn(1, 1, 5, 5)}, "no kernel for Dense, only for Toep"),
    "native and a mask": ("native", lambda: {"mask": torch.ones(1, 1, 5, 5, dtype=torch.bool)}, "and lengths, no mask"),
    "native and documents": ("native", lambda: {"documents": torch.zeros(1, 5).long()}, "and lengths, no documents"),
    "native and float64": (
        "native",
        lambda: {"qkv": qkv(5, dtype=torch.float64)},
        "its kernel is for float32, and q is float64",
    ),
    "flex and gradients": ("flex", lambda: {"bias": toeplitz(5)}, "no backward pass on the CPU"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("function", [hw.attention, hw.explain], ids=["attention", "explain"])
def test_a_named_backend_raises_with_the_reason(function, case):
    backend, options, reason = REFUSED[case]
    options = options()
    inputs = options.pop("qkv", None) or qkv(5)
    with pytest.raises(NotImplementedError, match=f"backend '{backend}' cannot run this call: .*{reason}.*'auto'"):
        function(*inputs, backend=backend, **options)


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        ([torch.randn(1, 1, 3, 6)] * 3, "head widths that are powers of two, and got 6"),
        ([torch.randn(1, 1, 3, 4), torch.randn(1, 1, 3, 4), torch.randn(1, 1, 3, 6)], "of two, and got 6"),
        ([torch.randn(1, 1, 3, 4, dtype=torch.float64)] * 3, "it has no float64 kernel"),
        ([torch.randn(1, 1, 3, 4, requires_grad=True)] * 3, "no backward pass on the CPU"),
    ],
)
def test_flex_says_why_not(inputs, reason):
    assert reason in hw.explain(*inputs).others["flex"]


def test_flex_would_run_without_gradients_on_a_cpu_it_compiles_for(monkeypatch):
    with torch.no_grad():
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
        assert hw.explain(*qkv(5), toeplitz(5), backend="flex").backend == "flex"
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
        assert "AVX2" in hw.explain(*qkv(5), toeplitz(5)).others["flex"]


def test_blockwise_and_matrix_are_for_the_cpu():
    q, k, v = qkv(5, device="meta")
    elsewhere = Request(
        q=q,
        k=k,
        v=v,
        bias=None,
        value_bias=None,
        masking=Masking(q_len=5, k_len=5),
        scale=1.0,
        dropout=0.0,
    )
    assert BACKENDS["blockwise"](elsewhere) == "its loops pay on the CPU only, and q is on meta"
    assert "count on the CPU only, and q is on meta" in BACKENDS["matrix"](elsewhere)


class Slope(hw.Bias):
    """A kind that only the oracle and torch's attention can know: they ask for nothing but `dense`."""

    TENSORS = ("slope",)

    def __init__(self, slope):
        self.slope = slope

    batch, heads, lengths = 1, 1, (None, None)

    def bind(self, q_len, k_len):
        bound = type(self)(self.slope)
        bound.lengths = (q_len, k_len)
        return bound

    def dense(self, q=None, *, k_len=None, scale=None):
        return self.slope * torch.arange(self.lengths[1]).expand(1, 1, *self.lengths)


def test_a_kind_of_ones_own_runs_where_it_can():
    bias = Slope(learned(1))
    told = hw.explain(*qkv(), bias)
    assert (told.backend, told.reason) == ("eager", "the only one that runs this call")
    assert "no loop for Slope, only for" in told.others["blockwise"]
    with torch.no_grad():
        assert "no form for Slope, only for Toeplitz" in hw.explain(*qkv(), bias).others["flex"]
    inputs = qkv(5)
    expected = hw.attention(*inputs, bias.bind(5, 5).dense())
    for backend in ("auto", "eager", "sdpa", "matrix"):
        torch.testing.assert_close(hw.attention(*inputs, bias, backend=backend), expected)


def test_every_name_is_listed_when_one_is_unknown():
    with pytest.raises(
        ValueError, match=r"expected one of auto, triton, native, sdpa, matrix, blockwise, flex, eager.*got 'fast'"
    ):
        hw.attention(*qkv(5), backend="fast")
    assert set(NAMES) <= set(BACKENDS)


def test_explain_takes_what_attention_takes():
    q, k, v = qkv(6)
    ids = torch.zeros(1, 6, dtype=torch.long)
    arguments = {
        "bias": toeplitz(6),
        "value_bias": hw.RelativeValues(torch.randn(1, 3, D)),
        "mask": torch.ones(1, 1, 6, 6, dtype=torch.bool),
        "causal": True,
        "lengths": torch.tensor([4]),
        "documents": ids,
        "scale": 0.5,
        "dropout": 0.1,
        "backend": "blockwise",
    }
    assert hw.explain(q, k, v, **arguments).backend == "blockwise"
    assert hw.explain(q, k, v, *arguments.values()).backend == "blockwise"  # in the order of attention
    assert hw.attention(q, k, v, *arguments.values()).shape == q.shape
    with pytest.raises(TypeError, match="unexpected keyword argument 'attn_mask'"):
        hw.explain(q, k, v, attn_mask=None)
    with pytest.raises(TypeError, match="missing a required argument: 'v'"):
        hw.explain(q, k)
