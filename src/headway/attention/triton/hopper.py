"""Which tensors and masks the Hopper kernels take, and their launches, for a bias that the batch shares."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import torch
import triton
from torch import Tensor

from headway.attention.masking import Masking
from headway.attention.triton import cuda
from headway.attention.triton.arguments import Call
from headway.attention.triton.masks import is_of_keys, turns
from headway.attention.triton.tables import BLOCK, TILE, whole_blocks

WIDTHS = (32, 64, 80, 96, 128)  # of heads
FULL_WIDTH = 64  # at which alone there are kernels for one tile, relative terms and the gradient of a matrix
MOST_RANK = 64  # of factors that are read as they are
WARPS = 8  # that compute, of a block
PROGRAMS = 3  # for each multiprocessor, of kernels that go over the batch
MOST_SCORES = 2**24  # of all heads: a bias with a low-rank term becomes a matrix, which should stay in the L2 cache
FEW_QUERIES = 4096  # of all sequences: errors of their weights do not average out, and exact ones cost little
FEW_TILES = 512  # of 64 queries: up to here, two sequences have gradients of q on their way at a time


def takes_masks(masking: Masking) -> bool:
    """Whether the kernels know these masks: causal order, lengths, masks of keys, and packed documents."""
    return masking.mask is None or is_of_keys(masking.mask)


def whole_width(width: int) -> int | None:
    """Of WIDTHS, the one to which heads are padded; None beyond the last."""
    return next((whole for whole in WIDTHS if width <= whole), None)


def takes(dtype: torch.dtype, width: int, v_width: int, device: torch.device) -> bool:
    """Whether the kernels are for such tensors: half precision, and a head width up to the last of WIDTHS."""
    whole = whole_width(width)
    return whole is not None and whole == whole_width(v_width) and takes_kind(dtype, whole, device)


def takes_kind(dtype: torch.dtype, width: int, device: torch.device) -> bool:
    half = dtype in (torch.float16, torch.bfloat16)
    return half and width in WIDTHS and device.type == "cuda" and _here(device.index)


def is_tile(q_len: int, k_len: int) -> bool:
    """Whether all queries and keys of a head fit into one block."""
    return max(q_len, k_len) <= BLOCK


def multiplies_out(heads: int, q_len: int, k_len: int) -> bool:
    """Whether a low-rank bias has few enough scores to become a matrix."""
    return heads * q_len * k_len <= MOST_SCORES


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _here(device: int) -> bool:
    """The answer alone is for torch.compile, which would trace the search for NVRTC and break there."""
    return _capable(device)


@functools.cache
def _capable(device: int) -> bool:
    return torch.cuda.get_device_capability(device) == (9, 0) and cuda.available()


@functools.cache
def kernel(file: str, name: str, device: int, dtype: torch.dtype, *flags: str) -> cuda.Kernel:
    """Compiled once for each device, type and choice of flags."""
    options = [
        "--gpu-architecture=sm_90a",
        "-default-device",
        *(["-DBFLOAT16"] if dtype == torch.bfloat16 else []),
        *flags,
    ]
    return cuda.Kernel(Path(__file__).with_name(file), name, options)


class Hopper:
    """One call on the Hopper kernels. `sums`: the gradient of a Toeplitz bias is wanted."""

    def __init__(self, call: Call, *, sums: bool = False) -> None:
        self.call, tables = call, call.description.tables
        self.q, self.k, self.v = call.q, call.k, call.v
        batch, heads = call.q.shape[:2]
        self.tables, self.segmented = tables, tables.steps is not None
        steps = None if tables.steps is None else tables.steps.expand(batch, heads, -1).contiguous()
        self.ids = [steps, tables.q_segments, tables.k_segments]
        self.id_steps = [0 if t is None or t.shape[0] == 1 else t.stride(0) for t in self.ids[1:]]
        self.first, self.last = whole_blocks(call.q.shape[2]), whole_blocks(call.k.shape[2])
        self.masks = [t for t in (tables.words, tables.q_records, tables.k_records) if t is not None]
        self.sums = sums and tables.toeplitz is not None
        given = {
            "-DDROPOUT": call.dropout > 0,
            "-DMATRIX": tables.fragments is not None,
            "-DPLAIN": tables.fragments is None and tables.toeplitz is None,
            "-DSEGMENTS": self.segmented,
            "-DFACTORS": tables.left is not None,
            "-DMASK": tables.words is not None,
            "-DDOCUMENTS": tables.k_records is not None,
            "-DSUMS": self.sums,
            f"-DWIDTH={call.q.shape[3]}": call.q.shape[3] != TILE,
        }
        self.flags = [flag for flag, is_given in given.items() if is_given]

    def _bias(self, *, keys_first: bool = False) -> tuple[Tensor | None, int, int, int]:
        """A table, the stride of its heads, and two numbers that say where in it a tile begins."""
        tables = self.tables
        if tables.toeplitz is not None:
            return tables.toeplitz, _of_head(tables.toeplitz), self.first + self.last + 16, self.first
        matrix = tables.column_fragments if keys_first else tables.fragments
        if matrix is None:
            return None, 0, 0, 0
        return matrix, _of_head(matrix) // 8, (self.first if keys_first else self.last) // TILE, 0

    def _run(
        self,
        name: str,
        blocks: tuple[int, int],
        threads: int,
        *arguments: cuda.Argument,
        flags: Sequence[str] = (),
        together: bool = False,
    ) -> None:
        q = self.q
        with torch.cuda.device(q.device):
            run = kernel(f"hopper_{name}.cu", name, q.device.index, q.dtype, *self.flags, *flags)
            rest = self.call.scale, self.call.noise, self.call.dropout
            run(blocks, threads, *arguments, *rest, together=together)

    def _sizes(self) -> tuple[int, int, int, int, int]:
        q, k = self.q, self.k
        return q.shape[1], q.shape[1] // k.shape[1], q.shape[2], k.shape[2], int(self.call.description.causal)

    def forward(self, out: Tensor, rest: Tensor | None, lse: Tensor) -> None:  # all written
        q, k, v = self.q, self.k, self.v
        left, right = self.tables.left, self.tables.right
        if left is None or right is None:
            left, right = q, k  # of which maps are made, and not read
        table, *where = self._bias()
        flags = ["-DEXACT"] if rest is not None and q.shape[0] * q.shape[2] <= FEW_QUERIES else []
        groups = self._forward_groups()
        if groups != 2:
            flags.append(f"-DGROUPS={groups}")
        self._run(
            "forward", (q.shape[0] * triton.cdiv(q.shape[2], groups * TILE), q.shape[1]), groups * BLOCK,
            *(cuda.tensor_map(t) for t in (q, k, v, left, right)), None, None, table, self.call.lengths,
            *self.masks, self.ids[0], self.ids[2], out, rest, lse, *self._sizes(), *where, self.first, self.id_steps[1],
            left.shape[1], right.shape[1], 0,
            flags=flags,
        )  # fmt: skip

    def _forward_groups(self) -> int:
        """How many groups of warps, of 64 queries each, a block of the forward kernel has.

        Beyond width 64 one block fills a multiprocessor. Three groups cover more of what one of them waits for, where
        the last block has few queries too many.
        """
        tables, q_len = self.tables, self.q.shape[2]
        plain = tables.fragments is None and tables.left is None and not self.segmented
        plain &= self.call.description.inputs.q_documents is None  # described for blocks of 128 queries
        few = triton.cdiv(q_len, 3 * TILE) * 3 * TILE <= 1.06 * q_len
        return 3 if self.q.shape[3] > TILE and plain and few else 2

    def backward(
        self, grad: Tensor, lse: Tensor, delta: Tensor, dq: Tensor, dk: Tensor, dv: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        """Writes dq, dk and dv; gives the gradients of a learned Toeplitz bias, (1, H, Lq + Lk - 1), and of the steps
        of segments, (H, 2)."""
        q, k, v = self.q, self.k, self.v
        batch, heads, q_len, _ = q.shape
        (slots, teams, ways), sums_q, counters = for_sums(q, k.shape[2], self.call.multiprocessors)
        span = self.first + self.last + BLOCK
        sums = q.new_zeros(slots * teams * 2, heads, span, dtype=torch.float32) if self.sums else None
        order = []
        if self.tables.k_records is not None:
            order.append(turns(self.tables.k_records, triton.cdiv(q_len, TILE), slots, teams))
        elif self.call.lengths is not None:  # blocks of keys that nobody sees are left out
            dk.zero_()
            dv.zero_()
        of_steps = q.new_zeros(slots, heads, teams, WARPS, 2, dtype=torch.float32) if self.segmented else None
        table, *where = self._bias(keys_first=True)
        self._run(
            "backward", (slots * heads * teams, 1), 3 * BLOCK,
            *(cuda.tensor_map(t) for t in (q, k, v, grad)), lse, delta, table, self.call.lengths,
            *self.masks, *order, *self.ids, dq, dk, dv, sums_q, counters, sums, of_steps, batch, *self._sizes(), *where,
            self.first, *self.id_steps, span, slots, teams, ways, heads_apart(dq),
            together=teams > 1,
        )  # fmt: skip
        dvalues = None
        if sums is not None:
            zero = self.first + TILE - 1  # where offset 0 stands
            dvalues = sums[..., zero - (q_len - 1) : zero + k.shape[2]].sum(0, keepdim=True)
        return dvalues, None if of_steps is None else of_steps.sum((0, 2, 3))

    def bias_grad(self, grad: Tensor, lse: Tensor, delta: Tensor) -> Tensor:  # (H, Lq, Lk)
        """Of a matrix, summed over the batch."""
        q, k, v = self.q, self.k, self.v
        batch, heads, q_len, _ = q.shape
        table, *where = self._bias()
        tiles = self.first // BLOCK * (self.last // BLOCK) * heads
        chunks = max(1, min(PROGRAMS * self.call.multiprocessors // tiles, batch))
        sums = q.new_empty(chunks, heads, q_len, k.shape[2], dtype=torch.float32)
        self._run(
            "matrix", (chunks * tiles, 1), 3 * BLOCK,
            *(cuda.tensor_map(t) for t in (q, k, v, grad)), lse, delta, table, self.call.lengths, *self.masks, sums,
            batch, *self._sizes(), *where, chunks,
        )  # fmt: skip
        if chunks == 2:  # a sum over an axis of two takes longer
            return sums[0].add_(sums[1])
        return sums.sum(0)

    def tile_forward(self, out: Tensor, lse: Tensor) -> None:  # both written
        """Where scores are one tile."""
        q, k, v = self.q, self.k, self.v
        table, *where = self._bias()
        chunks, _, flags = self._of_tile()
        self._run(
            "tile_forward", (chunks * q.shape[1], 1), 3 * BLOCK,
            *(cuda.tensor_map(t) for t in (q, k, v)), table, self.call.lengths, *self.masks, out, lse,
            q.shape[0], *self._sizes(), *where, chunks,
            flags=flags,
        )  # fmt: skip

    def tile_backward(
        self, grad: Tensor, lse: Tensor, dq: Tensor, dk: Tensor, dv: Tensor, learned: bool
    ) -> Tensor | None:
        """Where scores are one tile: writes dq, dk and dv; gives the gradient of a learned bias, (H, Lq, Lk)."""
        q, k, v = self.q, self.k, self.v
        batch, heads, q_len, _ = q.shape
        table, *where = self._bias()
        chunks, each, flags = self._of_tile()
        sums = q.new_empty(chunks * each, heads, q_len, k.shape[2], dtype=torch.float32) if learned else None
        self._run(
            "tile_backward", (chunks * heads, 1), 3 * BLOCK,
            *(cuda.tensor_map(t) for t in (q, k, v, grad)), lse, table, self.call.lengths, *self.masks,
            dq, dk, dv, sums, batch, *self._sizes(), *where, chunks, heads_apart(dq),
            flags=[*flags, *(["-DLEARNED"] if learned else [])],
        )  # fmt: skip
        return None if sums is None else sums.sum(0)

    def _of_tile(self) -> tuple[int, int, list[str]]:
        """Into how many parts the batch is cut, so that each multiprocessor has one with one head; how many sequences
        a block has at a time; the flags that say so."""
        batch, heads, q_len, _ = self.q.shape
        small = max(q_len, self.k.shape[2]) <= TILE
        each = 2 if small else 1
        chunks = max(1, min(self.call.multiprocessors // heads, triton.cdiv(batch, each)))
        return chunks, each, ["-DSMALL"] if small else []


def heads_apart(gradient: Tensor) -> int:
    """From one row of a gradient to the next in memory, in heads."""
    return gradient.stride(2) // gradient.shape[3]


def for_sums(q: Tensor, k_len: int, multiprocessors: int) -> tuple[tuple[int, int, int], Tensor, Tensor | None]:
    """How the backward kernel shares out sequences and keys (slots, teams, ways), room for sums of the gradient of q,
    and what counts turns at them."""
    batch, heads, q_len, width = q.shape
    tiles = triton.cdiv(q_len, TILE)
    slots, teams = shares(batch, heads, tiles, whole_blocks(k_len) // BLOCK, multiprocessors)
    ways = 2 if teams > 1 and tiles <= FEW_TILES else 1
    columns = width if width <= TILE else 2 * TILE  # as hopper_backward.cuh has it
    sums_q = q.new_empty(slots, heads, ways, tiles, TILE, columns, dtype=torch.float32)
    counters = q.new_zeros(slots, heads, ways, tiles, dtype=torch.int32) if teams > 1 else None
    return (slots, teams, ways), sums_q, counters


@functools.cache
def shares(batch: int, heads: int, tiles: int, key_blocks: int, multiprocessors: int) -> tuple[int, int]:
    """Into how many slots the batch of each head is divided, and how many blocks of threads share a slot's keys.

    One block for each slot is best, as none waits for another, where that keeps all multiprocessors busy.
    """

    def time(teams: int) -> float:
        slots = _slots(batch, heads, teams, multiprocessors)
        steps: int = triton.cdiv(triton.cdiv(batch, slots) * key_blocks, teams)
        return steps * (1.0 if teams == 1 else (1.1 if tiles >= 2 * teams else 1.4))

    teams = min(range(1, max(1, multiprocessors // heads) + 1), key=time)
    return _slots(batch, heads, teams, multiprocessors), teams


def _slots(batch: int, heads: int, teams: int, multiprocessors: int) -> int:
    return max(1, min(multiprocessors // (heads * teams), batch))


def _of_head(table: Tensor) -> int:
    return 0 if table.shape[0] == 1 else table.stride(0)
