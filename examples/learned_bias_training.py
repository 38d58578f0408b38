"""A bias learns where to look: the answer at each position is the token three to its left.

    python -m examples.learned_bias_training

Queries and keys are all zero, so the one learned number per offset is all that attention can go by. After training,
its largest value is at offset -3, and neither the bias nor its gradient was ever an n x n matrix.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import headway as hw

TOKENS, LENGTH, BACK = 12, 32, 3


def main() -> None:
    torch.manual_seed(0)
    values = nn.Parameter(torch.zeros(1, 1, 2 * LENGTH - 1))  # offsets -(LENGTH - 1) to LENGTH - 1
    optimizer = torch.optim.Adam([values], lr=0.2)
    nothing = torch.zeros(16, 1, LENGTH, 8)
    for step in range(101):
        tokens = torch.randint(TOKENS, (16, LENGTH))
        words = F.one_hot(tokens, TOKENS).float()[:, None]  # (B, 1, L, TOKENS)
        seen = hw.attention(nothing, nothing, words, bias=hw.Toeplitz(values))[:, 0]  # shares of each token
        loss = F.nll_loss((seen[:, BACK:] + 1e-6).log().flatten(0, 1), tokens[:, :-BACK].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 0:
            print(f"step {step:3d}: loss {loss.item():.3f}")
    best = values[0, 0].argmax().item() - (LENGTH - 1)
    print(f"the head looks at offset {best}")
    assert best == -BACK
    q = torch.zeros(16, 1, 512, 8)
    print(hw.explain(q, q, q, bias=hw.Toeplitz(torch.zeros(1, 1, 1023, requires_grad=True))))


if __name__ == "__main__":
    main()
