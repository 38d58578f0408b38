"""A fused model computes what transformers' eager attention computes, in float64: outputs and every gradient."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers
from fusing_cases import ENCODER_DECODER, POSITIONS, TINY, call_of, pair, tiny_model

import headway as hw
from headway.pretrained.fusing import FAMILIES
from headway.pretrained.fusing.families import alibi
from headway.pretrained.fusing.interface import recording

# Of torch, about transformers' own call in WavLM.
pytestmark = pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask and attn_mask:UserWarning")

GENERATING = [name for name, made in TINY.items() if made.kind in ("decoder", *ENCODER_DECODER)]


def test_every_family_is_tried():
    tried = {tiny_model(name).config.model_type for name in TINY}
    assert tried == set(FAMILIES)


@pytest.mark.parametrize(
    ("batch", "length", "padding"),
    [
        (3, 17, "none"),
        (3, 17, "right"),
        (3, 17, "left"),
        (1, 24, "none"),
        (2, 1, "none"),
        *(
            pytest.param(batch, length, padding, marks=pytest.mark.slow)
            for batch, length in ((1, 24), (2, 1))
            for padding in ("right", "left")
        ),
    ],
)
@pytest.mark.parametrize("name", TINY)
def test_outputs_and_gradients(name, batch, length, padding, same):
    if name == "seamless_m4t_v2-chunks" and padding == "left":
        pytest.skip("its adapter expects padding on the right, and mixes chunks of padding alone into its frames")
    if name in ("funnel", "funnel-pooled-together") and length == 1:
        pytest.skip("transformers cannot do that: it has no positions to pool")
    if name == "xlnet-causal" and padding != "none":
        pytest.skip("transformers cannot do that: it adds the padding of each sequence to one mask in place")
    same(*pair(name), call_of(name, batch, length, padding))


@pytest.mark.parametrize("name", TINY)
def test_the_bias_matters(name, monkeypatch):
    """Else all other tests here could pass without one."""
    model, other = pair(name)
    tables = [p for key, p in other.named_parameters() if any(word in key for word in POSITIONS)]
    if not tables and FAMILIES[model.config.model_type] not in alibi.FAMILIES:
        pytest.skip("the model has no bias, masks alone")
    call = call_of(name, 2, 17, "none")
    monkeypatch.setattr(alibi, "bias_of_keys", lambda *given: None)
    monkeypatch.setattr(alibi, "bias_of_alibi", lambda *given: None)
    with torch.no_grad():
        for parameter in tables:
            parameter.mul_(-1)
        assert (call.compared(model) - call.compared(other)).abs().max() > 1e-3


@pytest.mark.parametrize("cache", ["dynamic", "static", "none"])
@pytest.mark.parametrize("padding", ["none", "left"])
@pytest.mark.parametrize("name", GENERATING)
def test_generation_token_by_token(name, padding, cache):
    model, other = pair(name)
    inputs = call_of(name, 3, 7, padding).inputs
    inputs.pop("decoder_input_ids", None)
    if name == "seamless_m4t_v2-chunks" and padding == "left":
        pytest.skip("its adapter expects padding on the right, and mixes chunks of padding alone into its frames")
    if cache == "static" and name.startswith("falcon"):
        pytest.skip("transformers cannot do that: its ALiBi takes no mask with four axes")
    if cache == "static" and name.startswith("inkling"):
        pytest.skip("transformers cannot do that: the mask of a layer with a sliding window is as long as the cache")
    if name == "pop2piano":
        pytest.skip("its generate takes audio; its classes are T5's")
    asked = {"use_cache": cache != "none", "max_new_tokens": 8, "do_sample": False}
    if cache == "static":
        asked["cache_implementation"] = "static"
    asked |= {"output_scores": True, "return_dict_in_generate": True}
    theirs, ours = model.generate(**inputs, **asked), other.generate(**inputs, **asked)
    assert torch.equal(theirs.sequences, ours.sequences)
    for a, b in zip(theirs.scores, ours.scores, strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=1e-9)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", TINY)
def test_gradient_checkpointing(name, reentrant, same):
    model, other = pair(name)
    if not other.supports_gradient_checkpointing:
        pytest.skip("transformers cannot checkpoint it")
    if reentrant and TINY[name].sizes.get("norm_rel_ebd") and TINY[name].sizes["relative_attention"]:
        pytest.skip("transformers cannot do that: a second backward pass through the normalisation of the table")
    if reentrant and name.startswith("wavlm"):
        pytest.skip("transformers cannot do that: the backward pass of its layers, which hand on a bias, never ends")
    if reentrant and (TINY[name].kind == "image" or name == "speecht5"):
        pytest.skip("transformers cannot do that: a second backward pass through the bias, hooks that expect a tensor")
    for each in (model, other):
        each.train()
    other.gradient_checkpointing_enable({"use_reentrant": reentrant})
    if reentrant:
        other.enable_input_require_grads()
    same(model, other, call_of(name, 2, 11, "right"))


@pytest.mark.parametrize("name", TINY)
def test_attention_weights_are_given_where_they_are_asked_for(name):
    if name.startswith("falcon"):
        pytest.skip("transformers has weights of its eager attention alone, which adds ALiBi twice")
    if name.startswith("seamless_m4t_v2"):
        pytest.skip("transformers has weights of its eager attention alone, which masks no chunks")
    if name.startswith("layoutlmv3"):
        pytest.skip("the model does not tell its layers that weights are wanted")
    if name == "maskformer-swin":
        pytest.skip("transformers cannot do that: without hidden states it has nothing to put weights beside")
    model, other = pair(name)
    call = call_of(name, 2, 9, "none" if name == "xlnet-causal" else "right")
    theirs = model(**call.inputs, output_attentions=True)
    ours = other(**call.inputs, output_attentions=True)
    for field in ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions"):
        for a, b in zip(theirs.get(field) or (), ours.get(field) or (), strict=True):
            if b is None and name in (
                "pix2struct",
                "pix2struct_vision_model",
                "mpt",
            ):  # the model does not tell its layers that weights are wanted
                continue
            if a.dim() == 5:  # of blocks
                torch.testing.assert_close(b, a, rtol=0, atol=1e-9)
                continue
            rows = call.keep if a.shape[-2] == 9 and call.keep is not None else torch.ones(a.shape[0], a.shape[-2]) > 0
            torch.testing.assert_close(b.transpose(1, 2)[rows], a.transpose(1, 2)[rows], rtol=0, atol=1e-9)
            assert len(theirs[field]) > 0


@pytest.mark.parametrize(
    "name",
    [
        "t5-encoder",
        "xlnet",
        "wav2vec2-bert-relative",
        pytest.param("wav2vec2-bert", marks=pytest.mark.slow),
        pytest.param("funnel", marks=pytest.mark.slow),
    ],
)
def test_compiled(name, same):
    model, other = pair(name)
    other.forward = torch.compile(other.forward, backend="aot_eager", dynamic=False)
    same(model, other, call_of(name, 2, 13, "right"))


def test_no_square_matrix_is_made_for_the_bias_of_t5():
    """The bias that the layers share has a number for each offset, not for each pair."""
    other = pair("t5-encoder")[1]
    shapes = []
    attention = other.encoder.block[1].layer[0].SelfAttention
    attention.register_forward_pre_hook(lambda m, a, k: shapes.append(k["position_bias"].shape), with_kwargs=True)
    other(torch.arange(2, 22)[None])
    assert shapes == [(1, 4, 39)]


@pytest.mark.parametrize("name", TINY)
def test_by_name_alone(name, same):
    """attn_implementation="headway" without `fuse`, for models that go through transformers' interface."""
    import headway.pretrained  # noqa: F401  # registers the name

    itself = ("falcon", "wavlm", "xlnet", "funnel", "layoutlmv3", "data2vec-vision")
    itself += ("swin2sr", "donut-swin", "maskformer-swin", "clap_audio_model")
    if name in ("mpnet", "bloom", "mpt", "swinv2", "speecht5") or name.startswith(itself):
        pytest.skip("the family computes attention itself")
    model, other = tiny_model(name), tiny_model(name, attn_implementation="headway")
    assert not hw.fused(other).replaced
    same(model, other, call_of(name, 3, 12, "right"))


