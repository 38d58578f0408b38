"""BLOOM generating, fused: the same tokens from a cache, and the time before and after.

    python -m examples.fuse_a_bloom                                  # a small random model, offline
    python -m examples.fuse_a_bloom --model bigscience/bloom-560m    # any BLOOM

The prompts have several lengths and are padded on the left, as batches are for generation.
"""

from __future__ import annotations

import argparse
import time

import torch
from transformers import BloomConfig, BloomForCausalLM

import headway as hw


def generate(model: BloomForCausalLM, ids: torch.Tensor, keep: torch.Tensor, tokens: int) -> tuple[torch.Tensor, float]:
    """Return the likeliest tokens and the seconds they took; keys and values of earlier tokens come from the cache."""
    start = time.perf_counter()
    found = model.generate(ids, attention_mask=keep, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)
    return found[:, ids.shape[1] :], time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a BLOOM checkpoint; without it, a small random model")
    parser.add_argument("--prompt", type=int, default=96, help="tokens of the longest prompt")
    parser.add_argument("--tokens", type=int, default=16, help="tokens to generate")
    options = parser.parse_args()

    torch.manual_seed(0)
    if options.model:
        model = BloomForCausalLM.from_pretrained(options.model)
    else:
        sizes = {"vocab_size": 200, "hidden_size": 64, "n_layer": 2, "n_head": 4, "initializer_range": 0.3}
        model = BloomForCausalLM(BloomConfig(**sizes, pad_token_id=3))
    model.eval()
    ids = torch.randint(5, 200, (4, options.prompt))
    lengths = torch.tensor([options.prompt, options.prompt // 2, options.prompt // 3, options.prompt // 4])
    keep = (torch.arange(options.prompt) >= options.prompt - lengths[:, None]).long()
    ids[keep == 0] = model.config.pad_token_id

    generate(model, ids, keep, 2)  # warms up
    before, seconds = generate(model, ids, keep, options.tokens)
    hw.fuse(model)
    generate(model, ids, keep, 2)
    after, fused_seconds = generate(model, ids, keep, options.tokens)
    print(hw.fused(model))
    print(f"{before.numel()} tokens, the same from the fused and the plain model: {torch.equal(before, after)}")
    print(f"{seconds * 1000:.1f} ms before, {fused_seconds * 1000:.1f} ms fused")


if __name__ == "__main__":
    main()
