"""Launching the kernels for `RelativeProducts`: one term of queries, one of keys, and what stands beside them.

The table of a term is spread out before a launch, so that there is a vector for each offset; rows of -1 become zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from headway.attention.triton import offset_kernel, product_kernels
from headway.attention.triton.arguments import Call
from headway.attention.triton.layout import LARGEST, aligned, padded, strides, whole_width
from headway.attention.triton.tables import BLOCK, whole_blocks
from headway.bias import RelativeKeys, RelativeProducts, Structured

Config = dict[str, int]
OFFSET_PROGRAMS = 4  # for each multiprocessor

# For widths up to 64 in half precision. Chosen by what compiled kernels need of registers and shared memory on sm_80
# and sm_89; on Hopper, by trial on an H200 at 512 and 2,048 tokens.
CONFIGS: dict[str, Config] = {
    "forward": {"BLOCK_Q": 64, "BLOCK_K": 32, "num_warps": 4, "num_stages": 2},
    "query": {"BLOCK_Q": 32, "BLOCK_K": 32, "num_warps": 4, "num_stages": 2},
    "key": {"BLOCK_Q": 32, "BLOCK_K": 32, "num_warps": 4, "num_stages": 2},
    "offset": {"BLOCK_Q": 32, "BLOCK_K": 32, "num_warps": 4, "num_stages": 2},
}
# On Hopper, whose products take 64 rows at once: of every call, and of those with products of queries alone.
HOPPER_CONFIGS: dict[str, Config] = {
    "forward": {"BLOCK_Q": 64, "BLOCK_K": 64, "num_warps": 4, "num_stages": 2},
    "query": {"BLOCK_Q": 64, "BLOCK_K": 32, "num_warps": 4, "num_stages": 2},
    "key": {"BLOCK_Q": 32, "BLOCK_K": 64, "num_warps": 4, "num_stages": 2},
}
HOPPER_QUERY_CONFIGS: dict[str, Config] = {"offset": {"BLOCK_Q": 64, "BLOCK_K": 64, "num_warps": 4, "num_stages": 2}}


def config(kind: str, width: int, dtype: torch.dtype, on_hopper: bool, of_keys: bool) -> Config:
    """Tile size, warps and stages; `width` is the largest of the head widths, the rank and the widths of vectors.

    The side of a tile that its program owns is as long as the other or twice as long.
    """
    half = dtype != torch.float32
    if half and width <= 64:
        special = {**HOPPER_CONFIGS, **({} if of_keys else HOPPER_QUERY_CONFIGS)} if on_hopper else {}
        return dict(special.get(kind, CONFIGS[kind]))
    block = 32 if width <= (128 if half else 64) else 16
    return {"BLOCK_Q": block, "BLOCK_K": block, "num_warps": 4, "num_stages": 1}


class Term(NamedTuple):
    """Vectors of queries or keys, and what they are multiplied with."""

    vectors: Tensor  # (B|1, H|1, L, W)
    table: Tensor  # (H|1, N, W)
    rows: Tensor  # (Lq + Lk - 1,), of the table, offset -(Lq - 1) first; -1 is zero


def joined(terms: Sequence[Structured], q: Tensor, scale: float, *, of_keys: bool) -> Term | None:
    """Join all products of queries, or of keys, to one term: their vectors beside one another."""
    q_len = q.shape[2]
    found = []
    for term in terms:
        if isinstance(term, RelativeProducts) and term.of_keys == of_keys:
            found.append(Term(term.vectors, term.offset_vectors, term.rows))
        elif isinstance(term, RelativeKeys) and not of_keys:
            clip, k_len = term.clip, len_of_keys(terms, q_len)
            rows = torch.arange(1 - q_len, k_len, device=q.device) - term.q_start
            found.append(Term(q, (term.table * scale).to(q.dtype), rows.clamp(-clip, clip) + clip))
    if len(found) < 2:
        return found[0] if found else None
    batch = max(term.vectors.shape[0] for term in found)
    heads = max(max(term.vectors.shape[1], term.table.shape[0]) for term in found)
    vectors = torch.cat([term.vectors.to(q.dtype).expand(batch, heads, -1, -1) for term in found], -1)
    same = all(term.rows is found[0].rows for term in found)
    tables = [term.table if same else F.pad(term.table, (0, 0, 0, 1))[:, term.rows.long()] for term in found]
    table = torch.cat([t.to(q.dtype).expand(heads, -1, -1) for t in tables], -1)
    rows = found[0].rows if same else torch.arange(table.shape[1], device=q.device)
    return Term(vectors, table, rows)


def len_of_keys(terms: Sequence[Structured], q_len: int) -> int:
    """Return the number of keys, which a bias with a vector for each offset knows."""
    rows = next(term.rows for term in terms if isinstance(term, RelativeProducts))
    return rows.shape[0] - q_len + 1


class Products:
    """What the kernels of one call share: their arguments in order, and their constants."""

    def __init__(self, call: Call) -> None:
        inputs = call.description.inputs
        self.call, self.values = call, inputs.values
        self.of_queries = _term(inputs.q_vectors, inputs.q_table, inputs.q_rows)
        self.of_keys = _term(inputs.k_vectors, inputs.k_table, inputs.k_rows)
        arguments: list[Any] = []
        widths, same = [], []
        for term, rows in ((self.of_queries, call.q), (self.of_keys, call.k)):
            read: list[Any] = [call.nothing, 0, 0, 0, call.nothing, 0] if term is None else self._read(term)
            arguments += read
            widths.append(16 if term is None else whole_width(term.vectors.shape[3]))
            same.append(term is not None and _is_same(read[0], rows))
        self.arguments = tuple(arguments)
        self.flags: dict[str, Any] = {
            "QUERIES": self.of_queries is not None,
            "KEYS": self.of_keys is not None,
            "SAME_QUERIES": same[0],
            "SAME_KEYS": same[1],
            "TOEPLITZ": self.values is not None,
            "LOW_RANK": call.left is not None,
            **call.mask_flags,
            **call.width_flags,
            "BLOCK_R": whole_width(call.rank),
            "BLOCK_QW": widths[0],
            "BLOCK_KW": widths[1],
        }

    def _read(self, term: Term) -> list[Any]:
        vectors = aligned(padded(_lowered(term.vectors, self.call.q.dtype)))
        table = self._of_every_offset(term)
        return [vectors, *strides(vectors), table, 0 if table.shape[0] == 1 else table.stride(0)]

    def _of_every_offset(self, term: Term) -> Tensor:  # (H|1, whole blocks of queries and of keys, W of a tile)
        """Return a vector for each offset of whole blocks, and of one block more on either side."""
        q_len, k_len, count = self.call.q.shape[2], self.call.k.shape[2], term.table.shape[1]
        around = whole_blocks(q_len) + BLOCK - (q_len - 1), whole_blocks(k_len) + BLOCK - k_len
        places = F.pad(places_of(term), around, value=count)
        more = whole_width(term.table.shape[2]) - term.table.shape[2]
        return F.pad(_lowered(term.table, self.call.q.dtype), (0, more, 0, 1)).index_select(1, places)

    def setting(self, kind: str) -> Config:
        widths = [self.flags[f"BLOCK_{name}"] for name in ("D", "V", "R", "QW", "KW")]
        device = self.call.q.device
        on_hopper = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9
        return config(kind, max(widths), self.call.q.dtype, on_hopper, self.of_keys is not None)

    def shared(self, orientation: str, setting: Config) -> tuple[Any, ...]:
        """Return the arguments that follow the strides of q, k and v in every kernel."""
        call = self.call
        return *self.arguments, *call.toeplitz(orientation, setting), *call.factors(), *call.masks, *call.sizes


def _term(vectors: Tensor | None, table: Tensor | None, rows: Tensor | None) -> Term | None:
    return None if vectors is None or table is None or rows is None else Term(vectors, table, rows)


def places_of(term: Term) -> Tensor:
    """Return the row of each offset; one behind the table where there is no vector."""
    return torch.where(term.rows < 0, term.table.shape[1], term.rows.long())


def _is_same(vectors: Tensor, rows: Tensor) -> bool:
    """Whether the vectors of queries or keys are q or k itself, which are then loaded once."""
    same = vectors.shape == rows.shape and vectors.stride() == rows.stride()
    return same and vectors.data_ptr() == rows.data_ptr()


def _lowered(t: Tensor, dtype: torch.dtype) -> Tensor:
    """Return it in the precision of the call; of float16 no number becomes infinite."""
    if dtype == torch.float16 and t.dtype != torch.float16:
        t = t.clamp(-LARGEST, LARGEST)
    return t.to(dtype)


def forward(call: Call, out: Tensor, rest: Tensor, lse: Tensor) -> None:  # all written
    of, q, k, v = Products(call), call.q, call.k, call.v
    setting = of.setting("forward")
    product_kernels.forward_kernel[(triton.cdiv(q.shape[2], setting["BLOCK_Q"]) * q.shape[0] * q.shape[1],)](
        q, k, v, out, rest, lse, *strides(q, k, v), *of.shared("rows", setting),
        REST=call.description.exact, EDGES=call.edges(1, setting["BLOCK_K"]), **of.flags, **setting,
    )  # fmt: skip


def backward(
    call: Call,
    grad: Tensor,
    lse: Tensor,
    delta: Tensor,
    dq: Tensor,  # this, dk and dv are written
    dk: Tensor,
    dv: Tensor,
) -> dict[str, Tensor | None]:  # the gradients of the bias; those of vectors for each sequence and head
    of, q, k, v = Products(call), call.q, call.k, call.v
    batch, heads, q_len, _ = q.shape
    k_len = k.shape[2]
    columns = whole_width(call.rank) if call.rank > 0 else 0
    dleft, dright = (q.new_empty(batch, heads, length, columns, dtype=torch.float32) for length in (q_len, k_len))
    dqv, dkv = _empty_vectors(call, of.of_queries, q_len), _empty_vectors(call, of.of_keys, k_len)
    before = (q, k, v, grad, lse, delta)
    setting = of.setting("key")
    product_kernels.key_kernel[(triton.cdiv(k_len, setting["BLOCK_K"]) * batch * heads,)](
        *before, dk, dv, dright, dkv, *strides(q, k, v, grad), *of.shared("columns", setting),
        EDGES=call.edges(setting["BLOCK_Q"], setting["BLOCK_K"]), **of.flags, **setting,
    )  # fmt: skip
    setting = of.setting("query")
    product_kernels.query_kernel[(triton.cdiv(q_len, setting["BLOCK_Q"]) * batch * heads,)](
        *before, dq, dleft, dqv, *strides(q, k, v, grad), *of.shared("rows", setting),
        EDGES=call.edges(1, setting["BLOCK_K"]), **of.flags, **setting,
    )  # fmt: skip
    found: dict[str, Tensor | None] = {"left": dleft[..., : call.rank], "right": dright[..., : call.rank]}
    if of.of_queries is not None:
        found["q_vectors"] = dqv[..., : of.of_queries.vectors.shape[3]]
    if of.of_keys is not None:
        found["k_vectors"] = dkv[..., : of.of_keys.vectors.shape[3]]
    return found | _of_offsets(of, before)


def _empty_vectors(call: Call, term: Term | None, length: int) -> Tensor:
    """Room for gradients of vectors, of each sequence and head; those that are yet to be summed keep their digits."""
    if term is None:
        return call.nothing
    size = (*call.q.shape[:2], length, whole_width(term.vectors.shape[3]))
    apart = term.vectors.dtype == call.q.dtype and term.vectors.shape[:2] == size[:2]
    return call.q.new_empty(size, dtype=call.q.dtype if apart else torch.float32)


def _of_offsets(of: Products, before: tuple[Tensor, ...]) -> dict[str, Tensor | None]:
    """The gradients of both tables, as they are given, and of a Toeplitz bias, (B|1, H, Lq + Lk - 1); where wanted."""
    call, wanted = of.call, of.call.description.wanted
    names = ("q_table", "k_table", "values")
    learned = [name in wanted for name in names]
    if not any(learned):
        return {}
    batch, heads, q_len, _ = call.q.shape
    k_len = call.k.shape[2]
    setting = of.setting("offset")
    block = setting.pop("BLOCK_Q")
    assert setting.pop("BLOCK_K") == block
    blocks_q, blocks_k = triton.cdiv(q_len, block), triton.cdiv(k_len, block)
    diagonals = blocks_q + blocks_k - 1
    groups = 1 if of.values is None else of.values.shape[0]  # 1 where the batch shares the bias
    together = batch // groups
    programs = OFFSET_PROGRAMS * call.multiprocessors // (diagonals * heads * groups)
    chunks = max(1, min(programs, together * min(blocks_q, blocks_k)))
    widths = of.flags["BLOCK_QW"], of.flags["BLOCK_KW"], 1
    sums = [
        call.q.new_empty((groups, heads, diagonals, chunks, 2, block, width) if learns else (0,), dtype=torch.float32)
        for width, learns in zip(widths, learned, strict=True)
    ]
    offset_kernel.offset_kernel[(diagonals * chunks, heads, groups)](
        *before, *sums, *strides(*before[:4]),
        *of.shared("columns", {"BLOCK_Q": block, "BLOCK_K": block}), batch, together, chunks,
        OF_QUERIES=learned[0], OF_KEYS=learned[1], OF_VALUES=learned[2],
        EDGES=call.edges(block, block), BLOCK=block, **of.flags, **setting,
    )  # fmt: skip
    first = blocks_q * block - (q_len - 1)  # where offset -(Lq - 1) stands
    found: dict[str, Tensor | None] = {}
    for name, of_blocks, learns in zip(names, sums, learned, strict=True):
        if learns:
            behind, ahead = of_blocks.sum(3).unbind(3)  # (groups, H, diagonals, block, W)
            total = F.pad(behind, (0, 0, 0, 0, 0, 1)) + F.pad(ahead, (0, 0, 0, 0, 1, 0))
            found[name] = total.flatten(2, 3)[:, :, first : first + q_len + k_len - 1]
    for name, term in zip(names, (of.of_queries, of.of_keys), strict=False):
        by_offset = found.get(name)
        if by_offset is not None and term is not None:
            found[name] = _of_table(term, by_offset.sum(0))
    of_values = found.get("values")
    return found if of_values is None else {**found, "values": of_values.squeeze(-1)}


def _of_table(term: Term, by_offset: Tensor) -> Tensor:  # (H, Lq + Lk - 1, W of a tile) -> as the table
    """Sum what offsets of one row have, in a fixed order: `index_put_` that accumulates sorts the rows first."""
    heads, count, width = term.table.shape
    by_offset = (by_offset.sum(0, keepdim=True) if heads == 1 else by_offset)[..., :width].transpose(0, 1)
    total = by_offset.new_zeros(count + 1, heads, width)
    total.index_put_((places_of(term),), by_offset.contiguous(), accumulate=True)
    return total[:count].transpose(0, 1).to(term.table.dtype).contiguous()
