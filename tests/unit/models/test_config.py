"""The configuration: presets, what it refuses, and that a file says it all."""

import json

import pytest
from huggingface_hub.errors import StrictDataclassFieldValidationError
from transformers import AutoConfig

from headway.encodings import DietAbs, DietRel, EncodingChoice, Learned, SegmentInput, SegmentPerHead, Tisa
from headway.models import (
    PRESETS,
    EncoderConfig,
    EncoderForMaskedLM,
    TranslationConfig,
    TranslationModel,
    preset,
    translation_preset,
)

# transformers 5.17 refuses a wrong problem_type before we do, with an error of its own.
WRONG = (ValueError, StrictDataclassFieldValidationError)
OF_TRANSFORMERS = "Validation error for field 'problem_type'"

LINFORMER = {"attention": "linformer", "projected_length": 4}


def test_presets_are_the_papers():
    base, small = preset("bert-base"), preset("bert-small")
    assert (base.num_hidden_layers, base.hidden_size, base.num_attention_heads) == (12, 768, 12)
    assert (base.intermediate_size, base.max_position_embeddings, base.vocab_size) == (3072, 512, 30522)
    assert (small.num_hidden_layers, small.hidden_size, small.num_attention_heads) == (4, 512, 8)
    assert base.head_dim == small.head_dim == 64
    assert base.encoding == "learned:segments=input"


def test_a_preset_takes_overrides_and_is_not_changed_by_them():
    before = {name: dict(sizes) for name, sizes in PRESETS.items()}
    config = preset("tiny", encoding="diet-abs:rank=7", hidden_size=64)
    assert (config.hidden_size, config.encoding) == (64, "diet-abs:rank=7,segments=input")
    assert before == PRESETS
    with pytest.raises(ValueError, match="bert-base, bert-small, tiny, got 'bert-huge'"):
        preset("bert-huge")


@pytest.mark.parametrize(
    ("options", "position", "segments"),
    [
        ({}, [Learned], SegmentInput),
        ({"encoding": "learned:segments=none"}, [Learned], None),
        ({"encoding": "diet-rel:segments=per-head"}, [DietRel], SegmentPerHead),
        ({"encoding": "learned+tisa:segments=none"}, [Learned, Tisa], None),
        ({"encoding": "learned+tisa"}, [Learned, Tisa], SegmentInput),
    ],
)
def test_position_and_segments_are_built_apart(options, position, segments):
    built, segment = preset("tiny", **options).build()
    assert [type(part) for part in getattr(built, "parts", [built])] == position
    assert segment is None if segments is None else type(segment) is segments


def test_sharing_reaches_position_and_segments():
    position, segments = preset("tiny", encoding="diet-abs:sharing=layer,segments=per-head").build()
    assert (position.sharing, segments.sharing) == ("layer", "none")
    assert isinstance(position, DietAbs) and position.key_length is None


def test_a_file_says_it_all(tmp_path):
    config = preset(
        "tiny",
        vocab_size=77,
        encoding="learned+diet-abs:rank=5,sharing=head,segments=none",
        attention="linformer",
        projected_length=9,
        projection_sharing="layer",
        num_labels=4,
    )
    config.save_pretrained(tmp_path)
    assert EncoderConfig.from_pretrained(tmp_path).to_dict() == config.to_dict()
    assert AutoConfig.from_pretrained(tmp_path).choice == EncodingChoice(
        "learned+diet-abs", {"rank": 5}, sharing="head", segments="none"
    )


