"""Attention with a learned position bias inside a model of your own: padded batches, and decoding with a cache.

python -m examples.attention_in_your_model
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import headway as hw

WIDTH, HEADS, LAYERS = 64, 4, 2


class Block(nn.Module):
    """A layer that asks the model's one encoding for what position does in it."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.cache: list[tuple[Tensor, Tensor]] = []  # keys and values of the tokens so far

    def forward(self, x: Tensor, encoding: nn.Module, start: int, lengths: Tensor | None) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        q, k = encoding.rotate(q, k, layer=self.index, q_start=start)
        if not self.training:
            self.cache.append((k, v))
            k, v = (torch.cat(part, dim=2) for part in zip(*self.cache, strict=True))
        size = (self.index, q.shape[2], k.shape[2], start)
        mixed = hw.attention(
            q,
            k,
            v,
            bias=encoding.bias(*size),
            value_bias=encoding.value_bias(*size),
            causal=True,
            lengths=lengths,
            scale=encoding.scale,
        )
        return x + self.out(mixed.transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.encoding = hw.encoding(name, num_layers=LAYERS, num_heads=HEADS, head_dim=WIDTH // HEADS, max_length=64)
        self.blocks = nn.ModuleList(Block(index) for index in range(LAYERS))

    def forward(self, x: Tensor, start: int = 0, lengths: Tensor | None = None) -> Tensor:
        x = self.encoding.embed(x, q_start=start)
        for block in self.blocks:
            x = block(x, self.encoding, start, lengths)
        return x


def main() -> None:
    for name in ("diet-rel", "learned", "shaw", "rope", "t5"):
        torch.manual_seed(0)
        model = Model(name)
        x = torch.randn(2, 20, WIDTH)
        model(x, lengths=torch.tensor([20, 11])).square().mean().backward()  # gradients of the bias are exact
        model.eval()
        with torch.no_grad():
            steps = [model(x[:, i : i + 1], start=i) for i in range(20)]  # one token at a time, keys kept
            for block in model.blocks:
                block.cache.clear()
            difference = (torch.cat(steps, dim=1) - model(x)).abs().max().item()
        assert difference < 1e-4, f"{name}: decoding with a cache differs by {difference}"
        print(f"{name:>9}: whole and token by token differ by {difference:.0e}")


if __name__ == "__main__":
    main()
