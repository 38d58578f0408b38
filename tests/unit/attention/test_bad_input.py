"""Every message of `attention`: which argument, what was expected and from where, what was got."""

import pytest
import torch

import headway as hw

B, H, LQ, LK, D = 2, 4, 3, 5, 2
F = torch.randn
LABELS = torch.zeros(1, LQ, LK, dtype=torch.long)


def inputs(**changed):
    return {"q": F(B, H, LQ, D), "k": F(B, H, LK, D), "v": F(B, H, LK, D)} | changed


def spoiled(value, *shape):
    tensor = F(*shape)
    tensor.view(-1)[-1] = value
    return tensor


def ids(*shape, high=0):
    return torch.full(shape, high, dtype=torch.long)


WRONG_VALUE = {
    "q rank": (
        lambda: {"q": F(B, LQ, D)},
        r"q: expected 4 axes \(B, H, L, D\), got 3 in shape \(2, 3, 2\)\. Split the heads",
    ),
    "k rank": (lambda: {"k": F(B, LK, D)}, r"k: expected 4 axes .*got 3"),
    "v rank": (lambda: {"v": F(1, B, H, LK, D)}, r"v: expected 4 axes .*got 5"),
    "no query": (lambda: {"q": F(B, H, 0, D)}, r"q: expected no empty axis in \(B, H, L, D\), got \(2, 4, 0, 2\)"),
    "no keys": (lambda: {"k": F(B, H, 0, D), "v": F(B, H, 0, D)}, r"k: expected no empty axis .*lengths of 0"),
    "no batch": (lambda: {"q": F(0, H, LQ, D)}, r"q: expected no empty axis"),
    "no width": (lambda: {"v": F(B, H, LK, 0)}, r"v: expected no empty axis"),
    "k batch": (lambda: {"k": F(3, H, LK, D)}, r"k: expected batch size 2 \(from q\), got 3"),
    "v batch": (lambda: {"v": F(1, H, LK, D)}, r"v: expected batch size 2 \(from q\), got 1"),
    "k width": (lambda: {"k": F(B, H, LK, 3)}, r"k: expected head width 2 \(from q\), got 3"),
    "v length": (lambda: {"v": F(B, H, 4, D)}, r"v: expected heads and length \(4, 5\) \(from k\), got \(4, 4\)"),
    "v heads": (lambda: {"v": F(B, 2, LK, D)}, r"v: expected heads and length \(4, 5\) \(from k\), got \(2, 5\)"),
    "heads divide": (
        lambda: {"k": F(B, 3, LK, D), "v": F(B, 3, LK, D)},
        r"number of heads that divides 4 \(from q\), got 3",
    ),
    "more key heads": (lambda: {"k": F(B, 8, LK, D), "v": F(B, 8, LK, D)}, r"heads that divides 4 \(from q\), got 8"),
    "k device": (lambda: {"k": F(B, H, LK, D, device="meta")}, r"k: expected device cpu \(from q\), got meta"),
    "v device": (lambda: {"v": F(B, H, LK, D, device="meta")}, r"v: expected device cpu \(from q\), got meta"),
    # bias
    "bias query length": (
        lambda: {"bias": hw.Dense(F(1, 1, 4, LK))},
        r"bias: expected query length 3 \(from q\), got 4 from Dense",
    ),
    "bias key length": (
        lambda: {"bias": hw.Dense(F(1, 1, LQ, 6))},
        r"bias: expected key length 5 \(from k\), got 6 from Dense",
    ),
    "bias offsets": (
        lambda: {"bias": hw.Toeplitz(F(1, 1, 9))},
        r"Lq \+ Lk - 1 = 7 offsets \(Lq 3 from q, Lk 5 from k\), got 9",
    ),
    "bound offsets": (
        lambda: {"bias": hw.Toeplitz(F(1, 1, 7), 4)},
        r"expected query length 3 \(from q\), got 4 from Toeplitz",
    ),
    "low rank lengths": (
        lambda: {"bias": hw.LowRank(F(1, 1, 3, 1), F(1, 1, 3, 1))},
        r"key length 5 \(from k\), got 3 from LowRank",
    ),
    "segment lengths": (
        lambda: {"bias": hw.SegmentTable(F(1, 2, 2), ids(1, 3), ids(1, 3))},
        r"key length 5 .*got 3 from SegmentTable",
    ),
    "label lengths": (lambda: {"bias": hw.EdgeKeys(F(1, 2, D), ids(1, 5, 3))}, r"query length 3 .*got 5 from EdgeKeys"),
    "value lengths": (
        lambda: {"value_bias": hw.EdgeValues(F(1, 2, D), ids(1, 3, 3))},
        r"key length 5 .*got 3 from EdgeValues",
    ),
    "sum lengths": (
        lambda: {"bias": hw.Toeplitz(F(1, 1, 7)) + hw.Dense(F(1, 1, 3, 6))},
        r"bias: expected key length 5 \(from k\), got 6",
    ),
    "bias heads": (
        lambda: {"bias": hw.Toeplitz(F(1, 3, 7))},
        r"bias: expected heads 4 \(from q\) or 1, got 3 from Toeplitz\(values=\(1, 3, 7\)",
    ),
    "bias batch": (
        lambda: {"bias": hw.Toeplitz(F(3, 1, 7))},
        r"bias: expected batch size 2 \(from q\) or 1, got 3 from Toeplitz",
    ),
    "value heads": (
        lambda: {"value_bias": hw.RelativeValues(F(2, 3, D))},
        r"value_bias: expected heads 4 \(from q\) or 1, got 2",
    ),
    "value batch": (
        lambda: {"value_bias": hw.EdgeValues(F(1, 2, D), ids(3, LQ, LK))},
        r"value_bias: expected batch size 2 .*got 3",
    ),
    "bias width": (
        lambda: {"bias": hw.RelativeKeys(F(1, 3, 4))},
        r"bias: expected vectors of width 2, got 4 from RelativeKeys",
    ),
    "value width": (
        lambda: {"value_bias": hw.RelativeValues(F(1, 3, 4))},
        r"value_bias: expected vectors of width 2, got 4",
    ),
    "width in a sum": (
        lambda: {"bias": hw.Toeplitz(F(1, 1, 7)) + hw.EdgeKeys(F(1, 3, 4), LABELS)},
        r"vectors of width 2, got 4 from EdgeKeys",
    ),
    "bias rank": (lambda: {"bias": F(LQ, LK)}, r"Dense.matrix: expected 4 axes .*got 2"),
    "bias device": (
        lambda: {"bias": hw.Toeplitz(F(1, 1, 7, device="meta"))},
        r"bias: expected device cpu \(from q\), got meta from Toeplitz.values",
    ),
    "value device": (
        lambda: {"value_bias": hw.RelativeValues(F(1, 3, D, device="meta"))},
        r"value_bias: expected device cpu .*RelativeValues.table",
    ),
    "nan bias": (
        lambda: {"bias": hw.Toeplitz(spoiled(torch.nan, 1, H, 7))},
        r"Toeplitz.values: expected finite values, got NaN or infinity",
    ),
    "infinite bias": (
        lambda: {"bias": spoiled(-torch.inf, 1, 1, LQ, LK)},
        r"Dense.matrix: expected finite values.*use mask=, not an infinite bias",
    ),
    "nan in a sum": (
        lambda: {"bias": hw.Dense(F(1, 1, LQ, LK)) + hw.LowRank(F(1, 1, LQ, 1), spoiled(torch.nan, 1, 1, LK, 1))},
        r"LowRank.right: expected finite",
    ),
    "nan value": (
        lambda: {"value_bias": hw.RelativeValues(spoiled(torch.inf, 1, 3, D))},
        r"RelativeValues.table: expected finite",
    ),
    "segments high": (
        lambda: {"bias": hw.SegmentTable(F(1, 2, 2), ids(1, LQ, high=2), ids(1, LK))},
        r"q_segments: expected ids from 0 to 1 .*got 2 to 2",
    ),
    "segments low": (
        lambda: {"bias": hw.SegmentTable(F(1, 2, 2), ids(1, LQ), ids(1, LK, high=-1))},
        r"k_segments: expected ids from 0 to 1 .*got -1 to -1",
    ),
    "labels high": (
        lambda: {"bias": hw.EdgeKeys(F(1, 2, D), LABELS + 2)},
        r"EdgeKeys.labels: expected ids from 0 to 1 .*got 2 to 2",
    ),
    "value labels low": (
        lambda: {"value_bias": hw.EdgeValues(F(1, 2, D), LABELS - 1)},
        r"EdgeValues.labels: expected ids from 0 to 1 .*got -1 to -1",
    ),
    # masking
    "mask shape": (
        lambda: {"mask": torch.ones(B, LK, dtype=torch.bool)},
        r"mask: expected \(B\|1, H\|1, Lq\|1, Lk\) = \(2, 4, 3, 5\), got \(2, 5\)\. A key padding mask",
    ),
    "mask keys": (lambda: {"mask": torch.ones(B, H, LQ, 1, dtype=torch.bool)}, r"mask: expected .*got \(2, 4, 3, 1\)"),
    "mask heads": (
        lambda: {"mask": torch.ones(B, 2, LQ, LK, dtype=torch.bool)},
        r"mask: expected .*got \(2, 2, 3, 5\)",
    ),
    "mask device": (
        lambda: {"mask": torch.ones(1, 1, 1, LK, dtype=torch.bool, device="meta")},
        r"mask: expected device cpu \(from q\), got meta",
    ),
    "lengths shape": (lambda: {"lengths": ids(3)}, r"lengths: expected one length per sequence, \(2,\), got \(3,\)"),
    "lengths rank": (
        lambda: {"lengths": ids(B, 1)},
        r"lengths: expected one length per sequence, \(2,\), got \(2, 1\)",
    ),
    "lengths high": (
        lambda: {"lengths": ids(B, high=6)},
        r"lengths: expected 0 to 5 \(key length from k\), got 6 to 6",
    ),
    "lengths low": (lambda: {"lengths": torch.tensor([-1, 3])}, r"lengths: expected 0 to 5 .*got -1 to 3"),
    "lengths device": (lambda: {"lengths": ids(B).to("meta")}, r"lengths: expected device cpu \(from q\), got meta"),
    "one documents": (
        lambda: {"documents": ids(B, LQ)},
        r"a pair \(query ids, key ids\) because Lq 3 and Lk 5 differ, got one tensor",
    ),
    "documents length": (
        lambda: {"documents": (ids(B, LQ), ids(B, LQ))},
        r"documents: expected ids \(2, 5\), got \(2, 3\)",
    ),
    "documents batch": (
        lambda: {"documents": (ids(3, LQ), ids(B, LK))},
        r"documents: expected ids \(2, 3\), got \(3, 3\)",
    ),
    "documents rank": (lambda: {"documents": (ids(LQ), ids(B, LK))}, r"documents: expected ids \(2, 3\), got \(3,\)"),
    "documents device": (
        lambda: {"documents": (ids(B, LQ), ids(B, LK).to("meta"))},
        r"documents: expected device cpu .*got meta",
    ),
    # numbers
    "dropout high": (lambda: {"dropout": 1.0}, r"dropout: expected a probability of at least 0 and below 1, got 1.0"),
    "dropout low": (lambda: {"dropout": -0.1}, r"dropout: expected a probability .*got -0.1"),
    "dropout nan": (lambda: {"dropout": float("nan")}, r"dropout: expected a probability .*got nan"),
    "scale nan": (lambda: {"scale": float("nan")}, r"scale: expected a finite number, got nan"),
    "scale inf": (lambda: {"scale": float("inf")}, r"scale: expected a finite number, got inf"),
    "backend": (
        lambda: {"backend": "flash"},
        r"backend: expected one of auto, triton, native, sdpa, matrix, blockwise, flex, eager.*, got 'flash'",
    ),
}