@pytest.mark.parametrize(
    ("kind", "saved", "text"),
    [
        (EncoderConfig, {"encoding": "learned", "sharing": None, "segments": "input", "encoding_options": {}}, None),
        (
            EncoderConfig,
            {"encoding": "diet-abs", "sharing": "layer", "segments": "none", "encoding_options": {"rank": 7}},
            "diet-abs:rank=7,sharing=layer,segments=none",
        ),
        (
            TranslationConfig,
            {"encoding": "shaw", "sharing": None, "encoding_options": {"clip": 3, "values": False}},
            "shaw:clip=3,values=false",
        ),
    ],
)
def test_checkpoints_whose_encoding_stood_in_several_fields_load(kind, saved, text, tmp_path):
    config = {"model_type": kind.model_type, "hidden_size": 64, "num_attention_heads": 2, **saved}
    (tmp_path / "config.json").write_text(json.dumps(config))
    expected = kind(hidden_size=64, num_attention_heads=2, **({} if text is None else {"encoding": text}))
    for loaded in (kind.from_pretrained(tmp_path), AutoConfig.from_pretrained(tmp_path)):
        assert loaded.encoding == expected.encoding and loaded.to_diff_dict() == expected.to_diff_dict()
    with pytest.raises(ValueError, match="sharing: it is part of the encoding"):
        kind.from_pretrained(tmp_path, sharing="layer")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoding": "diet-rell"}, "encoding: .*Did you mean 'diet-rel'"),
        ({"encoding": "diet-abs:kernels=3"}, "options: .*rank.*got kernels"),
        ({"encoding": "tisa:sharing=heads"}, "sharing: expected one of none, head, layer"),
        ({"encoding": "tisa:segments=per_head"}, "segments: expected one of none, input, per-head"),
        ({"hidden_size": 130}, r"hidden_size: expected a multiple of num_attention_heads \(4\), got 130"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: expected a whole number of at least 1"),
        ({"attention": "sparse"}, "attention: expected one of full, local, linformer"),
        ({"projected_length": 8}, "attention='linformer'"),
        ({"attention": "linformer"}, r"projected_length: expected 1 to 128"),
        ({"attention": "linformer", "projected_length": 129}, r"expected 1 to 128 .*got 129"),
        ({"hidden_sise": 64}, "hidden_sise: no such setting. Did you mean 'hidden_size'"),
        ({"encoding": "diet-abs", "rank": 64}, "rank: .*encoding='NAME:rank=...'"),
        (
            {"problem_type": "classification"},
            rf"{OF_TRANSFORMERS}|problem_type: expected one of regression, single_label",
        ),
        ({"projection_sharing": "heads"}, "projection_sharing: expected one of none, head, key-value, layer"),
        ({"encoding": None}, "encoding: expected NAME.*, got None. .*'none'"),
        ({"encoding_options": {"rank": 3}}, "encoding_options: .*Write them there: encoding='diet-abs:rank=...'"),
        ({"segments": "none"}, "segments: it is part of the encoding"),
        ({"attention": "local"}, "window: expected a whole number of at least 1 with attention='local', got None"),
        ({"attention": "local", "window": 0}, "window: expected a whole number of at least 1"),
        ({"window": 8}, "window: expected None with attention='full', got 8. It is a setting of attention='local'"),
        ({"attention": "performer", "attention_probs_dropout_prob": 0.0}, "num_features: expected a whole number"),
        ({"attention": "performer", "num_features": 8}, "attention_probs_dropout_prob: expected 0 with"),
        ({"encoding": "diet-abs:key_length=7"}, "key_length: cannot be set in a model"),
        ({**LINFORMER, "encoding": "diet-abs:key_length=7"}, "key_length: .*Leave it out"),
        ({"head_dim": 32}, "head_dim: no such setting; it is hidden_size / num_attention_heads"),
        ({"rope_theta": 500.0}, "rope_theta: .*encoding='rope:base="),
        ({"pad_token_id": "0"}, r"pad_token_id: expected None or 0 to 30521 \(vocab_size\), got '0'"),
        ({**LINFORMER, "projected_length": 2.5}, r"projected_length: expected 1 to 128 .*got 2.5"),
        ({"initializer_range": float("inf")}, "initializer_range: expected a number of at least 0, got inf"),
    ],
)
def test_what_is_wrong_is_named_before_any_model_is_built(options, message):
    with pytest.raises(WRONG, match=message):
        preset("tiny", **options)


def test_ids_of_other_special_tokens_are_not_taken_for_a_misspelling():
    config = EncoderConfig(cls_token_id=2, sep_token_id=3, mask_token_id=4)
    assert (config.sep_token_id, config.mask_token_id, config.pad_token_id) == (3, 4, 0)


