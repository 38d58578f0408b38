"""What a GPU could compute at most, and which share of it a step reaches."""

from __future__ import annotations

# Operations a second in bfloat16 with dense matrices, from NVIDIA's data sheets, by the name that CUDA reports.
PEAK_BF16 = {
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H200": 989e12,
}


def utilization(flops: float, seconds: float, gpu: str | None, *, bf16: bool) -> float | None:
    """The share of the peak rate (MFU: model FLOPs utilization); None where the peak rate is not known."""
    peak = PEAK_BF16.get(gpu or "") if bf16 else None
    return None if peak is None else flops / seconds / peak
