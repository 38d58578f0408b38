"""What all kernels of one call share: their arguments in order, their constants, and the sizes of their tiles."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from headway.attention.triton import tiles
from headway.attention.triton.description import Description
from headway.attention.triton.layout import LARGEST, LOG2E, aligned, by_eight, padded, whole_width

Config = dict[str, int]


def config(kind: str, width: int, dtype: torch.dtype) -> Config:
    """Tile sizes, warps and stages; `width` is the largest of the head widths and the rank.

    Measured on an H200 for half precision up to width 64; the others are chosen to fit, and untuned.
    """
    if kind in ("short forward", "short backward"):
        return dict(CONFIGS[kind])
    if dtype == torch.float32:
        small = 32 if width > 64 else 64
        return {"BLOCK_Q": small, "BLOCK_K": 32, "num_warps": 4, "num_stages": 2}
    if width > 128:
        return {"BLOCK_Q": 64, "BLOCK_K": 32, "num_warps": 4, "num_stages": 2}
    if width > 64:
        return {"BLOCK_Q": 64, "BLOCK_K": 64, "num_warps": 4, "num_stages": 2}
    return dict(CONFIGS[kind])


CONFIGS: dict[str, Config] = {
    "forward": {"BLOCK_Q": 64, "BLOCK_K": 64, "num_warps": 4, "num_stages": 3},
    "query": {"BLOCK_Q": 64, "BLOCK_K": 64, "num_warps": 4, "num_stages": 2},
    "key": {"BLOCK_Q": 32, "BLOCK_K": 64, "num_warps": 4, "num_stages": 3},
    "diagonal": {"BLOCK_Q": 128, "BLOCK_K": 128, "num_warps": 8, "num_stages": 2},
    "short forward": {"BLOCK_Q": 128, "num_warps": 8, "num_stages": 3, "programs": 1},  # programs per multiprocessor
    "short backward": {"num_warps": 8, "num_stages": 2, "programs": 1},
}


class Call:
    """What all kernels of one call share: their arguments in order, and their constants."""

    def __init__(self, description: Description) -> None:
        inputs, scale, dropout = description.inputs, description.scale, description.dropout
        q, k, v = self.q, self.k, self.v = [aligned(t) for t in inputs[:3]]
        self.description, self.left, self.right = description, inputs.left, inputs.right
        mask, lengths, noise = inputs.mask, inputs.lengths, inputs.noise
        q_documents, k_documents = inputs.q_documents, inputs.k_documents
        self.nothing = q.new_empty(0)
        self.half = q.dtype != torch.float32
        self.rank = 0 if self.left is None else self.left.shape[3]
        self.lengths, self.scale, self.dropout, self.noise = lengths, scale, dropout, noise
        q_docs = self.nothing if q_documents is None else q_documents.contiguous()
        k_docs = self.nothing if k_documents is None else k_documents.contiguous()
        bits = self.nothing
        if mask is not None:
            bits = (mask if mask.stride(3) == 1 else mask.contiguous()).view(torch.uint8)
        self.masks = (
            self.nothing if lengths is None else lengths,
            q_docs, 0 if q_docs.dim() < 2 or q_docs.shape[0] == 1 else q_docs.stride(0),
            k_docs, 0 if k_docs.dim() < 2 or k_docs.shape[0] == 1 else k_docs.stride(0),
            bits, *((0, 0, 0) if mask is None else _mask_strides(bits)),
        )  # fmt: skip
        self.sizes = (
            scale, dropout, self.nothing if noise is None else noise,
            q.shape[1], q.shape[1] // k.shape[1], q.shape[2], k.shape[2],
        )  # fmt: skip
        self.mask_flags = {
            "CAUSAL": description.causal,
            "LENGTHS": lengths is not None,
            "DOCUMENTS": q_documents is not None,
            "MASK": mask is not None,
            "DROPOUT": dropout > 0,
        }
        self.width_flags = {
            "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32",
            "BLOCK_D": q.shape[3],
            "BLOCK_V": v.shape[3],
        }

    def config(self, kind: str) -> Config:
        return config(kind, self._widest, self.q.dtype)

    @property
    def multiprocessors(self) -> int:
        if self.q.device.type != "cuda":
            return 4  # interpreted
        return torch.cuda.get_device_properties(self.q.device).multi_processor_count

    @property
    def flags(self) -> dict[str, Any]:
        """Return the constants of the general kernels."""
        return {
            "TOEPLITZ": self.description.inputs.values is not None,
            "LOW_RANK": self.left is not None,
            "RELATIVE": self.description.inputs.rows is not None,
            "WEIGHTS": self.description.weights,
            **self.mask_flags,
            **self.width_flags,
            "PRECISION": self._precision,
            "BLOCK_R": whole_width(self.rank),
        }

    @property
    def _precision(self) -> str:
        """How the general kernels multiply float32: as three products of TF32, as torch's fused kernels do, where that
        needs no more registers than there are; its error is about that of float32."""
        if self.half or self._widest > 128:
            return str(self.width_flags["PRECISION"])
        return "tf32x3" if self._widest <= 64 or self._much_shared_memory else "ieee"

    @property
    def _widest(self) -> int:
        return max(self.q.shape[3], self.v.shape[3], self.rank)

    @property
    def _much_shared_memory(self) -> bool:
        """Whether blocks may have more than 99 KiB, as on A100, H100 and B200."""
        if self.q.device.type != "cuda":
            return True  # interpreted
        return torch.cuda.get_device_capability(self.q.device) in ((8, 0), (9, 0), (10, 0))

    def edges(self, block_q: int, block_k: int) -> bool:
        """Whether some tile has pairs that may not attend."""
        masked = any(self.mask_flags[name] for name in ("CAUSAL", "LENGTHS", "DOCUMENTS", "MASK"))
        return masked or self.q.shape[2] % block_q != 0 or self.k.shape[2] % block_k != 0

    def factors(self) -> tuple[Any, ...]:
        """The low-rank factors with their strides."""
        factors: list[Any] = []
        for factor in (self.left, self.right):
            if factor is None:
                factors += [self.nothing, 0, 0]
            else:
                factor = factor.clamp(-LARGEST, LARGEST).half() if self.half else factor.float()
                factor = padded(factor).contiguous()
                factors += [factor, *_strides(factor)]
        return tuple(factors)

    def bias(self) -> tuple[Any, ...]:
        """The low-rank factors with their strides, and the scores of relative keys."""
        rows, reach = self.description.inputs.rows, self.description.reach
        count = by_eight(2 * reach + 1)
        stride = self.q.shape[0] * self.q.shape[2] * count
        return *self.factors(), self.nothing if rows is None else rows, stride, count, reach, self.description.shift

    def toeplitz(self, orientation: str, setting: Config) -> tuple[Tensor, int, int, int, int]:
        """The skewed table for tiles whose rows are queries ("rows") or keys ("columns"), its strides and its shift."""
        values = self.description.inputs.values
        if values is None:
            return self.nothing, 0, 0, 0, 0
        q_len, k_len = self.q.shape[2], self.k.shape[2]
        rows = triton.cdiv(q_len, setting["BLOCK_Q"]) * setting["BLOCK_Q"]
        columns = triton.cdiv(k_len, setting["BLOCK_K"]) * setting["BLOCK_K"]
        if orientation == "columns":
            rows, columns = columns, rows
        shift = rows  # so that column - 8 * (row // 8) + shift is never negative
        width = rows + columns
        # rows are queries: index = column - row + Lq - 1; rows are keys: index = row - column + Lq - 1
        sign = 1 if orientation == "rows" else -1
        first = q_len - 1 - sign * shift
        count = values.shape[-1]
        flat = values.contiguous().view(-1, count)
        dtype = torch.float16 if self.half else torch.float32
        table = torch.empty(*values.shape[:2], 8, width, dtype=dtype, device=values.device)
        block = 1024
        tiles.skew_kernel[(flat.shape[0], 8, triton.cdiv(width, block))](
            flat, table, count, width, first,
            SIGN=sign, FACTOR=LOG2E, LIMIT=LARGEST if self.half else 3.0e38, BLOCK=block,
        )  # fmt: skip
        return table, *_strides(table), width, shift


def _strides(t: Tensor) -> tuple[int, int]:
    """Strides of batch and head, 0 where shared."""
    return (0 if t.shape[0] == 1 else t.stride(0)), (0 if t.shape[1] == 1 else t.stride(1))


def _mask_strides(t: Tensor) -> tuple[int, int, int]:
    return (*_strides(t), 0 if t.shape[2] == 1 else t.stride(2))
