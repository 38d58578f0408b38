"""Every message of the constructors: which argument, what was expected, what was got."""

import pytest
import torch

from headway.bias import (
    Dense,
    EdgeKeys,
    EdgeValues,
    LowRank,
    RelativeKeys,
    RelativeProducts,
    RelativeValues,
    SegmentTable,
    Toeplitz,
)

F = torch.randn
IDS = torch.zeros(1, 4, dtype=torch.long)
LABELS = torch.zeros(1, 4, 4, dtype=torch.long)
ROWS = torch.zeros(7, dtype=torch.long)
META = {"device": "meta"}

WRONG_VALUE = {
    # rank
    "dense rank": (
        lambda: Dense(F(4, 4)),
        r"Dense.matrix: expected 4 axes \(B\|1, H\|1, Lq, Lk\), got 2 in shape \(4, 4\)",
    ),
    "toeplitz rank": (
        lambda: Toeplitz(F(7)),
        r"Toeplitz.values: expected 3 axes \(.*Lq\+Lk-1\), got 1 in shape \(7,\)",
    ),
    "left rank": (lambda: LowRank(F(4, 2), F(1, 1, 4, 2)), r"LowRank.left: expected 4 axes .*got 2"),
    "right rank": (lambda: LowRank(F(1, 1, 4, 2), F(1, 4, 2)), r"LowRank.right: expected 4 axes .*got 3"),
    "segments rank": (lambda: SegmentTable(F(2, 2), IDS, IDS), r"SegmentTable.table: expected 3 axes .*got 2"),
    "q_segments rank": (
        lambda: SegmentTable(F(1, 2, 2), IDS[0], IDS),
        r"q_segments: expected 2 axes \(B\|1, L\), got 1",
    ),
    "k_segments rank": (
        lambda: SegmentTable(F(1, 2, 2), IDS, IDS[0]),
        r"k_segments: expected 2 axes \(B\|1, L\), got 1",
    ),
    "keys rank": (lambda: RelativeKeys(F(3, 4)), r"RelativeKeys.table: expected 3 axes \(H\|1, 2K\+1, D\), got 2"),
    "values rank": (lambda: RelativeValues(F(3, 4)), r"RelativeValues.table: expected 3 axes .*got 2"),
    "vectors rank": (
        lambda: RelativeProducts(F(3, 4, 2), F(3, 5, 2), ROWS),
        r"RelativeProducts.vectors: expected 4 axes \(B\|1, H\|1, L, W\), got 3",
    ),
    "offset vectors rank": (
        lambda: RelativeProducts(F(1, 3, 4, 2), F(5, 2), ROWS),
        r"RelativeProducts.offset_vectors: expected 3 axes \(H\|1, N, W\), got 2",
    ),
    "rows rank": (
        lambda: RelativeProducts(F(1, 3, 4, 2), F(3, 5, 2), ROWS[None]),
        r"RelativeProducts.rows: expected 1 axes \(Lq\+Lk-1\), got 2",
    ),
    "edge keys rank": (lambda: EdgeKeys(F(3, 4), LABELS), r"EdgeKeys.table: expected 3 axes \(H\|1, N, D\), got 2"),
    "edge values rank": (lambda: EdgeValues(F(3, 4), LABELS), r"EdgeValues.table: expected 3 axes .*got 2"),
    "labels rank": (
        lambda: EdgeKeys(F(1, 3, 4), LABELS[0]),
        r"EdgeKeys.labels: expected 3 axes \(B\|1, Lq, Lk\), got 2",
    ),
    "value labels rank": (lambda: EdgeValues(F(1, 3, 4), LABELS[0]), r"EdgeValues.labels: expected 3 axes .*got 2"),
    "advice": (lambda: Dense(F(4, 4)), r"Add the missing axes with size 1 to share over them"),
    # empty axes
    "empty dense": (lambda: Dense(F(1, 1, 0, 4)), r"Dense.matrix: expected no empty axis .*got shape \(1, 1, 0, 4\)"),
    "empty toeplitz": (lambda: Toeplitz(F(1, 1, 0)), r"Toeplitz.values: expected no empty axis"),
    "empty rank": (lambda: LowRank(F(1, 1, 4, 0), F(1, 1, 4, 0)), r"LowRank.left: expected no empty axis"),
    "empty ids": (lambda: SegmentTable(F(1, 2, 2), IDS, IDS[:, :0]), r"k_segments: expected no empty axis"),
    "empty table": (lambda: RelativeKeys(F(0, 3, 4)), r"RelativeKeys.table: expected no empty axis"),
    "empty labels": (lambda: EdgeValues(F(1, 3, 4), LABELS[:, :0]), r"EdgeValues.labels: expected no empty axis"),
    # sizes
    "vectors of other widths": (
        lambda: RelativeProducts(F(1, 3, 4, 2), F(3, 5, 6), ROWS),
        r"RelativeProducts: expected vectors of one width, got 2 and 6 \(offset_vectors\)",
    ),
    "vectors of other heads": (
        lambda: RelativeProducts(F(1, 3, 4, 2), F(2, 5, 2), ROWS),
        r"bias: expected equal head sizes or 1, got 3 and 2",
    ),
    "fewer rows than queries": (
        lambda: RelativeProducts(F(1, 3, 8, 2), F(3, 5, 2), ROWS),
        r"RelativeProducts.rows: .*at least 8 \(the number of vectors\), got 7",
    ),
    "too far to the left": (
        lambda: RelativeProducts.clipped(F(1, 3, 4, 2), F(3, 5, 2), 4, 4, left=5),
        r"RelativeProducts.clipped: expected left from 0 to 4 .*got 5",
    ),
    "clipped keys that are queries": (
        lambda: RelativeProducts.clipped(F(1, 3, 4, 2), F(3, 5, 2), 4, 6, left=2, of_keys=True),
        r"bias: expected query length 4 \(from q\), got 6 from RelativeProducts",
    ),
    "even keys": (
        lambda: RelativeKeys(F(1, 4, 2)),
        r"RelativeKeys.table: expected an odd number of rows, 2K\+1, got 4",
    ),
    "even values": (lambda: RelativeValues(F(1, 2, 2)), r"RelativeValues.table: expected an odd number of rows.*got 2"),
    "ranks": (lambda: LowRank(F(1, 1, 4, 2), F(1, 1, 4, 3)), r"factors of one rank, got 2 \(left\) and 3 \(right\)"),
    "factor batch": (lambda: LowRank(F(2, 1, 4, 2), F(3, 1, 4, 2)), r"expected equal batch sizes or 1, got 2 and 3"),
    "factor heads": (lambda: LowRank(F(1, 2, 4, 2), F(1, 3, 4, 2)), r"expected equal head sizes or 1, got 2 and 3"),
    "table square": (
        lambda: SegmentTable(F(1, 2, 3), IDS, IDS),
        r"SegmentTable.table: expected \(H\|1, S, S\), got \(1, 2, 3\)",
    ),
    "ids batch": (
        lambda: SegmentTable(F(1, 2, 2), IDS.expand(2, -1), IDS.expand(3, -1)),
        r"batch sizes or 1, got 2 and 3",
    ),
    "q_len low": (lambda: Toeplitz(F(1, 1, 7), 0), r"Toeplitz.q_len: expected 1 to 7 \(the number of values\), got 0"),
    "q_len high": (lambda: Toeplitz(F(1, 1, 7), 8), r"Toeplitz.q_len: expected 1 to 7 \(the number of values\), got 8"),
    # devices
    "low rank device": (
        lambda: LowRank(F(1, 1, 4, 2), F(1, 1, 4, 2, **META)),
        r"LowRank.right: expected device cpu \(from LowRank.left\), got meta",
    ),
    "segments device": (
        lambda: SegmentTable(F(1, 2, 2), IDS, IDS.to("meta")),
        r"k_segments: expected device cpu \(from SegmentTable.table\), got meta",
    ),
    "labels device": (
        lambda: EdgeKeys(F(1, 3, 2, **META), LABELS),
        r"EdgeKeys.labels: expected device meta \(from EdgeKeys.table\), got cpu",
    ),
    "value labels device": (lambda: EdgeValues(F(1, 3, 2, **META), LABELS), r"EdgeValues.labels: expected device meta"),
    # lengths that nothing gives
    "even toeplitz": (lambda: Toeplitz(F(1, 1, 8)).dense(), r"8 offsets fit no square matrix \(2 L - 1 do\)"),
    "toeplitz offsets": (
        lambda: Toeplitz(F(1, 1, 8)).bind(4, 4),
        r"Lq \+ Lk - 1 = 7 offsets \(Lq 4 from q, Lk 4 from k\), got 8",
    ),
    "no query": (lambda: RelativeKeys(F(1, 3, 2)).dense(), r"RelativeKeys.dense: expected the query q .*got None"),
    "no query of edges": (lambda: EdgeKeys(F(1, 3, 2), LABELS).dense(), r"EdgeKeys.dense: expected the query q"),
    "query length": (
        lambda: EdgeKeys(F(1, 3, 2), LABELS).dense(F(1, 1, 5, 2)),
        r"expected query length 4, got 5 from q",
    ),
    "query width": (lambda: RelativeKeys(F(1, 3, 2)).dense(F(1, 1, 5, 4)), r"vectors of width 4 \(from q\), got 2"),
    "value lengths": (lambda: RelativeValues(F(1, 3, 2)).dense(), r"fits any length. Give q_len= and k_len= to dense"),
}

