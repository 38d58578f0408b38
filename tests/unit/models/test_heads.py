"""Losses of the heads: what counts, what is ignored, and what a batch without labels gives."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from headway.models import (
    EncoderConfig,
    EncoderForMaskedLM,
    EncoderForQuestionAnswering,
    EncoderForSequenceClassification,
)

SIZES = {
    "vocab_size": 29,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 16,
    "encoding": "diet-rel",
}


def build(kind, **options):
    torch.manual_seed(0)
    model = kind(EncoderConfig(**SIZES, **options)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def batch():
    torch.manual_seed(1)
    return torch.randint(1, 29, (3, 9))


class TestMaskedWords:
    @pytest.mark.parametrize(
        ("positions", "message"),
        [
            (torch.ones(3, 9, dtype=torch.bool), r"expected \(N,\) indices into B \* L, got \(3, 9\)"),
            (torch.ones(4, dtype=torch.bool), "expected integer ids, got bool"),
            (torch.tensor([3, 27]), r"expected ids from 0 to 26 \(B \* L\), got 3 to 27"),
        ],
    )
    def test_positions_that_are_none_are_named(self, positions, message):
        with pytest.raises((TypeError, ValueError), match=f"masked_positions: {message}"):
            build(EncoderForMaskedLM)(batch(), masked_positions=positions)

    def test_masked_positions_give_the_same_loss_gradients_and_scores(self):
        model, tokens = build(EncoderForMaskedLM), batch()
        positions = torch.tensor([2, 5, 13, 26])
        labels = torch.tensor([4, 28, 0, 7])
        everywhere = torch.full((27,), -100).index_copy(0, positions, labels).view(3, 9)
        plain = model(tokens, labels=everywhere)
        want = torch.autograd.grad(plain.loss, list(model.parameters()))
        # Unused places, as a batch of fixed size has them: any position, without a label.
        places = torch.cat([positions, torch.tensor([0, 0])])
        few = model(tokens, masked_positions=places, labels=torch.cat([labels, torch.tensor([-100, -100])]))
        assert plain.logits.shape == (3, 9, 29)
        assert few.logits.shape == (6, 29)
        assert_close(few.loss, plain.loss)
        assert_close(few.logits[:4], plain.logits.flatten(0, 1)[positions])
        for got, wanted in zip(torch.autograd.grad(few.loss, list(model.parameters())), want, strict=True):
            assert_close(got, wanted)

    def test_the_loss_is_the_mean_negative_log_probability(self):
        model, tokens = build(EncoderForMaskedLM), batch()
        labels = torch.full((3, 9), -100)
        labels[0, 3], labels[2, 8] = 5, 11
        out = model(tokens, labels=labels)
        log = out.logits.log_softmax(-1)
        assert_close(out.loss, -(log[0, 3, 5] + log[2, 8, 11]) / 2)
        assert_close(model(tokens, labels=labels, num_items_in_batch=8).loss, out.loss / 4)
        assert_close(model(tokens, labels=labels, num_items_in_batch=torch.tensor(8)).loss, out.loss / 4)

    @pytest.mark.parametrize("few", [False, True])
    def test_no_label_at_all_gives_zero_and_no_gradient(self, few):
        model, tokens = build(EncoderForMaskedLM), batch()
        if few:
            given = {"masked_positions": torch.tensor([1, 2]), "labels": torch.tensor([-100, -100])}
        else:
            given = {"labels": torch.full((3, 9), -100)}
        loss = model(tokens, **given).loss
        loss.backward()
        assert loss == 0
        assert all(p.grad is not None and not p.grad.any() for p in model.parameters())

    def test_half_precision_has_a_float32_loss(self):
        model, tokens = build(EncoderForMaskedLM).to(torch.bfloat16), batch()
        out = model(tokens, labels=tokens)
        assert out.logits.dtype == torch.bfloat16
        assert out.loss.dtype == torch.float32
        assert_close(out.loss, F.cross_entropy(out.logits.float().flatten(0, 1), tokens.flatten()))

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"labels": torch.zeros(3, dtype=torch.long)}, r"expected \(3, 9\).*\(B, L\).*got \(3,\)"),
            (
                {"labels": torch.zeros(3, 9, dtype=torch.long), "masked_positions": torch.tensor([1, 2])},
                r"expected \(2,\) \(from masked_positions\), got \(3, 9\)",
            ),
        ],
    )
    def test_labels_that_do_not_fit_say_so(self, given, message):
        with pytest.raises(ValueError, match=message):
            build(EncoderForMaskedLM)(batch(), **given)

    def test_output_weights_are_the_words(self):
        model = build(EncoderForMaskedLM)
        assert model.prediction.decoder.weight is model.encoder.words.weight


class TestClassification:
    def test_labels_may_be_missing(self):
        model = build(EncoderForSequenceClassification, num_labels=3)
        some = model(batch(), labels=torch.tensor([2, -100, -100]))
        assert_close(some.loss, -some.logits[0].log_softmax(-1)[2])
        assert model(batch(), labels=torch.full((3,), -100)).loss == 0

    def test_no_labels_are_no_task(self):
        with pytest.raises(ValueError, match="num_labels: expected at least 1"):
            build(EncoderForSequenceClassification, num_labels=0)

    @pytest.mark.parametrize("shape", [(3,), (3, 1)])
    def test_regression_of_one_number(self, shape):
        model = build(EncoderForSequenceClassification, num_labels=1)
        labels = torch.tensor([0.5, 1.5, -1.0]).view(shape)
        out = model(batch(), labels=labels)
        assert_close(out.loss, ((out.logits[:, 0] - labels.flatten()) ** 2).mean())

    def test_wrong_number_of_labels_says_so(self):
        model = build(EncoderForSequenceClassification, num_labels=3, problem_type="multi_label_classification")
        with pytest.raises(ValueError, match=r"expected \(3, 3\) for multi_label_classification, got \(3, 2\)"):
            model(batch(), labels=torch.zeros(3, 2))

    def test_packed_texts_are_not_taken(self):
        with pytest.raises(TypeError, match="documents"):
            build(EncoderForSequenceClassification)(batch(), documents=torch.zeros(3, 9, dtype=torch.long))


class TestSpans:
    def test_answers_beyond_the_sequence_do_not_count(self):
        model = build(EncoderForQuestionAnswering)
        out = model(batch(), start_positions=torch.tensor([2, 9, 50]), end_positions=torch.tensor([4, 9, 50]))
        want = -(out.start_logits[0].log_softmax(0)[2] + out.end_logits[0].log_softmax(0)[4]) / 2
        assert_close(out.loss, want)
        none = torch.full((3,), 9)
        assert model(batch(), start_positions=none, end_positions=none).loss == 0


@pytest.mark.parametrize("count", [0, torch.tensor(0)])
def test_a_batch_without_labels_counted_by_the_trainer_gives_zero(count):
    model = build(EncoderForMaskedLM)
    loss = model(batch(), labels=torch.full((3, 9), -100), num_items_in_batch=count).loss
    loss.backward()
    assert loss == 0
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_one_end_of_an_answer_alone_is_refused():
    with pytest.raises(ValueError, match="start_positions, end_positions: expected both or neither"):
        build(EncoderForQuestionAnswering)(batch(), start_positions=torch.tensor([1, 2, 3]))