@pytest.mark.parametrize(
    ("kind", "config", "name", "value"),
    [
        (EncoderForMaskedLM, preset("tiny", vocab_size=29), "attention", "linfomer"),
        (EncoderForMaskedLM, preset("tiny", vocab_size=29), "projected_length", 4),
        (EncoderForMaskedLM, preset("tiny", vocab_size=29), "problem_type", "single_label"),
        (EncoderForMaskedLM, preset("tiny", vocab_size=29), "attention_probs_dropout_prob", 1.5),
        (TranslationModel, translation_preset("tiny", vocab_size=29), "norm", "last"),
        (TranslationModel, translation_preset("tiny", vocab_size=29), "encoding", None),
    ],
)
def test_what_is_wrong_is_named_when_a_model_is_loaded_with_it(kind, config, name, value, tmp_path):
    """transformers sets what from_pretrained is given after the configuration was made and checked."""
    kind(config).save_pretrained(tmp_path)
    with pytest.raises(WRONG, match=f"{OF_TRANSFORMERS}|{name}: expected .*got {value!r}"):
        kind.from_pretrained(tmp_path, **{name: value})


def test_rows_for_projected_keys_only_fit_those():
    built = DietAbs(preset("tiny").build()[0].dims, key_length=5)
    assert built.bias(0, 9, 5).dense().shape == (1, 4, 9, 5)
    with pytest.raises(ValueError, match=r"expected 5 mixtures of all positions .*got 9 keys"):
        built.bias(0, 9, 9)
    with pytest.raises(ValueError, match="key_length: expected None"):
        DietAbs(built.dims, key_length=0)


@pytest.mark.parametrize("make", [preset, translation_preset])
def test_settings_that_would_do_nothing_are_refused(make):
    for name, meant in (("num_heads", "num_attention_heads"), ("max_length", "max_position_embeddings")):
        with pytest.raises(ValueError, match=f"{name}: no such setting. Did you mean '{meant}'"):
            make("tiny", **{name: 4})
    with pytest.raises(ValueError, match=r"hidden_act: no such setting\. Expected some of .*hidden_size"):
        make("tiny", hidden_act="relu")
    assert make("tiny", vocab_size=50, output_hidden_states=True).output_hidden_states


def test_a_configuration_knows_what_encodings_call_its_sizes():
    with pytest.raises(ValueError, match=r"num_layers: no such setting\. Did you mean 'num_hidden_layers'"):
        EncoderConfig(num_layers=3)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (TranslationConfig, {"num_layers": 3}, "num_layers: .*'encoder_layers' and 'decoder_layers'"),
        (TranslationConfig, {"encoding": "t5:segments=input"}, "segments: expected none, because a translation model"),
        (TranslationConfig, {"attention": "linformer"}, "attention: this kind of model has no such setting"),
        (TranslationConfig, {"d_model": 64}, "d_model: no such setting. Did you mean 'hidden_size'"),
        (
            TranslationConfig,
            {"activation_function": "gelu"},
            "activation_function: no such setting; here it is always 'relu'",
        ),
        (TranslationConfig, {"hidden_act": "gelu"}, "hidden_act: no such setting; here it is always 'relu'"),
        (EncoderConfig, {"hidden_activation": "relu"}, "hidden_activation: no such setting; here it is always 'gelu'"),
        (EncoderConfig, {"hidden_act": "relu"}, "hidden_act: no such setting; here it is always 'gelu'"),
        (EncoderConfig, {"is_decoder": True}, "is_decoder: no such setting; here it is always False"),
        (EncoderConfig, {"dropout": 0.3}, "dropout: no such setting. Did you mean 'hidden_dropout_prob'"),
        (EncoderConfig, {"norm": "pre"}, "norm: this kind of model has no such setting"),
        (EncoderConfig, {"pad_token_id": -1}, "pad_token_id: expected None or 0 to 30521"),
    ],
)
def test_settings_of_other_models_are_refused_too(kind, options, message):
    with pytest.raises(ValueError, match=message):
        kind(**options)


def test_settings_of_other_models_that_say_what_ours_do_are_taken():
    assert EncoderConfig(hidden_act="gelu", is_decoder=False, position_embedding_type="absolute").hidden_size == 768
