"""Tiny models of every family that can be fused, and calls of them with the loss at tokens that are no padding."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import headway as hw

T5_SIZES = {
    "vocab_size": 60,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 40,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "dropout_rate": 0.0,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,  # so that sequences reach the last bucket
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
}


ENCODER_DECODER = ("encoder-decoder", "page", "patches", "features-to-text", "waveform-to-text")
POSITIONS = (  # in names of parameters
    *("relative", "rel_pos", "position_bias", "rel_embeddings", "linear_pos", "pos_bias", "distance_embedding"),
    *("rel_attn.r", "seg_embed", "relative_k_proj", "bias_u", "bias_v", "pe_k", "r_kernel", "r_r_bias", "rel_logits"),
    "rel_attn_embed",
)


@dataclass(frozen=True)
class Tiny:
    """How a small model of a family is made, and which kind of inputs it takes."""

    config: str
    model: str
    sizes: dict[str, Any] = field(default_factory=dict)
    # or decoder, encoder-decoder, page (places of words), boxes (the same in thousandths), patches, image, waveform,
    # waveform-to-text, features, features-to-text, frequencies, segments (more than two), spectrogram,
    # patches-alone (without a decoder)
    kind: str = "encoder"


SWITCH = {"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "num_experts": 2, "router_jitter_noise": 0.0}
ENCODER = {
    "vocab_size": 60,
    "hidden_size": 36,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,  # no power of two
    "intermediate_size": 40,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
LAYOUT = {
    **ENCODER,
    **{"coordinate_size": 4, "shape_size": 10, "max_2d_position_embeddings": 1001, "visual_embed": False},
    **{"rel_pos_bins": 8, "max_rel_pos": 12, "rel_2d_pos_bins": 8, "max_rel_2d_pos": 200, "pad_token_id": 0},
}
MODERN = {
    **{name: size for name, size in ENCODER.items() if not name.endswith("_prob")},
    **dict.fromkeys(("attention_dropout", "embedding_dropout", "mlp_dropout"), 0.0),
    **{"num_hidden_layers": 4, "global_attn_every_n_layers": 2, "local_attention": 8, "reference_compile": False},
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0),
}
CLIP = {
    **{name: size for name, size in ENCODER.items() if not name.endswith("_prob")},
    **{"attention_dropout": 0.0, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 1, "initializer_factor": 5.0},
}
DECODER = {
    "vocab_size": 60,
    "hidden_size": 36,
    "initializer_range": 0.3,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
MPT = {
    **{"vocab_size": 60, "d_model": 36, "n_heads": 6, "n_layers": 2, "max_seq_len": 64, "initializer_range": 0.3},
    **{"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0},
}
FALCON = {
    **DECODER,
    **{"num_hidden_layers": 2, "num_attention_heads": 6, "alibi": True, "multi_query": False},
    **{"parallel_attn": False, "bias": True, "attn_implementation": "sdpa"},  # eager adds ALiBi twice
}
IMAGE = {"image_size": 16, "patch_size": 4, "initializer_range": 0.3, "hidden_dropout_prob": 0.0}
BEIT = {
    **{name: size for name, size in ENCODER.items() if name not in ("vocab_size", "max_position_embeddings")},
    **IMAGE,
    "drop_path_rate": 0.0,
}
SWIN = {
    **IMAGE,
    **{"image_size": 32, "window_size": 4, "embed_dim": 12, "depths": [2, 2], "num_heads": [3, 6]},
    **{"drop_path_rate": 0.0, "attention_probs_dropout_prob": 0.0},
}
SWIN2SR = {
    **{name: size for name, size in SWIN.items() if name not in ("hidden_dropout_prob", "patch_size")},
    **{"image_size": 16, "patch_size": 1, "depths": [2], "num_heads": [3], "mlp_ratio": 2.0, "drop_rate": 0.0},
}
CLAP = {
    **{name: size for name, size in SWIN.items() if name not in ("image_size", "embed_dim", "num_heads")},
    **{"spec_size": 32, "num_mel_bins": 8, "patch_stride": [4, 4], "patch_embeds_hidden_size": 12},
    **{"num_attention_heads": [3, 6], "hidden_size": 24, "enable_fusion": False},
}
UDOP = {
    **T5_SIZES,
    "max_2d_position_embeddings": 100,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
}
PIX_TEXT = {
    **{name: size for name, size in T5_SIZES.items() if name not in ("d_model", "num_decoder_layers")},
    "hidden_size": 32,
}
PIX_VISION = {
    "hidden_size": 32,
    "patch_embed_hidden_size": 12,
    "d_ff": 40,
    "d_kv": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "seq_len": 24,
    "initializer_range": 0.5,
}
SPEECH = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "initializer_range": 0.3,
    "conv_depthwise_kernel_size": 5,
    **dict.fromkeys(("hidden_dropout", "activation_dropout", "attention_dropout", "feat_proj_dropout"), 0.0),
    **dict.fromkeys(("final_dropout", "conformer_conv_dropout", "layerdrop", "mask_time_prob"), 0.0),
}
CONFORMER = {
    **SPEECH,
    **{"conv_dim": (8, 8), "conv_kernel": (3, 2), "conv_stride": (2, 2), "feat_extract_norm": "layer"},
    **{"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "max_source_positions": 10},
}
WAVLM = {
    **{name: size for name, size in CONFORMER.items() if name != "max_source_positions"},
    **{"num_buckets": 8, "max_bucket_distance": 12},
}
W2V_BERT = {
    **SPEECH,
    **{"feature_projection_input_dim": 12, "max_source_positions": 10},
    **{"left_max_position_embeddings": 6, "right_max_position_embeddings": 2},  # so that sequences reach both ends
}
SEAMLESS = {
    **{name: size for name, size in W2V_BERT.items() if "max_position" not in name},
    **{"vocab_size": 60, "decoder_start_token_id": 3, "pad_token_id": 0, "initializer_range": 0.3},
    **dict.fromkeys(("speech_encoder_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("speech_encoder_attention_heads", "encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("speech_encoder_intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim"), 40),
    **dict.fromkeys(("t2u_encoder_ffn_dim", "t2u_decoder_ffn_dim"), 40),
    **dict.fromkeys(("speech_encoder_dropout", "speech_encoder_layerdrop", "dropout", "adaptor_dropout"), 0.0),
    **dict.fromkeys(("encoder_layerdrop", "decoder_layerdrop"), 0.0),
    **{"adaptor_kernel_size": 3, "adaptor_stride": 2, "max_position_embeddings": 64},
}
SEAMLESS_V2 = {
    **SEAMLESS,
    **{"left_max_position_embeddings": 6, "right_max_position_embeddings": 2},
    "attn_implementation": "sdpa",  # eager adds its boolean mask of chunks to the scores
}
PARAKEET = {
    **{name: SPEECH[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")},
    **{"num_mel_bins": 12, "subsampling_factor": 2, "subsampling_conv_channels": 4, "conv_kernel_size": 5},
    **dict.fromkeys(("dropout", "layerdrop", "activation_dropout", "attention_dropout"), 0.0),
    "initializer_range": 0.3,
}
SPEECHT5 = {
    **{name: size for name, size in CONFORMER.items() if name not in ("max_source_positions", "num_hidden_layers")},
    **{"vocab_size": 60, "encoder_layers": 2, "decoder_layers": 2, "positional_dropout": 0.0},
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 40),
    **dict.fromkeys(("encoder_layerdrop", "decoder_layerdrop", "mask_feature_prob"), 0.0),
    **{"encoder_max_relative_position": 6, "decoder_start_token_id": 2, "pad_token_id": 1, "max_text_positions": 40},
}
FUNNEL = {
    **{"vocab_size": 60, "block_sizes": [1, 2, 1], "block_repeats": [1, 1, 2], "num_decoder_layers": 1},
    **{"d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 40, "initializer_range": 0.3, "initializer_std": 0.3},
    **dict.fromkeys(("hidden_dropout", "attention_dropout", "activation_dropout"), 0.0),
}
INKLING = {
    **{"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "layer_types": ["hybrid", "hybrid_sliding"]},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "rel_extent": 6, "d_rel": 4},
    **{"swa_num_attention_heads": 6, "swa_num_key_value_heads": 3, "swa_head_dim": 8, "sliding_window_size": 5},
    "intermediate_size": 40,
    **{"mlp_layer_types": ["dense", "dense"], "initializer_range": 0.3, "pad_token_id": 0, "log_scaling_n_floor": 4},
}
XLNET = {
    **{"vocab_size": 60, "d_model": 36, "n_layer": 2, "n_head": 6, "d_inner": 40, "initializer_range": 0.3},
    **{"dropout": 0.0, "summary_last_dropout": 0.0},
}
DEBERTA = {**ENCODER, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": 5}
DEBERTA_V2 = {
    **DEBERTA,
    **{"max_relative_positions": 20, "position_buckets": 8},  # so that sequences reach the last bucket
    **{"norm_rel_ebd": "layer_norm", "conv_kernel_size": 3, "position_biased_input": False},
}
SEW_D = {
    **{name: size for name, size in DEBERTA_V2.items() if not name.endswith(("_prob", "_input", "kernel_size"))},
    **{name: size for name, size in CONFORMER.items() if name.startswith(("conv_", "num_conv", "mask", "final"))},
    **dict.fromkeys(("hidden_dropout", "activation_dropout", "attention_dropout"), 0.0),
    **{"share_att_key": True, "squeeze_factor": 1, "hidden_act": "gelu"},
}
TINY = {
    "t5": Tiny("T5Config", "T5ForConditionalGeneration", T5_SIZES, "encoder-decoder"),
    "mt5": Tiny("MT5Config", "MT5ForConditionalGeneration", T5_SIZES, "encoder-decoder"),
    "umt5": Tiny("UMT5Config", "UMT5ForConditionalGeneration", T5_SIZES, "encoder-decoder"),
    "switch_transformers": Tiny(
        "SwitchTransformersConfig",
        "SwitchTransformersForConditionalGeneration",
        {**T5_SIZES, **SWITCH},
        "encoder-decoder",
    ),
    "pop2piano": Tiny(
        "Pop2PianoConfig",
        "Pop2PianoForConditionalGeneration",
        {**T5_SIZES, "composer_vocab_size": 3},
        "encoder-decoder",
    ),
    "udop": Tiny("UdopConfig", "UdopForConditionalGeneration", UDOP, "page"),
    "pix2struct": Tiny(
        "Pix2StructConfig",
        "Pix2StructForConditionalGeneration",
        {"text_config": PIX_TEXT, "vision_config": PIX_VISION},
        "patches",
    ),
    "pix2struct_vision_model": Tiny("Pix2StructVisionConfig", "Pix2StructVisionModel", PIX_VISION, "patches-alone"),
    "longt5": Tiny(
        "LongT5Config",
        "LongT5ForConditionalGeneration",
        {**T5_SIZES, "local_radius": 4, "encoder_attention_type": "local"},
        "encoder-decoder",
    ),
    "longt5-wide": Tiny(  # a window wider than most sequences
        "LongT5Config",
        "LongT5EncoderModel",
        {**T5_SIZES, "local_radius": 20, "encoder_attention_type": "local"},
    ),
    "longt5-global": Tiny(
        "LongT5Config",
        "LongT5ForConditionalGeneration",
        {**T5_SIZES, "local_radius": 4, "global_block_size": 4, "encoder_attention_type": "transient-global"},
        "encoder-decoder",
    ),
    "mpnet": Tiny("MPNetConfig", "MPNetModel", {**ENCODER, "relative_attention_num_buckets": 32}),
    "deberta": Tiny("DebertaConfig", "DebertaForMaskedLM", DEBERTA),
    "deberta-c2p": Tiny("DebertaConfig", "DebertaForTokenClassification", {**DEBERTA, "pos_att_type": ["c2p"]}),
    "deberta-absolute": Tiny("DebertaConfig", "DebertaModel", {**DEBERTA, "relative_attention": False}),
    "deberta-v2": Tiny("DebertaV2Config", "DebertaV2ForMaskedLM", {**DEBERTA_V2, "type_vocab_size": 2}),
    "deberta-v2-p2c": Tiny("DebertaV2Config", "DebertaV2Model", {**DEBERTA_V2, "pos_att_type": ["p2c"]}),
    "deberta-v2-clipped": Tiny(
        "DebertaV2Config", "DebertaV2Model", {**DEBERTA_V2, "position_buckets": -1, "max_relative_positions": 5}
    ),
    "deberta-v2-absolute": Tiny("DebertaV2Config", "DebertaV2Model", {**DEBERTA_V2, "relative_attention": False}),
    "deberta-v3": Tiny(
        "DebertaV2Config", "DebertaV2ForTokenClassification", {**DEBERTA_V2, "share_att_key": True, "legacy": False}
    ),
    "sew-d": Tiny("SEWDConfig", "SEWDForCTC", SEW_D, "waveform"),
    "layoutlmv3": Tiny("LayoutLMv3Config", "LayoutLMv3Model", LAYOUT, "boxes"),
    "layoutlmv3-order": Tiny(
        "LayoutLMv3Config", "LayoutLMv3Model", {**LAYOUT, "has_spatial_attention_bias": False}, "boxes"
    ),
    "bloom": Tiny("BloomConfig", "BloomForCausalLM", {**DECODER, "n_layer": 2, "n_head": 6}, "decoder"),
    "mpt": Tiny("MptConfig", "MptForCausalLM", MPT, "decoder"),
    "falcon": Tiny("FalconConfig", "FalconForCausalLM", FALCON, "decoder"),
    "falcon-multi-query": Tiny("FalconConfig", "FalconForCausalLM", {**FALCON, "multi_query": True}, "decoder"),
    "xlnet": Tiny("XLNetConfig", "XLNetModel", XLNET, "segments"),
    "xlnet-causal": Tiny("XLNetConfig", "XLNetLMHeadModel", {**XLNET, "attn_type": "uni"}, "segments"),
    "funnel": Tiny("FunnelConfig", "FunnelModel", FUNNEL, "segments"),
    "funnel-pooled-together": Tiny(
        "FunnelConfig",
        "FunnelModel",
        {**FUNNEL, "separate_cls": False, "truncate_seq": False, "pool_q_only": False},
        "segments",
    ),
    "funnel-factorized": Tiny("FunnelConfig", "FunnelModel", {**FUNNEL, "attention_type": "factorized"}, "segments"),
    "inkling": Tiny(
        "InklingConfig",
        "InklingForConditionalGeneration",
        {
            "text_config": INKLING,
            "audio_config": {"n_mel_bins": 4, "mel_vocab_size": 4, "text_hidden_size": 32},
            "vision_config": {"hidden_size": 8, "num_hidden_layers": 2, "text_hidden_size": 32, "patch_size": 4},
        },
        "decoder",
    ),
    "inkling_text": Tiny("InklingTextConfig", "InklingForCausalLM", INKLING, "decoder"),
    "bert": Tiny("BertConfig", "BertForMaskedLM", ENCODER),
    "bert-decoder": Tiny("BertConfig", "BertLMHeadModel", {**ENCODER, "is_decoder": True}, "decoder"),
    "roberta": Tiny("RobertaConfig", "RobertaForMaskedLM", ENCODER),
    "xlm-roberta": Tiny("XLMRobertaConfig", "XLMRobertaForMaskedLM", ENCODER),
    "camembert": Tiny("CamembertConfig", "CamembertForMaskedLM", ENCODER),
    "electra": Tiny("ElectraConfig", "ElectraForMaskedLM", ENCODER),
    "albert": Tiny("AlbertConfig", "AlbertForMaskedLM", ENCODER),
    "distilbert": Tiny(
        "DistilBertConfig",
        "DistilBertForMaskedLM",
        {"vocab_size": 60, "dim": 36, "n_layers": 2, "n_heads": 6, "hidden_dim": 40, "dropout": 0.0}
        | {"attention_dropout": 0.0},
    ),
    "xlm-roberta-xl": Tiny("XLMRobertaXLConfig", "XLMRobertaXLForMaskedLM", ENCODER),
    "data2vec-text": Tiny("Data2VecTextConfig", "Data2VecTextForMaskedLM", ENCODER),
    "bert-generation": Tiny("BertGenerationConfig", "BertGenerationEncoder", {**ENCODER, "pad_token_id": 0}),
    "ernie": Tiny("ErnieConfig", "ErnieForMaskedLM", ENCODER),
    "modernbert": Tiny("ModernBertConfig", "ModernBertForMaskedLM", MODERN),
    "esm": Tiny("EsmConfig", "EsmForMaskedLM", {**ENCODER, "position_embedding_type": "rotary", "pad_token_id": 0}),
    "layoutlm": Tiny("LayoutLMConfig", "LayoutLMForMaskedLM", ENCODER, "boxes"),
    "clip_text_model": Tiny("CLIPTextConfig", "CLIPTextModel", CLIP),
    "beit": Tiny("BeitConfig", "BeitModel", {**BEIT, "use_relative_position_bias": True}, "image"),
    "beit-shared": Tiny("BeitConfig", "BeitModel", {**BEIT, "use_shared_relative_position_bias": True}, "image"),
    "data2vec-vision": Tiny(
        "Data2VecVisionConfig", "Data2VecVisionModel", {**BEIT, "use_relative_position_bias": True}, "image"
    ),
    "data2vec-vision-shared": Tiny(
        "Data2VecVisionConfig",
        "Data2VecVisionModel",
        {**BEIT, "use_relative_position_bias": True, "use_shared_relative_position_bias": True},
        "image",
    ),
    "swinv2": Tiny("Swinv2Config", "Swinv2Model", SWIN, "image"),
    "swin2sr": Tiny("Swin2SRConfig", "Swin2SRModel", SWIN2SR, "image"),
    "donut-swin": Tiny("DonutSwinConfig", "DonutSwinModel", SWIN, "image"),
    "maskformer-swin": Tiny("MaskFormerSwinConfig", "MaskFormerSwinModel", SWIN, "image"),
    "clap_audio_model": Tiny("ClapAudioConfig", "ClapAudioModel", CLAP, "spectrogram"),
    "swin": Tiny("SwinConfig", "SwinModel", SWIN, "image"),
    "wav2vec2-conformer": Tiny("Wav2Vec2ConformerConfig", "Wav2Vec2ConformerModel", CONFORMER, "waveform"),
    "wav2vec2-conformer-rotary": Tiny(
        "Wav2Vec2ConformerConfig",
        "Wav2Vec2ConformerModel",
        {**CONFORMER, "position_embeddings_type": "rotary"},
        "waveform",
    ),
    "wavlm": Tiny("WavLMConfig", "WavLMModel", WAVLM, "waveform"),
    "wavlm-stable": Tiny("WavLMConfig", "WavLMModel", {**WAVLM, "do_stable_layer_norm": True}, "waveform"),
    "wav2vec2-bert": Tiny("Wav2Vec2BertConfig", "Wav2Vec2BertModel", W2V_BERT, "features"),
    "wav2vec2-bert-relative": Tiny(
        "Wav2Vec2BertConfig",
        "Wav2Vec2BertModel",
        {**W2V_BERT, "position_embeddings_type": "relative"},
        "features",
    ),
    "wav2vec2-bert-adapter": Tiny(
        "Wav2Vec2BertConfig",
        "Wav2Vec2BertModel",
        {**W2V_BERT, "position_embeddings_type": "rotary", "add_adapter": True},
        "features",
    ),
    "seamless_m4t": Tiny("SeamlessM4TConfig", "SeamlessM4TForSpeechToText", SEAMLESS, "features-to-text"),
    "seamless_m4t-text": Tiny("SeamlessM4TConfig", "SeamlessM4TForTextToText", SEAMLESS, "encoder-decoder"),
    "seamless_m4t_v2": Tiny("SeamlessM4Tv2Config", "SeamlessM4Tv2ForSpeechToText", SEAMLESS_V2, "features-to-text"),
    "seamless_m4t_v2-chunks": Tiny(
        "SeamlessM4Tv2Config",
        "SeamlessM4Tv2ForSpeechToText",
        {**SEAMLESS_V2, "speech_encoder_chunk_size": 5, "speech_encoder_left_chunk_num": 1},
        "features-to-text",
    ),
    "parakeet_encoder": Tiny("ParakeetEncoderConfig", "ParakeetEncoder", PARAKEET, "frequencies"),
    "parakeet_ctc": Tiny(
        "ParakeetCTCConfig",
        "ParakeetForCTC",
        {"encoder_config": {"model_type": "parakeet_encoder", **PARAKEET}, "vocab_size": 20, "pad_token_id": 19},
        "frequencies",
    ),
    **{
        f"parakeet_{kind.lower()}": Tiny(
            f"Parakeet{kind}Config",
            f"ParakeetFor{kind}",
            {
                **{"encoder_config": {"model_type": "parakeet_encoder", **PARAKEET}, "vocab_size": 60},
                **{"decoder_hidden_size": 16, "num_decoder_layers": 1, "blank_token_id": 59},
            },
            "frequencies-to-text",
        )
        for kind in ("RNNT", "TDT")
    },
    "speecht5": Tiny("SpeechT5Config", "SpeechT5ForSpeechToText", SPEECHT5, "waveform-to-text"),
    "t5-encoder": Tiny("T5Config", "T5EncoderModel", T5_SIZES, "encoder"),
}


def tiny_model(name: str, kind: str | None = None, **changes: Any) -> Any:
    """Return a random model in float64 with transformers' eager attention; its bias tables are random too.

    `kind` is a class of transformers in place of the one of the table.
    """
    made = TINY[name]
    torch.manual_seed(0)
    config = getattr(transformers, made.config)(**{"attn_implementation": "eager", **made.sizes, **changes})
    model = getattr(transformers, kind or made.model)(config).double().eval()
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if any(word in parameter_name for word in POSITIONS):
                parameter.copy_(torch.randn(parameter.shape, generator=draw, dtype=torch.float64))
    return model


@dataclass
class Call:
    """Inputs of a model, and how its output becomes numbers to compare."""

    inputs: dict[str, Any]
    keep: Tensor | None  # (B, L), True where the output is compared

    def compared(self, model: Any) -> Tensor:
        output = model(**self.inputs)
        main = output.logits if "logits" in output else output.last_hidden_state
        return main if self.keep is None else main[self.keep]


def call_of(name: str, batch: int, length: int, padding: str, seed: int = 2) -> Call:
    """Return random inputs; `padding` is none, right or left, and leaves each sequence at least two tokens."""
    if transformers.__version__.startswith("5.17.") and name.startswith(("esm", "parakeet")):
        pytest.skip("transformers 5.17 cannot run it in float64: it multiplies frequencies with float32 positions")
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, 60, (batch, length), generator=draw)
    keep = torch.ones(batch, length, dtype=torch.bool)
    if padding != "none":
        for row in range(batch):
            count = int(torch.randint(0, max(length - 1, 1), (), generator=draw))
            if count:
                keep[row, slice(0, count) if padding == "left" else slice(length - count, None)] = False
    if TINY[name].kind == "image":
        size = TINY[name].sizes["image_size"]
        return Call({"pixel_values": torch.randn(batch, 3, size, size, generator=draw, dtype=torch.float64)}, None)
    if TINY[name].kind == "spectrogram":
        return Call({"input_features": torch.randn(batch, 1, 60, 8, generator=draw, dtype=torch.float64)}, None)
    inputs: dict[str, Any] = {"input_ids": ids}
    if padding != "none":
        inputs["attention_mask"] = keep.long()
    if TINY[name].kind == "page":
        inputs["bbox"] = torch.rand(batch, length, 4, generator=draw, dtype=torch.float64).sort(-1).values
    if TINY[name].kind == "segments":
        inputs["token_type_ids"] = torch.randint(0, 3, (batch, length), generator=draw)
    if TINY[name].kind.startswith("waveform"):
        samples = 4 * length + 1  # of which two convolutions make `length` frames
        inputs["input_values"] = torch.randn(batch, samples, generator=draw, dtype=torch.float64)
        if padding != "none":  # the model counts what is no padding, and takes that many frames from the left
            kept = 4 * keep.sum(1, keepdim=True) + 1
            inputs["attention_mask"] = (torch.arange(samples) < kept).long()
            keep = torch.arange(length) < keep.sum(1, keepdim=True)
    if TINY[name].kind.startswith("features"):
        width = TINY[name].sizes["feature_projection_input_dim"]
        inputs["input_features"] = torch.randn(batch, length, width, generator=draw, dtype=torch.float64)
    if TINY[name].kind.startswith("frequencies"):
        inputs["input_features"] = torch.randn(batch, 2 * length, 12, generator=draw, dtype=torch.float64)
        if padding != "none":  # as above
            kept = 2 * keep.sum(1, keepdim=True)
            inputs["attention_mask"] = (torch.arange(2 * length) < kept).long()
            keep = torch.arange(length) < keep.sum(1, keepdim=True)
    if TINY[name].kind.startswith(("waveform", "features", "frequencies")):
        del inputs["input_ids"]
    if TINY[name].kind == "frequencies-to-text":  # one token after every frame
        inputs["decoder_input_ids"] = ids[:, :1]
    if TINY[name].sizes.get("add_adapter"):  # its output is shorter
        return Call(inputs, None)
    if TINY[name].kind == "boxes":
        inputs["bbox"] = torch.randint(0, 1001, (batch, length, 4), generator=draw).sort(-1).values
    if TINY[name].kind.startswith("patches"):
        del inputs["input_ids"]
        patches = torch.randn(batch, length, 12, generator=draw, dtype=torch.float64)
        places = (torch.arange(length, dtype=torch.float64) % 23)[None, :, None].expand(batch, length, 2)
        inputs["flattened_patches"] = torch.cat([places, patches], -1)
    if TINY[name].kind in ENCODER_DECODER:
        inputs["decoder_input_ids"] = torch.randint(2, 60, (batch, 9), generator=draw)
        return Call(inputs, None)
    return Call(inputs, keep)


def pair(name: str, **changes: Any) -> tuple[Any, Any]:
    """Return a model and a copy of it that is fused."""
    model = tiny_model(name, **changes)
    return model, hw.fuse(copy.deepcopy(model))
