"""Converted models as transformers models: saved, loaded, with any head, and never without their bias."""

from __future__ import annotations

import copy
import logging
import pickle

import pytest
import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
)

from headway.pretrained.conversion import BIASES, FAMILIES, MODELS, convert
from headway.pretrained.conversion.run import load_original


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("to", BIASES)
def test_saved_and_loaded_it_is_the_same_to_the_bit(tiny, ids, randomised, tmp_path, family, to):
    mode = "replace" if to in ("tisa", "t5", "alibi") else "supplement"
    model = randomised(convert(tiny(family, "ForMaskedLM"), to, mode=mode, start=None if to == "alibi" else "random"))
    model.save_pretrained(tmp_path)
    loaded, info = AutoModelForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded) is type(model) and not info["missing_keys"] and not info["unexpected_keys"]
    assert torch.equal(loaded.eval()(ids).logits, model(ids).logits)
    without = AutoModel.from_pretrained(tmp_path).eval()
    states = model.base_model(ids).last_hidden_state
    assert torch.equal(without(ids).last_hidden_state, states)


def test_the_head_can_change_after_conversion(tiny, ids, randomised, tmp_path):
    for family in FAMILIES:
        model = randomised(convert(tiny(family, "ForMaskedLM"), "tisa", start="random"))
        model.save_pretrained(tmp_path / family)
        states = model.base_model(ids).last_hidden_state
        for auto in (AutoModelForSequenceClassification, AutoModelForQuestionAnswering):
            other = auto.from_pretrained(tmp_path / family).eval()
            assert torch.equal(other.base_model(ids).last_hidden_state, states), family
        classifier = AutoModelForSequenceClassification.from_pretrained(tmp_path / family, num_labels=5)
        assert classifier(ids).logits.shape == (3, 5)


POOLED = ("bert", "roberta", "xlm-roberta", "camembert", "albert")  # families that can do without


def without_pooler(model):
    return type(model)(model.config, add_pooling_layer=False).to(model.dtype).eval()


@pytest.mark.parametrize("mode", ["supplement", "replace"])
@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("family", POOLED)
def test_there_is_a_pooler_exactly_where_the_original_has_one(tiny, ids, tmp_path, caplog, family, pooled, mode):
    original = tiny(family) if pooled else without_pooler(tiny(family))
    model = convert(original, "tisa", mode=mode)
    assert (model.pooler is not None) == pooled
    model.save_pretrained(tmp_path)
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    try:
        loaded, info = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    finally:
        logger.removeHandler(caplog.handler)
    assert not caplog.records and not info["missing_keys"] and not info["unexpected_keys"]
    assert (loaded.pooler is not None) == pooled
    got, want = loaded.eval()(ids), model(ids)
    assert torch.equal(got.last_hidden_state, want.last_hidden_state)
    assert torch.equal(got.pooler_output, want.pooler_output) if pooled else got.pooler_output is None
    asked = AutoModel.from_pretrained(tmp_path, add_pooling_layer=not pooled)
    assert (asked.pooler is not None) != pooled  # what the caller says counts


@pytest.mark.parametrize("family", POOLED)
def test_a_model_without_head_read_from_one_that_names_words_has_no_pooler(tiny, tmp_path, family):
    convert(tiny(family, "ForMaskedLM"), "tisa").save_pretrained(tmp_path / "words")
    base, info = AutoModel.from_pretrained(tmp_path / "words", output_loading_info=True)
    assert base.pooler is None and not info["missing_keys"]
    base.save_pretrained(tmp_path / "base")
    assert AutoModel.from_pretrained(tmp_path / "base").pooler is None
    classifier = AutoModelForSequenceClassification.from_pretrained(tmp_path / "base")
    classifier.save_pretrained(tmp_path / "classifier")
    again, info = AutoModel.from_pretrained(tmp_path / "classifier", output_loading_info=True)
    assert (again.pooler is not None) == (classifier.base_model.pooler is not None) and not info["missing_keys"]


def test_every_class_of_a_family_can_be_converted(tiny, ids):
    for source, made in MODELS.items():
        family = made.config_class.source_type
        head = source.__name__.removeprefix(made.config_class.__name__.removeprefix("Converted").removesuffix("Config"))
        converted = convert(tiny(family, head), "alibi")
        assert type(converted) is made and isinstance(converted, source)
        inputs = ids[:, None] if head == "ForMultipleChoice" else ids
        output = converted(inputs)
        assert output[0].isfinite().all()


def test_loading_needs_no_bias_parameters_drawn_from_nowhere(tiny, tmp_path, ids):
    """Buffers that are not saved (ALiBi's slopes, T5's buckets) are there after loading."""
    for to in ("alibi", "t5"):
        model = convert(tiny("bert"), to)
        model.save_pretrained(tmp_path / to)
        loaded = AutoModel.from_pretrained(tmp_path / to)
        for (name, mine), (_, theirs) in zip(model.named_buffers(), loaded.named_buffers(), strict=True):
            assert torch.equal(mine, theirs), name


def test_without_headway_transformers_does_not_know_the_type(tiny, tmp_path):
    convert(tiny("bert"), "alibi").save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).model_type == "headway-bert"
    assert "headway-bert" not in transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES


def test_another_attention_is_refused_at_every_turn(tiny, ids, tmp_path):
    model = convert(tiny("bert", "ForMaskedLM"), "diet-rel")
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="no other adds a converted model's bias"):
        model.set_attn_implementation("sdpa")
    with pytest.raises(ValueError, match="no other adds"):
        AutoModelForMaskedLM.from_pretrained(tmp_path, attn_implementation="eager")
    model.bert.set_attn_implementation("eager")  # the model inside is transformers' own class
    with pytest.raises(ValueError, match="got 'eager'"):
        model(ids)
    model.set_attn_implementation("headway")
    assert model(ids).logits.isfinite().all()


