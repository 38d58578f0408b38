"""F_P against the models themselves, in float64: a text of n average words, run through the real module.

Wennberg and Henter (2021), Sec. 3.2, Eq. (2). Two oracles: what the model's own query and key layers give out, and the
attention weights that the model reports.
"""

import numpy as np
import pytest
import torch
import transformers
from numpy.testing import assert_allclose

from headway.models import EncoderConfig, EncoderModel
from headway.pretrained.analysis.hidden_states import position_states, token_states
from headway.pretrained.analysis.loading import read
from headway.pretrained.analysis.scores import position_scores, scores_of

SIZES = {"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3}
BERT = {**SIZES, "intermediate_size": 32, "max_position_embeddings": 20, "type_vocab_size": 2}
GPT2 = {**SIZES, "n_positions": 20, "bos_token_id": 0, "eos_token_id": 0}
T5 = {"vocab_size": 50, "d_model": 24, "d_kv": 5, "d_ff": 32, "num_layers": 3, "num_heads": 3}

MODELS = {  # name -> (class, configuration class, options, paths of the first layer's query and key layers)
    "bert": ("BertModel", "BertConfig", BERT, "encoder.layer.0.attention.self"),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", BERT, "roberta.encoder.layer.0.attention.self"),
    "xlm-roberta": ("XLMRobertaModel", "XLMRobertaConfig", BERT, "encoder.layer.0.attention.self"),
    "camembert": ("CamembertModel", "CamembertConfig", BERT, "encoder.layer.0.attention.self"),
    "electra": (
        "ElectraForPreTraining",
        "ElectraConfig",
        {**BERT, "embedding_size": 10},
        "electra.encoder.layer.0.attention.self",
    ),
    "electra, one width": (
        "ElectraModel",
        "ElectraConfig",
        {**BERT, "embedding_size": 24},
        "encoder.layer.0.attention.self",
    ),
    "albert": (
        "AlbertModel",
        "AlbertConfig",
        {**BERT, "embedding_size": 10},
        "encoder.albert_layer_groups.0.albert_layers.0.attention",
    ),
    "albert, three groups": (
        "AlbertForMaskedLM",
        "AlbertConfig",
        {**BERT, "embedding_size": 10, "num_hidden_groups": 3},
        "albert.encoder.albert_layer_groups.0.albert_layers.0.attention",
    ),
    "distilbert": (
        "DistilBertModel",
        "DistilBertConfig",
        {"vocab_size": 50, "dim": 24, "n_layers": 3, "n_heads": 3, "hidden_dim": 32, "max_position_embeddings": 20},
        "transformer.layer.0.attention",
    ),
    "mpnet": ("MPNetModel", "MPNetConfig", BERT, "encoder.layer.0.attention.attn"),
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        GPT2,
        "transformer.h.0.attn",
    ),
    "gpt2, scaled by layer": (
        "GPT2Model",
        "GPT2Config",
        {**GPT2, "scale_attn_by_inverse_layer_idx": True},
        "h.0.attn",
    ),
    "t5": ("T5EncoderModel", "T5Config", T5, "encoder.block.0.layer.0.SelfAttention"),
    "t5, both stacks": ("T5ForConditionalGeneration", "T5Config", T5, "encoder.block.0.layer.0.SelfAttention"),
    "mt5": ("MT5EncoderModel", "MT5Config", T5, "encoder.block.0.layer.0.SelfAttention"),
    "umt5": ("UMT5EncoderModel", "UMT5Config", T5, "encoder.block.0.layer.0.SelfAttention"),
}
OFFSET = {"roberta": 2, "xlm-roberta": 2, "camembert": 2, "mpnet": 2}  # rows before that of position 0
LENGTH = 17


def near(name):
    """T5's norm works out the variance in float32, whatever the model's dtype."""
    return {"rtol": 1e-5, "atol": 1e-6} if "t5" in name else {"rtol": 1e-9, "atol": 1e-11}


