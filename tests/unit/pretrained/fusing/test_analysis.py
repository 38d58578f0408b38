"""Scores recorded while fused models run, against transformers' own attention and against what is read of parts."""

import numpy as np
import pytest
import torch
from fusing_cases import tiny_model
from numpy.testing import assert_allclose

import headway as hw
from headway.pretrained.analysis import analyze, position_scores, read
from headway.pretrained.analysis.fused_models import read_fused
from headway.pretrained.analysis.hidden_states import position_states
from headway.pretrained.analysis.patterns import softmax

LENGTH = 20
TEXT = (  # Falcon's attention is not among them: where transformers returns it, ALiBi was added twice
    *("switch_transformers", "pop2piano", "udop", "mpnet", "deberta", "deberta-c2p", "deberta-v2", "deberta-v3"),
    *("bloom", "mpt", "xlnet", "xlnet-causal", "layoutlmv3", "layoutlm", "xlm-roberta-xl", "data2vec-text", "ernie"),
    *("esm", "clip_text_model", "seamless_m4t-text", "t5"),
)


def stack_of(model):
    return model.get_encoder() if model.config.is_encoder_decoder else model.base_model


def eager_attention(model, ids, **more):
    """Weights of transformers' own attention, one (H, L, L) a layer."""
    model.set_attn_implementation("eager")
    if "layout" in model.config.model_type:
        more["bbox"] = torch.zeros(1, ids.shape[1], 4, dtype=torch.long)
    if model.config.model_type == "udop":
        more["bbox"] = torch.zeros(1, ids.shape[1], 4, dtype=torch.float64)
    with torch.no_grad():
        return [each[0].numpy() for each in stack_of(model)(ids, output_attentions=True, **more).attentions]


def assert_same_attention(scores, causal, expected):
    assert len(scores) == len(expected)
    for layer, (found, weights) in enumerate(zip(scores, expected, strict=True)):
        rows = np.arange(len(weights[0])) if causal else None
        assert_allclose(softmax(found, rows), weights, atol=1e-9, err_msg=f"layer {layer}")


@pytest.mark.parametrize("name", TEXT)
def test_position_scores_are_those_of_average_words(name):
    model = tiny_model(name)
    embeddings = stack_of(model).get_input_embeddings()
    average = embeddings(torch.arange(embeddings.num_embeddings)).mean(0)
    hook = embeddings.register_forward_hook(lambda module, ids, found: average.expand_as(found).clone())
    expected = eager_attention(model, torch.full((1, LENGTH), 3))
    hook.remove()
    scores = read_fused(model, stack="encoder").position_scores(LENGTH)
    assert_same_attention([each.matrices() for each in scores], scores[0].causal, expected)


@pytest.mark.parametrize("name", [name for name in TEXT if name not in ("xlnet", "xlnet-causal")])
def test_scores_of_a_text_are_what_the_model_attends_by(name):
    model = tiny_model(name)
    draw = np.random.default_rng(0)
    ids = draw.integers(2, 60, LENGTH)
    found = read_fused(model, stack="encoder").text_scores(ids)
    causal = name in ("bloom", "mpt", "clip_text_model")
    assert_same_attention(found["whole"], causal, eager_attention(model, torch.from_numpy(ids)[None]))
    if "words" in found:
        for whole, words, positions in zip(found["whole"], found["words"], found["positions"], strict=True):
            assert_allclose(words + positions, whole, atol=1e-12)


def test_segments_of_a_text_reach_the_model():
    model = tiny_model("xlnet")
    ids, segments = np.arange(2, 22), np.repeat([0, 1], 10)
    found = read_fused(model, stack="encoder").text_scores(ids, segments)
    expected = eager_attention(model, torch.from_numpy(ids)[None], token_type_ids=torch.from_numpy(segments)[None])
    assert_same_attention(found["whole"], False, expected)