WRONG_TYPE = {
    "q list": (lambda: {"q": [1.0]}, r"q: expected a tensor \(B, H, L, D\), got list"),
    "k none": (lambda: {"k": None}, r"k: expected a tensor \(B, H, L, D\), got NoneType"),
    "v number": (lambda: {"v": 3.0}, r"v: expected a tensor \(B, H, L, D\), got float"),
    "q integers": (lambda: {"q": ids(B, H, LQ, D)}, r"q: expected a floating dtype, got int64"),
    "v integers": (lambda: {"v": ids(B, H, LK, D)}, r"v: expected a floating dtype, got int64"),
    "k dtype": (lambda: {"k": F(B, H, LK, D).double()}, r"k: expected float32 \(from q\), got float64"),
    "v dtype": (lambda: {"v": F(B, H, LK, D).half()}, r"v: expected float32 \(from q\), got float16"),
    "bias list": (
        lambda: {"bias": [[0.0]]},
        r"bias: expected a score bias, got list\. Use one of headway.bias, or a 4-D tensor",
    ),
    "bias module": (lambda: {"bias": torch.nn.Identity()}, r"bias: expected a score bias, got Identity"),
    "integer bias": (lambda: {"bias": ids(1, 1, LQ, LK)}, r"Dense.matrix: expected a floating dtype, got int64"),
    "boolean bias": (lambda: {"bias": ids(1, 1, LQ, LK).bool()}, r"Dense.matrix: expected a floating dtype, got bool"),
    "value bias as bias": (
        lambda: {"bias": hw.RelativeValues(F(1, 3, D))},
        r"bias: expected a score bias, got RelativeValues\. Pass it as value_bias=",
    ),
    "bias as value bias": (
        lambda: {"value_bias": hw.RelativeKeys(F(1, 3, D))},
        r"value_bias: expected .*got RelativeKeys\. Pass score biases as bias=",
    ),
    "tensor value bias": (
        lambda: {"value_bias": F(1, 1, LQ, LK)},
        r"value_bias: expected RelativeValues, EdgeValues or their sum, got Tensor",
    ),
    "float mask": (
        lambda: {"mask": F(1, 1, LQ, LK)},
        r"mask: expected a boolean tensor, True = may attend, got float32.*bias=headway.Dense",
    ),
    "integer mask": (lambda: {"mask": ids(1, 1, LQ, LK)}, r"mask: expected a boolean tensor.*got int64"),
    "list mask": (lambda: {"mask": [True]}, r"mask: expected a boolean tensor.*got list"),
    "causal tensor": (
        lambda: {"causal": torch.ones(LQ, LK, dtype=torch.bool)},
        r"causal: expected True or False, got Tensor\. Pass a mask as mask=",
    ),
    "causal number": (lambda: {"causal": 1}, r"causal: expected True or False, got int"),
    "float lengths": (lambda: {"lengths": F(B)}, r"lengths: expected an integer tensor \(B,\), got float32"),
    "boolean lengths": (lambda: {"lengths": ids(B).bool()}, r"lengths: expected an integer tensor \(B,\), got bool"),
    "wide unsigned lengths": (lambda: {"lengths": ids(B).to(torch.uint32)}, r"got uint32\. Make it one of torch\.long"),
    "wide unsigned documents": (
        lambda: {"documents": (ids(B, LQ).to(torch.uint16), ids(B, LK))},
        r"documents: expected integer ids, got uint16\. Make them torch\.long",
    ),
    "list lengths": (lambda: {"lengths": [3, 5]}, r"lengths: expected an integer tensor \(B,\), got list"),
    "float documents": (lambda: {"documents": (F(B, LQ), ids(B, LK))}, r"documents: expected integer ids, got float32"),
    "list documents": (
        lambda: {"documents": [ids(B, LQ), ids(B, LK)]},
        r"documents: expected ids \(B, L\) or a pair of them, got list",
    ),
    "three documents": (
        lambda: {"documents": (ids(B, LQ),) * 3},
        r"documents: expected ids \(B, L\) or a pair of them, got tuple",
    ),
    "none in documents": (lambda: {"documents": (None, ids(B, LK))}, r"documents: expected integer ids, got NoneType"),
    "scale tensor": (
        lambda: {"scale": torch.tensor(0.5, requires_grad=True)},
        r"scale: expected a number, got a tensor",
    ),
    "unknown argument": (lambda: {"attn_mask": None}, r"unexpected keyword argument 'attn_mask'"),
}


