"""The translation model as a transformers model: padding, order, loss, saving, checkpointing, compiling."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoConfig, AutoModelForSeq2SeqLM, DynamicCache

from headway.encodings import ENCODINGS
from headway.models.translation import TranslationModel, translation_preset

SIZES = {"vocab_size": 20, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}


def model_of(encoding="sinusoidal", **choices):
    torch.manual_seed(0)
    config = translation_preset("tiny", **{**SIZES, "max_position_embeddings": 24, "encoding": encoding, **choices})
    model = TranslationModel(config).eval()
    with torch.no_grad():
        for side in (model.encoder, model.decoder):
            for parameter in side.encoding.parameters():
                parameter.add_(torch.randn_like(parameter))
    return model


def batch(rows=3, source=7, target=5):
    generator = torch.Generator().manual_seed(1)
    return (torch.randint(3, 20, (rows, length), generator=generator) for length in (source, target))


@pytest.mark.parametrize("name", ENCODINGS)
def test_padding_changes_nothing(name):
    model = model_of(name).double()
    source, target = batch()
    mask = (torch.arange(7) < torch.tensor([7, 3, 5])[:, None]).long()
    labels = target.masked_fill(torch.arange(5) >= torch.tensor([5, 2, 4])[:, None], -100)
    together = model(source, mask, labels=labels)
    for row, (length, words) in enumerate(((7, 5), (3, 2), (5, 4))):
        alone = model(source[row : row + 1, :length], labels=labels[row : row + 1, :words])
        torch.testing.assert_close(together.logits[row : row + 1, :words], alone.logits)


@pytest.mark.parametrize("name", ENCODINGS)
def test_the_encoder_sees_order_as_declared(name):
    model = model_of(name).double()
    source, target = batch(rows=1)
    swapped = source[:, [1, 0, 2, 3, 4, 5, 6]]
    with torch.no_grad():
        one, other = (model(ids, decoder_input_ids=target, use_cache=False).logits for ids in (source, swapped))
    assert torch.allclose(one, other, atol=1e-9) != ENCODINGS[name].sees_order


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_word_does_not_see_later_ones(norm):
    model = model_of("shaw", norm=norm)
    source, target = batch()
    changed = target.clone()
    changed[:, 3:] = 4
    with torch.no_grad():
        one, other = (model(source, decoder_input_ids=ids, use_cache=False).logits for ids in (target, changed))
    torch.testing.assert_close(one[:, :3], other[:, :3])
    assert not torch.allclose(one[:, 4], other[:, 4])


def test_the_loss_is_that_of_the_shifted_target():
    model = model_of("diet-rel")
    source, target = batch()
    labels = target.clone()
    labels[1, 3:] = -100
    labels[2, 4:] = model.config.pad_token_id  # padding is no target either
    output = model(source, labels=labels)
    seen = torch.cat([torch.full((3, 1), 1), target[:, :-1]], dim=1)
    logits = model(source, decoder_input_ids=seen, use_cache=False).logits
    counted = labels.masked_fill(labels == 0, -100)
    expected = F.cross_entropy(logits.flatten(0, 1), counted.flatten(), label_smoothing=0.1)
    torch.testing.assert_close(output.loss, expected)
    by_count = model(source, labels=labels, num_items_in_batch=24)
    torch.testing.assert_close(by_count.loss * 24, expected * (counted != -100).sum())


def test_saved_and_loaded_by_the_auto_classes(tmp_path):
    model = model_of("shaw:clip=3,sharing=head")
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists()
    assert AutoConfig.from_pretrained(tmp_path).encoding == "shaw:clip=3,sharing=head"
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert isinstance(loaded, TranslationModel)
    for (name, own), other in zip(model.state_dict().items(), loaded.state_dict().values(), strict=True):
        torch.testing.assert_close(own, other, msg=name)
    assert loaded.output.weight is loaded.encoder.words.weight
    model.config.encoding = "none"
    model.config.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"got also .*key_table"):
        TranslationModel.from_pretrained(tmp_path)


def test_words_are_tied_unless_told_otherwise():
    tied, free = model_of(), model_of(tie_word_embeddings=False)
    assert tied.output.weight is tied.encoder.words.weight
    assert free.output.weight is not free.encoder.words.weight
    assert free.num_parameters() - tied.num_parameters() == 20 * 16


def test_embeddings_can_be_resized():
    model = model_of()
    model.resize_token_embeddings(27, mean_resizing=False)
    source, target = batch()
    assert model.config.vocab_size == 27
    assert model(source, labels=target).logits.shape == (3, 5, 27)
    assert model.output.weight is model.encoder.words.weight


@pytest.mark.parametrize("name", ["t5", "shaw"])
def test_checkpointing_gives_the_same_gradients(name):
    source, target = batch()
    gradients = []
    for checkpointing in (False, True):
        model = model_of(name, hidden_dropout_prob=0.0).train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        model(source, labels=target).loss.backward()
        gradients.append({key: p.grad for key, p in model.named_parameters()})
    torch.testing.assert_close(*gradients)
    assert all(grad is not None for grad in gradients[0].values())


def test_attention_weights_and_states_on_request():
    model = model_of("shaw")
    source, target = batch()
    mask = (torch.arange(7) < torch.tensor([7, 3, 5])[:, None]).long()
    output = model(
        source, mask, decoder_input_ids=target, output_attentions=True, output_hidden_states=True, use_cache=False
    )
    plain = model(source, mask, decoder_input_ids=target, use_cache=False)
    torch.testing.assert_close(output.logits, plain.logits)
    assert [len(part) for part in (output.encoder_attentions, output.decoder_hidden_states)] == [2, 3]
    cross = output.cross_attentions[0]
    torch.testing.assert_close(cross.sum(-1), torch.ones(3, 2, 5))
    assert not cross[1, :, :, 3:].any()
    assert not output.decoder_attentions[0].triu(1).any()


def test_what_is_wrong_is_named():
    model = model_of("learned")
    source, target = batch()
    with pytest.raises(ValueError, match="attention_mask: expected ones and then zeros"):
        model(source, torch.tensor([[0, 1, 1, 1, 1, 1, 1]] * 3), labels=target)
    with pytest.raises(ValueError, match=r"attention_mask: expected \(3, 7\)"):
        model(source, torch.ones(3, 6), labels=target)
    with pytest.raises(ValueError, match="decoder_input_ids, labels: expected at least one"):
        model(source)
    with pytest.raises(ValueError, match="input_ids: expected the source"):
        model(labels=target)
    with pytest.raises(ValueError, match=r"labels: expected \(3, 4\)"):
        model(source, decoder_input_ids=target[:, :4], labels=target)
    with pytest.raises(ValueError, match="positions: expected at most 24"):
        model(torch.full((1, 25), 3), labels=target[:1])


def test_transformers_generate_works_and_agrees():
    model = model_of("diet-rel")
    source, _ = batch(rows=4)
    mask = (torch.arange(7) < torch.tensor([7, 3, 5, 6])[:, None]).long()
    made = model.generate(source, attention_mask=mask, max_new_tokens=9, num_beams=1, do_sample=False)
    found = model.translate(source, mask, beam=1, max_length_ratio=0, max_length_plus=10)
    for row, hypotheses in zip(made.tolist(), found, strict=True):
        words = row[1:]
        assert hypotheses[0].tokens[: len(words)] == (words[: words.index(2)] if 2 in words else words)
    beams = model.generate(source, attention_mask=mask, max_new_tokens=9, num_beams=3, do_sample=False)
    assert beams.shape[0] == 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shaw", "diet-abs"])
def test_compiled_without_a_break(name):
    model = model_of(name, hidden_dropout_prob=0.0).train()
    source, target = batch()
    mask = (torch.arange(7) < torch.tensor([7, 3, 5])[:, None]).long()
    expected = model(source, mask, labels=target).loss
    expected.backward()
    gradient = model.encoder.words.weight.grad.clone()
    model.zero_grad()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    loss = compiled(input_ids=source, attention_mask=mask, labels=target).loss
    loss.backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(model.encoder.words.weight.grad, gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("loss_only", [False, True])
@pytest.mark.parametrize("count", [None, 0, torch.tensor(0)])
def test_a_batch_without_labels_trains_nothing(count, loss_only):
    """Trainer counts the labels itself, and gives 0."""
    model = model_of("diet-rel")
    source, target = batch()
    labels = torch.full_like(target, -100)
    loss = model(source, labels=labels, num_items_in_batch=count, loss_only=loss_only).loss
    loss.backward()
    assert loss == 0
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


@pytest.mark.parametrize("wrong", [-1, 20])
def test_labels_that_are_no_words_are_refused(wrong):
    source, target = batch()
    labels = target.clone()
    labels[1, 2] = wrong
    with pytest.raises(ValueError, match=rf"labels: expected 0 to 19 \(vocab_size\), or -100 for none, got {wrong}"):
        model_of()(source, decoder_input_ids=target, labels=labels)


def test_a_cache_that_is_asked_for_is_made():
    model = model_of()
    source, target = batch()
    assert model(source, decoder_input_ids=target, labels=target, use_cache=True).past_key_values is not None
    assert model.train()(source, decoder_input_ids=target, use_cache=True).past_key_values is not None
    assert model(source, decoder_input_ids=target).past_key_values is None


def test_what_does_not_fit_together_is_named():
    model = model_of()
    source, target = batch()
    with pytest.raises(ValueError, match=r"decoder_input_ids: expected 3 rows \(from the source\), got 2"):
        model(source, decoder_input_ids=target[:2])
    with pytest.raises(TypeError, match="past_key_values: expected an EncoderDecoderCache, got DynamicCache"):
        model(source, decoder_input_ids=target, past_key_values=DynamicCache())


def test_translating_leaves_frozen_parts_as_they_are():
    model = model_of().train()
    model.encoder.eval()
    model.translate(next(batch()), max_length_plus=2)
    assert model.decoder.training and model.decoder.dropout.training
    assert not any(module.training for module in model.encoder.modules())