WRONG_TYPE = {
    "dense dtype": (
        lambda: Dense(torch.zeros(1, 1, 4, 4).long()),
        r"Dense.matrix: expected a floating dtype, got int64",
    ),
    "toeplitz dtype": (
        lambda: Toeplitz(torch.zeros(1, 1, 7).bool()),
        r"Toeplitz.values: expected a floating dtype, got bool",
    ),
    "left dtype": (
        lambda: LowRank(torch.zeros(1, 1, 4, 2).int(), F(1, 1, 4, 2)),
        r"LowRank.left: expected a floating dtype, got int32",
    ),
    "right dtype": (
        lambda: LowRank(F(1, 1, 4, 2), torch.zeros(1, 1, 4, 2).int()),
        r"LowRank.right: expected a floating dtype, got int32",
    ),
    "factor dtypes": (
        lambda: LowRank(F(1, 1, 4, 2), F(1, 1, 4, 2).double()),
        r"factors of one dtype, got torch.float32 and torch.float64",
    ),
    "table dtype": (
        lambda: SegmentTable(torch.zeros(1, 2, 2).int(), IDS, IDS),
        r"SegmentTable.table: expected a floating dtype",
    ),
    "float ids": (
        lambda: SegmentTable(F(1, 2, 2), IDS.float(), IDS),
        r"SegmentTable.q_segments: expected integer ids, got float32",
    ),
    "wide unsigned ids": (
        lambda: SegmentTable(F(1, 2, 2), IDS, IDS.to(torch.uint16)),
        r"SegmentTable.k_segments: expected integer ids, got uint16. Convert it with .long",
    ),
    "bool ids": (
        lambda: SegmentTable(F(1, 2, 2), IDS, IDS.bool()),
        r"SegmentTable.k_segments: expected integer ids, got bool",
    ),
    "keys dtype": (lambda: RelativeKeys(torch.zeros(1, 3, 2).int()), r"RelativeKeys.table: expected a floating dtype"),
    "values dtype": (
        lambda: RelativeValues(torch.zeros(1, 3, 2).int()),
        r"RelativeValues.table: expected a floating dtype",
    ),
    "edge keys dtype": (
        lambda: EdgeKeys(torch.zeros(1, 3, 2).int(), LABELS),
        r"EdgeKeys.table: expected a floating dtype",
    ),
    "edge values dtype": (
        lambda: EdgeValues(torch.zeros(1, 3, 2).int(), LABELS),
        r"EdgeValues.table: expected a floating dtype",
    ),
    "float labels": (
        lambda: EdgeKeys(F(1, 3, 2), LABELS.float()),
        r"EdgeKeys.labels: expected integer ids, got float32. Convert it with .long",
    ),
    "float rows": (
        lambda: RelativeProducts(F(1, 3, 4, 2), F(3, 5, 2), ROWS.float()),
        r"RelativeProducts.rows: expected integer ids, got float32. Convert it with .long",
    ),
    "vectors of two dtypes": (
        lambda: RelativeProducts(F(1, 3, 4, 2), F(3, 5, 2).double(), ROWS),
        r"RelativeProducts: expected vectors of one dtype, got torch.float32 and torch.float64 \(offset_vectors\)",
    ),
    "float value labels": (
        lambda: EdgeValues(F(1, 3, 2), LABELS.double()),
        r"EdgeValues.labels: expected integer ids, got float64",
    ),
    "list": (lambda: Dense([[1.0]]), r"Dense.matrix: expected a tensor \(B\|1, H\|1, Lq, Lk\), got list"),
    "toeplitz list": (lambda: Toeplitz([1.0]), r"Toeplitz.values: expected a tensor .*got list"),
    "ids list": (
        lambda: SegmentTable(F(1, 2, 2), [0, 1], IDS),
        r"SegmentTable.q_segments: expected a tensor .*got list",
    ),
    "labels none": (lambda: EdgeKeys(F(1, 3, 2), None), r"EdgeKeys.labels: expected a tensor .*got NoneType"),
}