@pytest.mark.parametrize("function", [hw.attention, hw.explain], ids=["attention", "explain"])
@pytest.mark.parametrize("case", WRONG_VALUE)
def test_wrong_value(case, function):
    changed, message = WRONG_VALUE[case]
    with pytest.raises(ValueError, match=message):
        function(**inputs(**changed()))


@pytest.mark.parametrize("function", [hw.attention, hw.explain], ids=["attention", "explain"])
@pytest.mark.parametrize("case", WRONG_TYPE)
def test_wrong_type(case, function):
    changed, message = WRONG_TYPE[case]
    with pytest.raises(TypeError, match=message):
        function(**inputs(**changed()))


def test_the_inputs_are_right_before_they_are_changed():
    """So that each case above fails for its own reason."""
    assert hw.attention(**inputs()).shape == (B, H, LQ, D)


def test_non_tensors_are_named_under_autocast_too():
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(TypeError, match="k: expected a tensor"):
        hw.attention(**inputs(k=None))


def test_values_are_wrong_whatever_the_backend():
    for backend in ("eager", "sdpa", "matrix", "blockwise", "native"):
        with pytest.raises(ValueError, match="expected finite values"):
            hw.attention(**inputs(bias=hw.Toeplitz(spoiled(torch.nan, 1, H, 7))), backend=backend)
