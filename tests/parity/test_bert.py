"""With a learned encoding and segments at the input, the encoder is BERT: transformers' own, with the same weights."""

import pytest
import torch
from torch.testing import assert_close
from transformers import BertConfig, BertForMaskedLM, BertForQuestionAnswering, BertForSequenceClassification

from headway.models import (
    EncoderConfig,
    EncoderForMaskedLM,
    EncoderForQuestionAnswering,
    EncoderForSequenceClassification,
)

SIZES = {
    "vocab_size": 37,
    "hidden_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 16,
}
HEADS = {
    "cls.predictions.transform.dense": "prediction.transform",
    "cls.predictions.transform.LayerNorm": "prediction.norm",
    "cls.predictions.decoder": "prediction.decoder",
    "classifier": "classifier",
    "qa_outputs": "spans",
}
EXACT = {"rtol": 1e-10, "atol": 1e-10}


def copied(theirs, ours):
    """The weights of a BERT in our model, name by name; every parameter of ours is given a value."""
    source = {**dict(theirs.named_parameters()), **dict(theirs.named_buffers())}
    given = {}

    def take(name, own):
        for kind in ("weight", "bias"):
            if f"{name}.{kind}" in source:
                given[f"{own}.{kind}"] = source[f"{name}.{kind}"]

    take("bert.embeddings.word_embeddings", "encoder.words")
    take("bert.embeddings.LayerNorm", "encoder.norm")
    given["encoder.encoding.table"] = source["bert.embeddings.position_embeddings.weight"]
    given["encoder.segments.table"] = source["bert.embeddings.token_type_embeddings.weight"]
    for layer in range(theirs.config.num_hidden_layers):
        name, own = f"bert.encoder.layer.{layer}", f"encoder.layers.{layer}"
        for kind in ("weight", "bias"):
            parts = [source[f"{name}.attention.self.{part}.{kind}"] for part in ("query", "key", "value")]
            given[f"{own}.attention.qkv.{kind}"] = torch.cat(parts)
        take(f"{name}.attention.output.dense", f"{own}.attention.output")
        take(f"{name}.attention.output.LayerNorm", f"{own}.attention_norm")
        take(f"{name}.intermediate.dense", f"{own}.up")
        take(f"{name}.output.dense", f"{own}.down")
        take(f"{name}.output.LayerNorm", f"{own}.norm")
    take("bert.pooler.dense", "encoder.pooler.dense")
    for name, own in HEADS.items():
        take(name, own)
    given.setdefault("prediction.decoder.bias", source.get("cls.predictions.bias"))
    own = dict(ours.named_parameters())
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(given[name])
    return ours


def both(theirs, ours, **options):
    """A BERT with random weights, biases and norms included, and our model with the same, in float64."""
    torch.manual_seed(0)
    bert = theirs(BertConfig(**SIZES, **options, attn_implementation="eager")).double().eval()
    with torch.no_grad():
        for parameter in bert.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return bert, copied(bert, ours(EncoderConfig(**SIZES, **options)).double().eval())


def inputs():
    torch.manual_seed(1)
    words = torch.randint(1, 37, (3, 11))
    mask = (torch.arange(11) < torch.tensor([11, 4, 7])[:, None]).long()
    return {"input_ids": words, "attention_mask": mask, "token_type_ids": torch.randint(2, (3, 11))}


def test_masked_words_and_every_hidden_state_and_weight():
    bert, model = both(BertForMaskedLM, EncoderForMaskedLM)
    given = inputs()
    labels = torch.where(torch.rand(3, 11) < 0.4, given["input_ids"], -100)
    want = bert(**given, labels=labels, output_hidden_states=True, output_attentions=True)
    got = model(**given, labels=labels, output_hidden_states=True, output_attentions=True)
    assert_close(got.loss, want.loss, **EXACT)
    assert_close(got.logits, want.logits, **EXACT)
    assert len(got.hidden_states) == len(want.hidden_states) == 4
    for mine, theirs in zip(got.hidden_states + got.attentions, want.hidden_states + want.attentions, strict=True):
        assert_close(mine, theirs, **EXACT)
    fast = model(**given, labels=labels)  # by headway.attention in place of the plain formula
    assert_close(fast.logits, want.logits, **EXACT)


def test_gradients_are_the_same():
    bert, model = both(BertForMaskedLM, EncoderForMaskedLM)
    given = inputs()
    labels = torch.where(torch.rand(3, 11) < 0.4, given["input_ids"], -100)
    bert(**given, labels=labels).loss.backward()
    model(**given, labels=labels).loss.backward()
    words = bert.bert.embeddings
    assert_close(model.encoder.words.weight.grad, words.word_embeddings.weight.grad, **EXACT)
    assert_close(model.encoder.encoding.table.grad, words.position_embeddings.weight.grad, **EXACT)
    assert_close(model.encoder.segments.table.grad, words.token_type_embeddings.weight.grad, **EXACT)
    query = bert.bert.encoder.layer[1].attention.self.query.weight.grad
    assert_close(model.encoder.layers[1].attention.qkv.weight.grad[:12], query, **EXACT)


@pytest.mark.parametrize(
    ("labels", "options"),
    [
        (torch.tensor([0, 2, 1]), {"num_labels": 3}),
        (torch.tensor([0.5, -2.0, 1.5], dtype=torch.float64), {"num_labels": 1}),
        (torch.tensor([[1.0, 0, 0], [1, 1, 0], [0, 0, 0]], dtype=torch.float64), {"num_labels": 3}),
        (torch.randn(3, 2, dtype=torch.float64), {"num_labels": 2, "problem_type": "regression"}),
    ],
    ids=["single label", "one number", "several labels", "two numbers"],
)
def test_classification(labels, options):
    bert, model = both(BertForSequenceClassification, EncoderForSequenceClassification, **options)
    want, got = bert(**inputs(), labels=labels), model(**inputs(), labels=labels)
    assert_close(got.logits, want.logits, **EXACT)
    assert_close(got.loss, want.loss, **EXACT)
    assert model.config.problem_type == bert.config.problem_type


def test_spans():
    bert, model = both(BertForQuestionAnswering, EncoderForQuestionAnswering)
    positions = {"start_positions": torch.tensor([2, 99, 0]), "end_positions": torch.tensor([[3], [11], [5]])}
    want, got = bert(**inputs(), **positions), model(**inputs(), **positions)
    assert_close(got.start_logits, want.start_logits, **EXACT)
    assert_close(got.end_logits, want.end_logits, **EXACT)
    assert_close(got.loss, want.loss, **EXACT)
