"""A T5 encoder as text encoder, fused: the same vectors, and the time before and after.

    python -m examples.fuse_a_text_encoder                        # a small random model, offline
    python -m examples.fuse_a_text_encoder --model t5-base        # any T5, mT5 or UMT5

The weights stay transformers' own: `save_pretrained` writes a plain checkpoint, and `hw.unfuse` undoes everything.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from transformers import T5Config, T5EncoderModel

import headway as hw


def encode(model: torch.nn.Module, ids: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Return one vector for each text, the mean of its tokens."""
    with torch.inference_mode():
        hidden = model(input_ids=ids, attention_mask=keep).last_hidden_state
    return (hidden * keep[..., None]).sum(1) / keep.sum(1, keepdim=True)


def median_seconds(model: torch.nn.Module, ids: torch.Tensor, keep: torch.Tensor) -> float:
    seconds = []
    for _ in range(10):
        start = time.perf_counter()
        encode(model, ids, keep)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[3:])  # the first calls warm up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a T5 checkpoint; without it, a small random model")
    parser.add_argument("--length", type=int, default=128)
    options = parser.parse_args()

    torch.manual_seed(0)
    if options.model:
        model = T5EncoderModel.from_pretrained(options.model)
    else:
        model = T5EncoderModel(T5Config(vocab_size=200, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4))
    model.eval()
    ids = torch.randint(5, 200, (4, options.length))
    lengths = torch.tensor([options.length, options.length // 2, options.length // 3, options.length // 4])
    keep = (torch.arange(options.length) < lengths[:, None]).long()

    before, seconds = encode(model, ids, keep), median_seconds(model, ids, keep)
    hw.fuse(model)
    after = encode(model, ids, keep)
    print(hw.fused(model))
    print(f"vectors of fused and plain model differ by less than 1e-4: {bool((after - before).abs().max() < 1e-4)}")
    print(f"{seconds * 1000:.1f} ms before, {median_seconds(model, ids, keep) * 1000:.1f} ms fused")
    hw.unfuse(model)
    print(f"after unfuse the vectors are the same bits: {torch.equal(encode(model, ids, keep), before)}")


if __name__ == "__main__":
    main()
