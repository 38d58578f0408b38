"""`convert`: what changes, what stays, and what is refused."""

from __future__ import annotations

import pytest
import torch
import transformers
from transformers import BertConfig, BertModel

from headway.pretrained.conversion import BIASES, FAMILIES, convert
from headway.pretrained.conversion.conversion import REASONS, check_family
from headway.pretrained.conversion.converted import encoding_of


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("to", ["tisa", "diet-rel", "diet-abs", "t5"])
def test_a_supplement_starts_as_the_model_it_was(tiny, ids, family, to):
    model = tiny(family)
    converted = convert(model, to, mode="supplement")
    torch.testing.assert_close(converted(ids).last_hidden_state, model(ids).last_hidden_state)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_whose_positions_are_all_equal_stays_the_same_when_they_are_replaced(tiny, ids, family):
    model = tiny(family)
    with torch.no_grad():
        table = model.embeddings.position_embeddings.weight
        table.copy_(torch.randn(1, table.shape[1], dtype=table.dtype).expand_as(table))
    for to in ("tisa", "diet-rel", "diet-abs", "t5"):
        converted = convert(model, "tisa:kernels=1" if to == "tisa" else to, mode="replace")
        torch.testing.assert_close(
            converted(ids).last_hidden_state, model(ids).last_hidden_state, rtol=1e-6, atol=1e-6, msg=to
        )


def test_the_original_is_left_as_it_is(tiny, ids):
    model = tiny("bert").train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    convert(model, "tisa:kernels=1", mode="replace")
    assert model.training and type(model) is BertModel and model.config._attn_implementation == "sdpa"
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_replacing_leaves_one_row_the_mean_of_those_in_use(tiny):
    for family, first in (("bert", 0), ("roberta", 2)):
        model = tiny(family)
        converted = convert(model, "alibi", mode="replace")
        table = model.embeddings.position_embeddings.weight[first:]
        row = converted.embeddings.position_embeddings.weight
        assert row.shape == (1, table.shape[1])
        torch.testing.assert_close(row[0], table.mean(0))


def test_albert_has_a_bias_for_each_application_of_its_layer(tiny, ids):
    model = tiny("albert")  # 3 times a group of 2 layers
    own = convert(model, "diet-rel")
    shared = convert(model, "diet-rel:sharing=layer")
    assert encoding_of(own).values.shape[0] == 6
    assert encoding_of(shared).values.shape[0] == 1
    with torch.no_grad():
        encoding_of(own).values[5, :, :] = torch.randn(47)
    states = own(ids, output_hidden_states=True).hidden_states
    plain = model(ids, output_hidden_states=True).hidden_states
    for n in range(6):  # inputs of the six applications
        torch.testing.assert_close(states[n], plain[n])
    assert not torch.allclose(states[6], plain[6])


@pytest.mark.parametrize("to", ["tisa", "diet-rel", "t5", "alibi"])
@pytest.mark.parametrize("family", ["bert", "roberta", "albert", "distilbert"])
def test_texts_longer_than_the_original_allows(tiny, randomised, family, to):
    model = randomised(convert(tiny(family), to, mode="replace", start=None if to == "alibi" else "random"))
    ids = torch.randint(5, 60, (2, 61))
    long = model(ids).last_hidden_state
    assert long.isfinite().all() and long.shape[1] == 61
    padded = torch.cat([ids, torch.full((2, 9), model.config.pad_token_id)], 1)
    mask = (torch.arange(70) < 61).long().expand(2, -1)
    torch.testing.assert_close(model(padded, attention_mask=mask).last_hidden_state[:, :61], long)


def test_diet_abs_has_the_length_that_was_asked_for(tiny):
    converted = convert(tiny("bert"), "diet-abs", mode="replace", max_length=40)
    assert converted.config.max_position_embeddings == 40
    assert converted(torch.randint(5, 60, (1, 40))).last_hidden_state.isfinite().all()
    with pytest.raises(ValueError, match="at most 40"):
        converted(torch.randint(5, 60, (1, 41)))