def test_a_part_called_alone_raises_rather_than_lose_the_bias(tiny, ids):
    model = convert(tiny("bert"), "diet-rel")
    with pytest.raises(ValueError, match="expected the bias of a converted model, got none"):
        model.encoder(torch.randn(1, 5, 32, dtype=torch.float64))
    plain = tiny("bert")
    plain.set_attn_implementation("headway_converted")
    with pytest.raises(ValueError, match="not converted"):
        plain(ids)


def test_position_ids_are_refused(tiny, ids):
    for mode in ("supplement", "replace"):
        model = convert(tiny("bert"), "alibi", mode=mode)
        with pytest.raises(NotImplementedError, match="position_ids: expected none"):
            model(ids, position_ids=torch.arange(20)[None])


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_longer_than_the_positions_that_stayed_are_refused(tiny, family):
    words = torch.full((1, 25), 5)  # the tiny models have 24 positions
    model = convert(tiny(family), to="diet-rel")
    assert model(words[:, :24]).last_hidden_state.isfinite().all()
    with pytest.raises(ValueError, match=r"expected at most 24 tokens.*got 25.*mode='replace'"):
        model(words)
    longer = convert(tiny(family), to="diet-rel", mode="replace", max_length=25)
    assert longer(words).last_hidden_state.isfinite().all()


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_changes_nothing_and_rows_of_padding_alone_stay_finite(tiny, ids, randomised, family):
    model = randomised(convert(tiny(family), "diet-rel", mode="replace", start="random"))
    mask = torch.ones(3, 20, dtype=torch.long)
    mask[1, 7:] = 0
    mask[2] = 0
    ids = ids.masked_fill(mask == 0, model.config.pad_token_id)
    together = model(ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(together[0], model(ids[:1]).last_hidden_state[0])
    torch.testing.assert_close(together[1, :7], model(ids[1:2, :7]).last_hidden_state[0])
    assert together.isfinite().all()


def test_weights_are_given_when_asked_for(tiny, ids, randomised):
    for family in ("bert", "albert", "distilbert"):
        model = randomised(convert(tiny(family, "ForMaskedLM"), "tisa", start="random"))
        output = model(ids, output_attentions=True)
        layers = 6 if family == "albert" else 3
        assert len(output.attentions) == layers and output.attentions[0].shape == (3, 4, 20, 20)
        torch.testing.assert_close(output.attentions[1].sum(-1), torch.ones(3, 4, 20, dtype=torch.float64))
        torch.testing.assert_close(output.logits, model(ids).logits)


def test_masks_with_four_axes(tiny, ids, randomised):
    model = randomised(convert(tiny("bert"), "tisa", start="random"))
    causal = torch.ones(20, 20).tril().bool()[None, None].expand(3, 1, -1, -1)
    whole, part = model(ids, attention_mask=causal), model(ids[:, :5], attention_mask=causal[..., :5, :5])
    torch.testing.assert_close(whole.last_hidden_state[:, :5], part.last_hidden_state)
    with pytest.raises(TypeError, match="boolean"):
        model(ids, attention_mask=causal.double())


def test_copies_and_pickles_keep_their_own_bias(tiny, ids, randomised):
    model = randomised(convert(tiny("albert"), "tisa", start="random"))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(ids).last_hidden_state, model(ids).last_hidden_state)
        randomised(other, seed=9)
        assert not torch.equal(other(ids).last_hidden_state, model(ids).last_hidden_state)


@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_gradient_checkpointing_gives_the_same_gradients(tiny, ids, randomised, family):
    model = randomised(convert(tiny(family, "ForMaskedLM"), "tisa", start="random"))
    gradients = []
    for checkpointed in (False, True):
        if checkpointed:
            model.gradient_checkpointing_enable()
        for module in model.modules():  # checkpointing is for training, dropout would differ
            module.training = not isinstance(module, torch.nn.Dropout)
            if hasattr(module, "dropout") and isinstance(module.dropout, torch.nn.Dropout):
                module.dropout.p = 0.0
        model.zero_grad()
        model(ids, labels=ids).loss.backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_every_parameter_has_a_gradient(tiny, ids):
    """As data-parallel training needs."""
    cases = zip(FAMILIES, ["tisa", "diet-rel", "diet-abs", "t5"] * 2, ["supplement", "replace"] * 4, strict=False)
    for family, to, mode in [*cases, ("bert", "diet-abs", "replace"), ("albert", "tisa", "replace")]:
        model = convert(tiny(family, "ForSequenceClassification"), to, mode=mode, start="random").train()
        model(ids, labels=torch.tensor([0, 1, 0])).loss.backward()
        assert all(p.grad is not None for p in model.parameters()), (family, to, mode)


def test_half_precision(tiny, ids, tmp_path):
    model = convert(tiny("bert", dtype=torch.float32), "tisa").to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path)
    assert loaded.dtype == torch.bfloat16
    assert torch.equal(loaded.eval()(ids).last_hidden_state, model(ids).last_hidden_state)


@pytest.mark.parametrize("family", POOLED)
def test_of_a_folder_without_a_poolers_weights_none_is_made(tiny, tmp_path, family):
    without_pooler(tiny(family)).save_pretrained(tmp_path)
    original = load_original(str(tmp_path))
    assert original.pooler is None and convert(original, "tisa").pooler is None