@pytest.mark.parametrize("case", WRONG_VALUE)
def test_wrong_value(case):
    make, message = WRONG_VALUE[case]
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("case", WRONG_TYPE)
def test_wrong_type(case):
    make, message = WRONG_TYPE[case]
    with pytest.raises(TypeError, match=message):
        make()


@pytest.mark.parametrize("wrong", [-1, 3])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda ids: SegmentTable(F(1, 3, 3), ids[0], IDS),
            "q_segments: expected ids from 0 to 2 .segments of the table",
        ),
        (
            lambda ids: SegmentTable(F(1, 3, 3), IDS, ids[0]),
            "k_segments: expected ids from 0 to 2 .segments of the table",
        ),
        (lambda ids: EdgeKeys(F(1, 3, 2), ids), "EdgeKeys.labels: expected ids from 0 to 2 .rows of the table"),
        (lambda ids: EdgeValues(F(1, 3, 2), ids), "EdgeValues.labels: expected ids from 0 to 2 .rows of the table"),
    ],
)
def test_ids_out_of_range(make, message, wrong):
    ids = LABELS.clone()
    make(ids).check_values()
    ids[0, 0, 0] = wrong
    with pytest.raises(ValueError, match=rf"{message}.*got {min(wrong, 0)} to {max(wrong, 0)}"):
        make(ids).check_values()


@pytest.mark.parametrize("wrong", [-2, 5])
def test_rows_out_of_range(wrong):
    rows = ROWS.clone()
    rows[2] = wrong
    with pytest.raises(ValueError, match=rf"RelativeProducts.rows: expected -1 \(no vector\) to 4 .*{wrong}"):
        RelativeProducts(F(1, 3, 4, 2), F(3, 5, 2), rows).check_values()


def test_a_sum_that_overflows_is_still_finite():
    Dense(torch.full((1, 1, 4, 4), 3e38)).check_values()


def test_biases_cannot_be_changed_by_assignment():
    bias = Toeplitz(F(1, 1, 7))
    with pytest.raises(AttributeError, match="cannot assign to field 'values'"):
        bias.values = F(1, 1, 7)