@pytest.mark.parametrize(("config", "model"), [
    ("MPNetConfig", "MPNetModel"), ("MegatronBertConfig", "MegatronBertModel"), ("RemBertConfig", "RemBertModel"),
    ("XGLMConfig", "XGLMModel"),
])  # fmt: skip
def test_by_name_refuses_models_that_compute_attention_themselves(config, model):
    """They would add a mask of True and False to their scores, and nobody would see it."""
    import headway.pretrained  # noqa: F401  # registers the name

    sizes = {"vocab_size": 30, "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    if config == "XGLMConfig":
        sizes = {"vocab_size": 30, "d_model": 24, "num_layers": 1, "attention_heads": 2}
    made = getattr(transformers, config)(**sizes, attn_implementation="headway")
    found = getattr(transformers, model)(made).eval()
    keep = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    with pytest.raises(NotImplementedError, match=f"'headway' cannot reach {made.model_type}, which computes"):
        found(torch.randint(2, 30, (2, 4)), attention_mask=keep)


def test_a_decoder_that_does_not_say_that_it_is_causal(same):
    """As UMT5's in transformers 5.17."""
    model = tiny_model("umt5")
    for module in model.decoder.modules():
        if hasattr(module, "has_relative_attention_bias"):
            module.is_causal = False
    same(model, hw.fuse(copy.deepcopy(model)), call_of("umt5", 2, 9, "none"))


def test_by_name_refuses_modules_that_do_not_say_whether_they_are_causal():
    import headway.pretrained  # noqa: F401  # registers the name

    sizes = {"vocab_size": 30, "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    made = transformers.SplinterConfig(**sizes, intermediate_size=16, attn_implementation="headway")
    model = transformers.SplinterModel(made).eval()
    with pytest.raises(NotImplementedError, match="does not say whether it is causal"):
        model(torch.randint(2, 30, (2, 4)))


@pytest.mark.parametrize("name", ["bloom", "mpt"])
@pytest.mark.parametrize(("dtype", "padding", "kind"), [
    (torch.float32, "none", hw.Toeplitz), (torch.float32, "left", hw.LowRank), (torch.bfloat16, "none", hw.LowRank)
])  # fmt: skip
def test_alibi_is_toeplitz_where_nothing_is_padding_and_numbers_are_exact(name, dtype, padding, kind):
    _, other = pair(name)
    with recording() as calls, torch.no_grad():
        call_of(name, 2, 9, padding).compared(other.to(dtype))
    assert calls and all(type(call.bias) is kind for call in calls)
