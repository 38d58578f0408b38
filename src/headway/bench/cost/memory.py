"""The most memory a step holds: model, optimizer and what the backward pass needs."""

from __future__ import annotations

from pathlib import Path

import torch

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")

HOW = {
    "cuda": "allocated on the GPU by torch",
    "cpu": "growth of the process's resident memory, what the allocator keeps included (Linux only)",
}


class Peak:
    """Bytes at the highest point since `reset`, beyond what the process held when this was made.

    On a GPU torch counts what it allocates. On a CPU it does not, so that the row's process is asked, which Linux can
    do; elsewhere there is no answer, None.
    """

    def __init__(self, device: str) -> None:
        self.gpu = torch.device(device).type == "cuda"
        self.known = self.gpu or (STATUS.exists() and RESET.exists())
        self.before = 0 if self.gpu or not self.known else _held("VmRSS")

    def reset(self) -> None:
        if self.gpu:
            torch.cuda.reset_peak_memory_stats()
        elif self.known:
            RESET.write_text("5")  # the highest point starts anew from what is held now

    def read(self) -> int | None:
        if self.gpu:
            torch.cuda.synchronize()
            return torch.cuda.max_memory_allocated()
        return _held("VmHWM") - self.before if self.known else None


def _held(what: str) -> int:
    lines = STATUS.read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))
