"""Training without scores of all words, and without padding, against the loss of a plain pass."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from headway.encodings import ENCODINGS
from headway.models.translation import TranslationModel, translation_preset
from headway.models.translation.layers import Packing


def model_of(encoding="sinusoidal", **choices):
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    choices = {"hidden_dropout_prob": 0.0, "max_position_embeddings": 24, "encoding": encoding, **choices}
    model = TranslationModel(translation_preset("tiny", **sizes, **choices)).double().train()
    with torch.no_grad():
        for side in (model.encoder, model.decoder):
            for parameter in side.encoding.parameters():
                parameter.add_(torch.randn_like(parameter))
    return model


def batch():
    """Padding on both sides, a row that is all padding, a hole among the labels, and the padding token as a label."""
    generator = torch.Generator().manual_seed(1)
    source, labels = (torch.randint(3, 20, (5, length), generator=generator) for length in (7, 6))
    mask = (torch.arange(7) < torch.tensor([7, 3, 1, 5, 0])[:, None]).long()
    labels[0, 4:] = labels[1, 1:] = labels[3, 2] = labels[4] = -100
    labels[2, 5:] = 0
    return {"input_ids": source, "attention_mask": mask, "labels": labels}


def gradients(model, loss):
    model.zero_grad(set_to_none=True)
    loss.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def whole(model, **inputs):
    """The loss as one sees it: every place of the batch goes through the model, and all scores are made."""
    packing = Packing.__init__
    try:
        Packing.__init__ = lambda self, lengths, length: packing(self, None, length)
        return model(**inputs).loss
    finally:
        Packing.__init__ = packing


@pytest.mark.parametrize("name", [*ENCODINGS, "learned+tisa"])
def test_equal_to_a_whole_pass(name):
    model, inputs = model_of(name), batch()
    ours, theirs = model(**inputs, loss_only=True), whole(model, **inputs)
    assert ours.logits is None
    torch.testing.assert_close(ours.loss, theirs)
    torch.testing.assert_close(gradients(model, ours.loss), gradients(model, theirs))


@pytest.mark.parametrize(
    "choices", [{"tie_word_embeddings": False}, {"norm": "pre"}, {"cross": "same"}, {"label_smoothing": 0.0}]
)
def test_whatever_the_model_is(choices):
    model, inputs = model_of("shaw", **choices), batch()
    ours, theirs = model(**inputs, num_items_in_batch=9, loss_only=True).loss, whole(model, **inputs)
    words = 4 + 1 + 5 + 5  # labels that count
    torch.testing.assert_close(ours * 9, theirs * words)
    torch.testing.assert_close(gradients(model, ours * 9), gradients(model, theirs * words))


def test_with_an_encoded_source_and_its_own_target():
    model, inputs = model_of("t5"), batch()
    encoded = model.encoder(inputs["input_ids"], inputs["attention_mask"])
    target = torch.randint(3, 20, (5, 6))
    rest = {"attention_mask": inputs["attention_mask"], "labels": inputs["labels"], "decoder_input_ids": target}
    ours = model(encoder_outputs=encoded, **rest, loss_only=True).loss
    torch.testing.assert_close(ours, model(input_ids=inputs["input_ids"], **rest).loss)


def test_embeddings_that_do_not_learn():
    model, inputs = model_of("shaw"), batch()
    model.encoder.words.weight.requires_grad_(False)
    ours, theirs = (gradients(model, loss) for loss in (model(**inputs, loss_only=True).loss, whole(model, **inputs)))
    assert ours["encoder.words.weight"] is None
    for name in ours.keys() - {"encoder.words.weight"}:
        torch.testing.assert_close(ours[name], theirs[name])


def test_an_output_that_somebody_wrapped_is_called():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    model, inputs = model_of(), batch()
    doubled = Doubled(16, 20, bias=False).double()
    doubled.weight = model.output.weight
    model.output = doubled
    torch.testing.assert_close(model(**inputs, loss_only=True).loss, whole(model, **inputs))


def test_half_precision_by_autocast():
    model, inputs = model_of().float(), batch()
    exact = model(**inputs).loss
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(**inputs, loss_only=True).loss
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, exact, rtol=0.02, atol=0)
    loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_compiled_without_a_break():
    model, inputs = model_of("diet-rel"), batch()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(**inputs, loss_only=True).loss, model(**inputs, loss_only=True).loss)


def test_states_are_padded_again():
    model, inputs = model_of("shaw"), batch()
    output = model.encoder(inputs["input_ids"], inputs["attention_mask"], output_hidden_states=True)
    padding = inputs["attention_mask"] == 0
    for states in (*output.hidden_states, output.last_hidden_state):
        assert states.shape == (5, 7, 16) and not states[padding].any()


def test_a_loss_wants_labels():
    with pytest.raises(ValueError, match="labels: loss_only=True needs labels"):
        model_of()(**{**batch(), "labels": None}, decoder_input_ids=torch.ones(5, 6, dtype=torch.long), loss_only=True)


def test_a_second_derivative_is_that_of_all_scores_or_refused():
    """A gradient penalty: by the plain formula, whose weights are asked for, and never silently of less."""
    model, inputs = model_of("sinusoidal"), batch()
    own = list(model.parameters())

    def penalised(**choices):
        loss = model(**inputs, output_attentions=True, **choices).loss
        grads = torch.autograd.grad(loss, own, create_graph=True, allow_unused=True)
        penalty = sum(grad.square().sum() for grad in grads if grad is not None)
        return torch.autograd.grad(penalty, own, allow_unused=True), penalty

    found, penalty = penalised()
    change = [torch.randn_like(parameter) for parameter in own]
    with torch.no_grad():
        for parameter, step in zip(own, change, strict=True):
            parameter.add_(1e-5 * step)
    moved = penalised()[1]
    slope = sum((grad * step).sum() for grad, step in zip(found, change, strict=True) if grad is not None)
    assert (moved - penalty).item() / 1e-5 == pytest.approx(slope.item(), rel=1e-2)
    with pytest.raises(NotImplementedError, match=r"no second derivative.*loss_only=False"):
        penalised(loss_only=True)