def test_a_random_start_depends_on_the_seed_alone(tiny):
    torch.manual_seed(5)
    model = tiny("bert")
    drawn = [encoding_of(convert(model, "tisa", start="random", seed=seed)).amplitude for seed in (0, 0, 1)]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def test_a_supplement_may_start_at_the_fit_as_in_the_paper(tiny):
    model = tiny("bert")
    supplement = convert(model, "diet-rel", mode="supplement", start="fit")
    replaced = convert(model, "diet-rel", mode="replace")
    torch.testing.assert_close(encoding_of(supplement).values, encoding_of(replaced).values)
    assert encoding_of(supplement).values.abs().max() > 1e-3


@pytest.mark.parametrize(
    ("kind", "reason"), [("XLNet", "attention interface"), ("MPNet", "no bias"), ("GPT2", "decoder")]
)
def test_models_out_of_reach_are_refused_with_the_reason_and_the_list(kind, reason):
    small = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    small |= {"n_head": 2, "n_layer": 1, "d_model": 8, "n_embd": 8}
    config = getattr(transformers, f"{kind}Config")()
    for name, value in small.items():
        if hasattr(config, name):
            setattr(config, name, value)
    with pytest.raises(NotImplementedError, match=reason) as error:
        convert(getattr(transformers, f"{kind}Model")(config), "tisa")
    assert "bert, roberta, xlm-roberta, camembert, electra, albert, distilbert" in str(error.value)


def test_reasons_are_given_for_types_that_transformers_has():
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    for name, reason in REASONS.items():
        assert name in CONFIG_MAPPING_NAMES
        with pytest.raises(NotImplementedError, match=reason[:20]):
            check_family(name)


def test_bad_arguments_are_told(tiny):
    model = tiny("bert")
    for arguments, message in [
        ({"to": "rope"}, "to: expected one of tisa, diet-rel, diet-abs, t5, alibi, got 'rope'"),
        ({"to": "tisa", "mode": "add"}, "mode: expected one of supplement, replace, got 'add'"),
        ({"to": "t5:kernels=3"}, "options: t5 has .*; got kernels"),
        ({"to": "tisa", "start": "warm"}, "start: expected one of fit, equation, zero, random"),
        ({"to": "alibi", "start": "fit"}, "whose slopes are fixed"),
        ({"to": "tisa", "max_length": 25}, "max_length: expected at most 24"),
        ({"to": "diet-abs", "max_length": 0}, "max_length: expected a whole number of at least 1"),
        ({"to": "diet-abs:rank=0"}, "rank: expected at least 1"),
        ({"to": "diet-rel", "mode": "replace", "texts": ["a"]}, "tokenizer: expected the model's tokenizer"),
    ]:
        with pytest.raises(ValueError, match=message):
            convert(model, **arguments)
    with pytest.raises(ValueError, match="converted already"):
        convert(convert(model, "alibi"), "tisa")
    with pytest.raises(TypeError, match="expected a transformers model, got Linear"):
        convert(torch.nn.Linear(2, 2), "tisa")
    with pytest.raises(NotImplementedError, match="decoder"):
        convert(tiny("bert", is_decoder=True), "tisa")
    with pytest.raises(NotImplementedError, match="load_relative"):
        convert(BertModel(BertConfig(**{**model.config.to_dict(), "position_embedding_type": "relative_key"})), "tisa")
    with torch.no_grad():
        model.encoder.layer[1].attention.self.key.weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"encoder.layer.1.attention.self.key.weight: expected finite weights"):
        convert(model, "tisa")


def test_every_bias_is_of_the_scores():
    from headway.encodings import ENCODINGS

    assert all(ENCODINGS[name].places == ("scores",) for name in BIASES)


@pytest.mark.parametrize("to", ["diet-rel", "tisa"])
def test_a_fit_knows_nothing_of_positions_beyond_the_longest_text(tiny, to):
    """Rows of the table that texts will not reach may hold anything."""
    first, second = tiny("bert"), tiny("bert")
    with torch.no_grad():
        second.embeddings.position_embeddings.weight[12:] = 50.0
    fitted = [convert(model, "tisa:kernels=1" if to == "tisa" else to, mode="replace", max_length=12)
              for model in (first, second)]  # fmt: skip
    for one, other in zip(*(encoding_of(model).parameters() for model in fitted), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="max_length: expected a whole number of at least 1, got -3"):
        convert(first, to, mode="replace", max_length=-3)
