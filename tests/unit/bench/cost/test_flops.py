"""FLOPs by the formulas against torch's own counter on the plain formula, which has no fused kernels to miss."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from headway.bench.cost.contestant import Contestant, with_formula_attention
from headway.bench.cost.flops import encoder_flops, head_flops
from headway.bench.cost.steps import MaskedBatch
from headway.models import EncoderForMaskedLM, preset

B, L = 2, 40


def counted(model, inputs, labels):
    """Count the encoder's forward pass, and a training step, with torch's counter."""
    with FlopCounterMode(display=False) as counter:
        model.base_model(**inputs)
    forward = counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        model(**inputs, **labels).loss.backward()
    return forward, counter.get_total_flops()


ROWS = [
    "none",
    "learned",
    "diet-rel",
    "diet-abs:rank=24",
    "diet-abs:rank=24,sharing=layer",
    "abs-scalar:sharing=head",
    "tisa",
    "t5",
    "rope",
    "tupe-abs",
    "tupe-rel:sharing=none",
    "shaw:clip=5",
    "shaw:clip=5,values=false,sharing=head",
    "transformer-xl",
    "learned+tisa",
    "transformers",
    "transformers:mask=false,head=masked",
]


@pytest.mark.parametrize("text", ROWS)
def test_as_torch_counts(text):
    contestant = Contestant(text)
    model = with_formula_attention(contestant.build("tiny", length=L, dropout=0.1, segments="input"))
    words = MaskedBatch.random(B, L, model.config.vocab_size, seed=0, device="cpu")
    labels = words.masked_labels() if contestant.at_masked_places else words.all_labels()
    forward, training = counted(model, words.inputs(segments=False), labels)
    config = preset("tiny") if contestant.theirs else model.config
    encoder = encoder_flops(config, B, L)
    places = words.columns.numel() if contestant.at_masked_places else B * L
    assert encoder.inference == forward
    assert (encoder + head_flops(config, places)).training == training


def test_linformer():
    config = preset("tiny", encoding="diet-abs", attention="linformer", projected_length=8, max_position_embeddings=L)
    model = with_formula_attention(EncoderForMaskedLM(config))
    words = MaskedBatch.random(B, L, config.vocab_size, seed=0, device="cpu")
    forward, training = counted(model, words.inputs(segments=False), words.masked_labels())
    encoder = encoder_flops(config, B, L)
    assert encoder.inference == forward
    assert (encoder + head_flops(config, words.columns.numel())).training == training


def test_other_kinds_of_attention():
    """By their formulas: what their kernels compute beyond these, such as keys outside the window, does not count."""
    full = preset("tiny", encoding="diet-rel")
    width, layers = full.hidden_size, full.num_hidden_layers
    products = 2 * layers * B * L * L * width  # of scores, or of sums over values

    def count(**settings):
        return encoder_flops(preset("tiny", encoding="diet-rel", **settings), B, L).inference

    assert count() - count(attention="local", window=4) == 2 * products * (L - 9) // L
    assert count(attention="local", window=L) == count()
    assert count() - count(attention="synthesizer") == products + 2 * layers * B * L * 2 * width * width
    config = preset("tiny", encoding="none", attention="performer", num_features=16, attention_probs_dropout_prob=0.0)
    words = MaskedBatch.random(B, L, config.vocab_size, seed=0, device="cpu")
    forward, _ = counted(EncoderForMaskedLM(config), words.inputs(segments=False), words.masked_labels())
    assert encoder_flops(config, B, L).inference == pytest.approx(forward, rel=0.01)  # and a column of ones


def test_counting_needs_no_gradients_of_the_caller():
    config = preset("tiny", encoding="tupe-rel")
    with torch.no_grad():
        assert encoder_flops(config, B, L) == encoder_flops(config, B, L)


def test_bert_base_by_hand():
    """12 layers of 768: 24 n E^2 + 4 n^2 E a layer."""
    n, width = 128, 768
    assert encoder_flops(preset("bert-base"), 1, n).inference == 12 * (24 * n * width**2 + 4 * n**2 * width)


def test_six_operations_for_each_token_and_parameter_of_the_body():
    """By the common rule: 6 N operations a token, 12 n E a token and layer of attention, the head where it is."""
    n, batch, places = 128, 4, 80
    config = preset("bert-base")
    with torch.device("meta"):
        layers = EncoderForMaskedLM(config).encoder.layers
    matrices = sum(p.numel() for p in layers.parameters() if p.dim() == 2)
    attention = 12 * config.num_hidden_layers * batch * n * n * config.hidden_size
    head = 6 * places * config.hidden_size * (config.hidden_size + config.vocab_size)
    step = encoder_flops(config, batch, n) + head_flops(config, places)
    assert step.training == 6 * matrices * batch * n + attention + head
    assert matrices == pytest.approx(sum(p.numel() for p in layers.parameters()), rel=2e-3)  # others: biases, norms
