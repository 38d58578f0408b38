"""What did the positions of a model learn? A tiny BERT whose answer is known: a head made to look one to the left.

    python -m examples.analyse_a_model

Positions are waves, which projections turn into a peak at any offset. The analysis is given the model alone and finds
the peak, that the scores depend on the offset alone (R² near 1), and TISA kernels that say so.
"""

from __future__ import annotations

import math

import torch
from transformers import BertConfig, BertModel

import headway as hw

POSITIONS, WIDTH, WAVES = 48, 64, 16


def built() -> BertModel:
    """One layer with two heads of 32: in each, 16 pairs of a cosine and a sine; head 0 turns them by one position."""
    config = BertConfig(
        vocab_size=50,
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=POSITIONS,
    )
    model = BertModel(config).eval()
    speed = torch.arange(1, WAVES + 1) * math.pi / (WAVES + 1)
    angle = torch.arange(POSITIONS)[:, None] * speed
    waves = torch.stack([angle.cos(), angle.sin()], dim=-1).flatten(1)  # (48, 32)
    turn = torch.block_diag(*(torch.tensor([[s.cos(), s.sin()], [-s.sin(), s.cos()]]) for s in speed))
    attention = model.encoder.layer[0].attention.self
    with torch.no_grad():
        for parameter in model.embeddings.parameters():
            parameter.zero_()
        model.embeddings.LayerNorm.weight.fill_(1.0)
        model.embeddings.position_embeddings.weight[:, :32] = waves
        for projection in (attention.query, attention.key):
            projection.weight.zero_()
            projection.bias.zero_()
            projection.weight[:32, :32] = torch.eye(32)  # head 0
        attention.query.weight[:32, :32] = turn
    return model


def main() -> None:
    model = built()
    measures = hw.analyze(model, kernels=(1, 3))
    profile = measures.heads.mean[0, 0]
    peak = int(measures.heads.offsets[profile.argmax()])
    print(f"{measures.model.model_type}: {measures.model.layers} layer, {measures.model.heads} heads")
    print(
        f"head 0 looks at offset {peak}, Toeplitz R² {measures.heads.r2[0, 0]:.3f}, kind: {measures.heads.kinds[0, 0]}"
    )
    for kernels, fit in measures.heads.fits.items():
        centers = ", ".join(f"{center:.1f}" for center in fit.center[0, 0])
        print(f"TISA with {kernels} kernels explains {fit.r2_profile[0, 0]:.3f} of it, centers {centers}")
    assert peak == -1 and measures.heads.r2[0, 0] > 0.9


if __name__ == "__main__":
    main()