def randomized(model, seed=0):
    """Every parameter random, so that no zero bias and no unit norm can hide an error."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=draw, dtype=torch.float64) * 0.3
            parameter.copy_(noise + (1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0))
    return model.double().eval()


def build(name):
    kind, config, options, _ = MODELS[name]
    extra = {"pad_token_id": 1} if name.split(",")[0] in ("roberta", "xlm-roberta", "camembert", "mpnet") else {}
    made = getattr(transformers, config)(**options, **extra, attn_implementation="eager")
    return randomized(getattr(transformers, kind)(made))


def running(model):
    """The part of a model that runs on a text alone."""
    return model.get_encoder() if model.config.is_encoder_decoder or "t5" in model.config.model_type else model


def mean_word(model, length):
    return model.get_input_embeddings().weight.mean(0).expand(1, length, -1)


def weights_of(scores):
    """Softmax over each row, with the causal mask where there is one."""
    matrices = scores.matrices()
    if scores.causal:
        matrices = np.where(np.tri(scores.length, dtype=bool), matrices, -np.inf)
    exp = np.exp(matrices - matrices.max(-1, keepdims=True))
    return exp / exp.sum(-1, keepdims=True)


@pytest.mark.parametrize("name", MODELS)
def test_first_layer_is_what_the_query_and_key_layers_give(name):
    model = build(name)
    attention = model.get_submodule(MODELS[name][3])
    caught = {}

    def catch(part):
        def hook(module, arguments, out):
            caught.setdefault(part, out[0])  # the first time: ALBERT's layers share one module

        return hook

    for part, names in {"q": ("query", "q_lin", "q", "c_attn"), "k": ("key", "k_lin", "k", "c_attn")}.items():
        next(getattr(attention, name) for name in names if hasattr(attention, name)).register_forward_hook(catch(part))
    with torch.no_grad():
        running(model)(inputs_embeds=mean_word(model, LENGTH))
    if "gpt2" in name:
        caught["q"], caught["k"] = caught["q"].split(24, -1)[:2]
    q, k = (caught[part].view(LENGTH, 3, -1).transpose(0, 1) for part in "qk")
    scale = 1.0 if "t5" in name else 8**-0.5
    expected = (q @ k.transpose(1, 2) * scale).numpy()
    if "t5" in name:
        expected += attention.compute_bias(LENGTH, LENGTH)[0].detach().numpy()
    if name == "mpnet":
        expected += model.encoder.compute_position_bias(torch.zeros(1, LENGTH, 24))[0].detach().numpy()
    assert_allclose(position_scores(read(model), 0, LENGTH).matrices(), expected, **near(name))


@pytest.mark.parametrize("name", MODELS)
def test_every_layer_gives_the_weights_that_the_model_reports(name):
    model = build(name)
    reading = read(model)
    with torch.no_grad():
        reported = running(model)(inputs_embeds=mean_word(model, LENGTH), output_attentions=True).attentions
    assert len(reported) == len(reading.layers) == 3
    for layer, projected in enumerate(position_states(reading, LENGTH)):
        weights = weights_of(position_scores(reading, layer, projected=projected))
        assert_allclose(weights, reported[layer][0].numpy(), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_real_tokens_give_the_weights_that_the_model_reports(name):
    model = build(name)
    reading = read(model)
    ids = np.array([7, 3, 9, 9, 30, 2, 41, 8])
    with torch.no_grad():
        reported = running(model)(input_ids=torch.tensor(ids)[None], output_attentions=True).attentions
    for layer, projected in enumerate(token_states(reading, ids)):
        assert_allclose(
            weights_of(scores_of(reading, layer, projected)), reported[layer][0].numpy(), rtol=1e-8, atol=1e-12
        )
    embedded = reading.embedded(reading.summed(reading.words[ids]))
    norm = reading.layers[0].norm
    assert_allclose(embedded if norm is None else norm(embedded), token_states(reading, ids)[0], **near(name))


@pytest.mark.parametrize("name", MODELS)
def test_deeper_layers_take_the_same_positions_through_their_own_projections(name):
    """By hand for the last layer: the first layer's input, that layer's norm and projections."""
    reading = read(build(name))
    last = reading.layers[-1]
    x = reading.mean_words(LENGTH)
    if last.norm is not None:
        x = last.norm(x)
    bias = reading.bias_of(2, LENGTH)
    for h in range(3):
        q, k = x @ last.query_weight[h] + last.query_bias[h], x @ last.key_weight[h] + last.key_bias[h]
        expected = q @ k.T * last.scale
        if bias is not None:
            expected = expected + bias.dense()[0, h].numpy()
        assert_allclose(position_scores(reading, 2, LENGTH).matrices()[h], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["roberta", "xlm-roberta", "camembert", "mpnet", "bert", "distilbert", "gpt2"])
def test_position_0_is_the_row_that_the_model_uses(name):
    model = build(name)
    table = next(m for n, m in model.named_modules() if n.endswith(("position_embeddings", "wpe")))
    skipped = OFFSET.get(name, 0)
    reading = read(model)
    assert reading.limit == 20 - skipped
    assert_allclose(reading.positions, table.weight.detach()[skipped:])


def test_the_decoder_of_t5_is_causal_and_has_a_table_of_its_own():
    model = build("t5, both stacks")
    reading = read(model, stack="decoder")
    attention = model.decoder.block[0].layer[0].SelfAttention
    assert reading.causal
    expected = attention.compute_bias(LENGTH, LENGTH)[0].detach().numpy()
    for layer in range(3):  # all layers share the first one's
        assert_allclose(reading.bias_of(layer, LENGTH).dense()[0].numpy(), expected, rtol=1e-12)
    with pytest.raises(NotImplementedError, match="attends to an encoder"):
        position_states(reading)


OWN = [
    ("learned", "input"),
    ("sinusoidal", "none"),
    ("none", "input"),
    ("diet-rel", "none"),
    ("diet-abs", "input"),
    ("tisa", "none"),
    ("t5", "none"),
    ("tupe-rel", "none"),
    ("alibi", "none"),
    ("rope", "input"),
    ("shaw", "none"),
    ("transformer-xl", "none"),
    ("learned+tisa", "input"),
    ("learned+shaw", "none"),
]


@pytest.mark.parametrize(("encoding", "segments"), OWN)
def test_headway_encoders_give_the_weights_that_they_report(encoding, segments):
    config = EncoderConfig(**{**BERT, "pad_token_id": 0}, encoding=f"{encoding}:segments={segments}")
    model = randomized(EncoderModel(config))
    reading = read(model)
    with torch.no_grad():
        reported = model(inputs_embeds=mean_word(model, LENGTH), output_attentions=True).attentions
    arriving = position_states(reading, LENGTH)
    first = position_scores(reading, 0, LENGTH)
    assert_allclose(
        first.matrices(), position_scores(reading, 0, projected=arriving[0]).matrices(), rtol=1e-8, atol=1e-11
    )
    for layer, projected in enumerate(arriving):
        weights = weights_of(position_scores(reading, layer, projected=projected))
        assert_allclose(weights, reported[layer][0].numpy(), rtol=1e-8, atol=1e-12)


def test_tiles_are_parts_of_the_matrices():
    reading = read(randomized(EncoderModel(EncoderConfig(**{**BERT, "pad_token_id": 0}, encoding="learned+shaw"))))
    scores = position_scores(reading, 1, LENGTH)
    whole = scores.matrices()
    assert whole.shape == (3, LENGTH, LENGTH)
    assert_allclose(scores.tile(3, 9, 5, 17), whole[:, 3:9, 5:17], rtol=1e-12)


# Eq. (2) of Wennberg and Henter (2021) as it is written: words and positions, W_Q and W_K, and nothing else.


@pytest.mark.parametrize("name", ["bert", "roberta", "albert", "gpt2"])
def test_the_equation_as_written_by_loops(name):
    model = build(name)
    reading = read(model)
    base = model.base_model
    layer = {
        "albert": lambda: base.encoder.albert_layer_groups[0].albert_layers[0].attention,
        "gpt2": lambda: base.h[0].attn,
    }.get(name, lambda: base.encoder.layer[0].attention.self)()
    words = base.get_input_embeddings().weight.detach().numpy()
    table = (base.wpe if name == "gpt2" else base.embeddings.position_embeddings).weight.detach().numpy()
    table = table[2:] if name == "roberta" else table  # rows of padding
    summed = [words.mean(0) + table[i] for i in range(LENGTH)]
    if name == "albert":  # its narrow embeddings reach W_Q through a projection
        summed = [base.encoder.embedding_hidden_mapping_in.weight.detach().numpy() @ x for x in summed]
    heads = model.config.num_attention_heads
    width = model.config.hidden_size // heads
    if name == "gpt2":
        whole = layer.c_attn.weight.detach().numpy().T
        query, key = whole[: heads * width], whole[heads * width : 2 * heads * width]
    else:
        query, key = layer.query.weight.detach().numpy(), layer.key.weight.detach().numpy()
    found = position_scores(reading, 0, LENGTH, formula="equation").matrices()
    for head, i, j in [(0, 0, 0), (1, 3, 11), (heads - 1, LENGTH - 1, 2)]:
        rows = slice(head * width, (head + 1) * width)
        want = (query[rows] @ summed[i]) @ (key[rows] @ summed[j]) / width**0.5
        assert_allclose(found[head, i, j], want, rtol=1e-9)
    assert not np.allclose(found, position_scores(reading, 0, LENGTH).matrices(), rtol=0.01)


def test_the_equation_has_neither_segments_nor_what_arrives():
    reading = read(build("bert"))
    for arguments in ({"segments": 1}, {"projected": np.zeros((LENGTH, 24))}):
        with pytest.raises(ValueError, match="formula: expected 'model'"):
            position_scores(reading, 0, LENGTH, formula="equation", **arguments)
    with pytest.raises(ValueError, match="formula: expected one of model, equation"):
        position_scores(reading, 0, LENGTH, formula="paper")


# Converted models: the family's anatomy, and the bias that was added.

CONVERTIBLE = ["bert", "roberta", "electra", "albert, three groups", "albert", "distilbert"]


def converted(name, to, mode):
    from headway.pretrained.conversion import convert

    model = build(name)
    made = convert(model, to, mode=mode, start=None if to == "alibi" else "random")
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in made.base_model.position_bias.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw, dtype=torch.float64))
    return model, made


@pytest.mark.parametrize("mode", ["supplement", "replace"])
@pytest.mark.parametrize("to", ["tisa", "diet-abs", "alibi"])
@pytest.mark.parametrize("name", CONVERTIBLE)
def test_converted_models_give_the_weights_that_they_report(name, to, mode):
    _, model = converted(name, to, mode)
    reading = read(model)
    assert reading.model_type == model.config.model_type
    with torch.no_grad():
        reported = model(inputs_embeds=mean_word(model, LENGTH), output_attentions=True).attentions
    arriving = position_states(reading, LENGTH)
    assert_allclose(reading.mean_words(LENGTH), arriving[0], rtol=1e-9, atol=1e-11)
    for layer, projected in enumerate(arriving):
        weights = weights_of(position_scores(reading, layer, projected=projected))
        assert_allclose(weights, reported[layer][0].numpy(), rtol=1e-8, atol=1e-12)
    ids = np.array([7, 3, 9, 9, 30, 2, 41, 8])
    with torch.no_grad():
        reported = model(input_ids=torch.tensor(ids)[None], output_attentions=True).attentions
    for layer, projected in enumerate(token_states(reading, ids)):
        weights = weights_of(scores_of(reading, layer, projected))
        assert_allclose(weights, reported[layer][0].numpy(), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("name", ["bert", "roberta", "albert", "distilbert"])
def test_f_p_of_a_converted_model_is_the_bias_and_in_4a_the_table_s_own(name):
    for mode in ("supplement", "replace"):
        original, model = converted(name, "diet-rel", mode)
        limit = read(original).limit
        for layer in range(3):
            bias = model.base_model.position_bias.encoding.bias(layer, LENGTH, LENGTH).dense()[0].detach().numpy()
            got = position_scores(read(model), layer, LENGTH).matrices()
            own = position_scores(read(original), layer, LENGTH).matrices()
            if mode == "supplement":
                assert_allclose(got - own, bias, rtol=1e-9, atol=1e-11)
            else:  # every token's input is the same: the rest is one number
                rest = got - bias
                assert_allclose(rest, np.broadcast_to(rest[:, :1, :1], rest.shape), rtol=1e-9, atol=1e-11)
        reading = read(model)
        assert reading.limit == (limit if mode == "supplement" else None)
        assert reading.usual_length == limit
        assert (reading.positions is None) == (mode == "replace")
        assert len(set(reading.alike)) == 3  # biases differ, also where ALBERT's projections do not


def test_diet_abs_is_the_limit_of_a_replaced_model():
    _, model = converted("bert", "diet-abs", "replace")
    assert read(model).limit == 20
    with pytest.raises(ValueError, match="3 to 20"):
        position_scores(read(model), 0, 21)
