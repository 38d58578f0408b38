"""A DeBERTa classifier, fused and fine-tuned: the losses of the plain model, and whether one word comes before another.

    python -m examples.fuse_a_deberta_classifier                                        # small and random, offline
    python -m examples.fuse_a_deberta_classifier --model microsoft/deberta-v3-base      # any DeBERTa v1, v2 or v3

Word order is what its relative positions are for: the same words in another order have the other label.
"""

from __future__ import annotations

import argparse
import copy
import time

import torch
from transformers import AutoModelForSequenceClassification, DebertaV2Config, PreTrainedModel

import headway as hw

FIRST, SECOND = 5, 6  # ids of two words

SMALL = DebertaV2Config(
    **{"vocab_size": 50, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128},
    **{"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 16, "share_att_key": True},
    **{"max_position_embeddings": 128, "norm_rel_ebd": "layer_norm", "position_biased_input": False},
)


def batch_of(size: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return texts with both words, (B, L), and whether the first comes before the second, (B,)."""
    ids = torch.randint(7, 50, (size, length))
    places = torch.rand(size, length).argsort(-1)[:, :2]  # two different ones
    ids.scatter_(1, places, torch.tensor([FIRST, SECOND]).expand(size, 2))
    return ids, (places[:, 0] < places[:, 1]).long()


def train(model: PreTrainedModel, steps: int, length: int, rate: float) -> list[float]:
    """Return the loss of each step, on the same texts every time."""
    torch.manual_seed(1)
    optimiser, losses = torch.optim.AdamW(model.parameters(), lr=rate), []
    for _ in range(steps):
        ids, labels = batch_of(32, length)
        loss = model(input_ids=ids, labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a DeBERTa checkpoint; without it, a small random model")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--length", type=int, default=16)
    options = parser.parse_args()

    torch.manual_seed(0)
    made = AutoModelForSequenceClassification
    plain = made.from_pretrained(options.model) if options.model else made.from_config(SMALL)
    plain.eval()  # without dropout, so that the losses can be compared; call train() for your own
    model, rate = hw.fuse(copy.deepcopy(plain)), 1e-5 if options.model else 2e-3
    print(hw.fused(model))
    first = [train(each, 3, options.length, rate) for each in (copy.deepcopy(plain), copy.deepcopy(model))]
    difference = max(abs(ours - theirs) for theirs, ours in zip(*first, strict=True))
    print(f"losses of the first steps differ from the plain model's by less than 1e-3: {difference < 1e-3}")
    start = time.perf_counter()
    losses = train(model, options.steps, options.length, rate)
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f} in {time.perf_counter() - start:.0f} s")
    ids, labels = batch_of(200, options.length)
    right = (model(input_ids=ids).logits.argmax(-1) == labels).float().mean()
    print(f"right about {right:.0%} of new texts")


if __name__ == "__main__":
    main()