@pytest.mark.parametrize("name", ["t5", "umt5", "mpnet", "bert", "roberta", "electra", "distilbert"])
def test_recorded_scores_are_those_of_the_parts_that_are_read(name):
    """Families that are known both ways."""
    model = tiny_model(name)
    reading, recorded = read(model), read_fused(model, stack="encoder").position_scores(LENGTH)
    for layer, arriving in enumerate(position_states(reading, LENGTH)):
        expected = position_scores(reading, layer, projected=arriving)
        assert_allclose(recorded[layer].matrices(), expected.matrices(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["bloom", "mpt", "falcon", "falcon-multi-query"])
def test_curves_of_alibi_are_slopes_times_offsets(name):
    """Press et al. (2022), Sec. 3, with four heads: slopes 1/4, 1/16, 1/64, 1/256."""
    falcon = {"num_attention_heads": 4, "hidden_size": 32}
    model = tiny_model(name, **{"bloom": {"n_head": 4}, "mpt": {"n_heads": 4}}.get(name, falcon))
    curves = analyze(model, positions=LENGTH, kernels=(1,)).curves
    scale = 8**0.5 if name.startswith("falcon") else 1.0  # which divides ALiBi, too, by the root of the heads' width
    assert curves.offsets.tolist() == list(range(1 - LENGTH, 1))
    for h in range(4):
        expected = 4.0 ** -(h + 1) * curves.offsets / scale
        assert_allclose(curves.mean[:, h], [expected, expected], rtol=5e-3, atol=1e-9)  # Falcon computes in bfloat16
    assert_allclose(curves.r2, 1.0)


def test_terms_of_deberta_are_its_c2p_and_p2c():
    both = tiny_model("deberta")
    curves = analyze(both, positions=LENGTH, kernels=(1,)).curves
    assert set(curves.terms) == {"queries", "keys"}
    assert_allclose(curves.terms["queries"] + curves.terms["keys"], curves.mean, atol=1e-12)
    for kind, term in (("c2p", "queries"), ("p2c", "keys")):
        alone = tiny_model("deberta", pos_att_type=[kind])
        alone.load_state_dict(both.state_dict(), strict=False)
        of_one = analyze(alone, positions=LENGTH, kernels=(1,)).curves
        # The scale has the number of products under its root: two here, three above.
        assert_allclose(of_one.mean[0] * np.sqrt(2 / 3), curves.terms[term][0], rtol=1e-6, atol=1e-9)
        assert of_one.terms == {}


def letters(text, truncation, max_length):
    return {"input_ids": [ord(letter) % 58 + 2 for letter in text][:max_length]}


def test_a_model_is_measured_whole_and_left_as_it_was():
    model = tiny_model("deberta-v3")
    before = {name: type(module) for name, module in model.named_modules()}
    measures = analyze(model, letters, ["positions belong to scores"], 16, kernels=(1,), text_length=12)
    assert measures.model.model_type == "deberta-v2" and measures.model.layers == 2
    assert measures.table is None and measures.segments is None
    assert measures.heads.r2.shape == (2, 6) and measures.heads.length == 16
    assert_allclose(measures.heads.r2_carried, measures.heads.r2)
    assert measures.texts.ranks.adds_to_scores and measures.texts.ranks.lengths.tolist() == [12]
    assert {name: type(module) for name, module in model.named_modules()} == before
    hw.fuse(model)
    again = analyze(model, positions=16, kernels=(1,))
    assert_allclose(again.heads.mean, measures.heads.mean)
    assert hw.fused(model).replaced


def test_a_position_table_beside_a_bias_is_measured():
    measures = analyze(tiny_model("deberta"), positions=LENGTH, kernels=(1,))
    assert measures.table is not None and measures.model.limit == 64
    with pytest.raises(ValueError, match="positions: expected 3 to 64"):
        analyze(tiny_model("deberta"), positions=65)


def test_positions_lie_inside_the_narrowest_window():
    """ModernBERT's local layers see four tokens to either side here."""
    model = tiny_model("modernbert")
    measures = analyze(model, kernels=(1,))
    assert measures.model.positions == 5
    assert_allclose(measures.heads.r2, 1.0)  # rotated average words depend on the offset alone
    with pytest.raises(ValueError, match="positions: expected at most 5, because layers of modernbert see a window"):
        analyze(model, positions=6)
    with pytest.raises(ValueError, match="text_length: expected at most 5"):
        analyze(model, letters, ["longer than that"], kernels=(1,))


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("wavlm", {}, "expected one of text, because positions are measured with average words, got wavlm"),
        ("swin", {}, "expected one of text"),
        ("funnel", {}, "as many heads, queries and keys each, got funnel"),
        ("inkling_text", {}, "as many heads, queries and keys each, got inkling_text"),
        ("longt5", {}, "got longt5, whose layers see blocks of keys"),
        ("bloom", {"stack": "decoder"}, "stack: expected encoder for bloom"),
        ("bloom", {"formula": "equation"}, "formula: expected model for bloom"),
    ],
)
def test_what_cannot_be_measured_is_refused(name, options, reason):
    with pytest.raises((NotImplementedError, ValueError), match=reason):
        analyze(tiny_model(name), **options)
