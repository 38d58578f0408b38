"""The translation model against transformers' Marian with the same weights, and a cached pass against a whole one."""

from __future__ import annotations

import pytest
import torch
from transformers import MarianConfig, MarianMTModel

from headway.encodings import ENCODINGS
from headway.models.translation import TranslationModel, translation_preset

SIZES = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 20}


def drawn(encoding, **choices):
    torch.manual_seed(0)
    config = translation_preset("tiny", **SIZES, max_position_embeddings=24, encoding=encoding, **choices)
    model = TranslationModel(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def marian_like(model):
    """Marian, which is the same architecture in other words, with this model's weights."""
    config = model.config
    marian = MarianMTModel(
        MarianConfig(
            vocab_size=config.vocab_size,
            d_model=config.hidden_size,
            encoder_layers=config.encoder_layers,
            decoder_layers=config.decoder_layers,
            encoder_attention_heads=config.num_attention_heads,
            decoder_attention_heads=config.num_attention_heads,
            encoder_ffn_dim=config.intermediate_size,
            decoder_ffn_dim=config.intermediate_size,
            max_position_embeddings=config.max_position_embeddings,
            activation_function="relu",
            scale_embedding=True,
            pad_token_id=0,
            eos_token_id=2,
            forced_eos_token_id=2,
            decoder_start_token_id=1,
        )
    )
    marian = marian.double().eval()

    def copy_linear(theirs, weight, bias):
        theirs.weight.copy_(weight.mT)
        theirs.bias.copy_(bias)

    def copy_attention(theirs, projections, output):
        for part, weight, bias in projections:
            copy_linear(getattr(theirs, f"{part}_proj"), weight, bias)
        copy_linear(theirs.out_proj, output.weight, output.bias)

    def split(linear, parts):
        return zip(parts, linear.weight.chunk(len(parts), 1), linear.bias.chunk(len(parts)), strict=True)

    def copy_norm(theirs, ours):
        theirs.weight.copy_(ours.weight)
        theirs.bias.copy_(ours.bias)

    def copy_common(theirs, ours):
        copy_attention(theirs.self_attn, split(ours.attention.qkv, "qkv"), ours.attention.output)
        copy_norm(theirs.self_attn_layer_norm, ours.around_attention.norm)
        copy_linear(theirs.fc1, ours.feed_forward.up.weight, ours.feed_forward.up.bias)
        copy_linear(theirs.fc2, ours.feed_forward.down.weight, ours.feed_forward.down.bias)
        copy_norm(theirs.final_layer_norm, ours.around_feed_forward.norm)

    with torch.no_grad():
        marian.model.shared.weight.copy_(model.encoder.words.weight)
        for theirs, ours in ((marian.model.encoder, model.encoder), (marian.model.decoder, model.decoder)):
            theirs.embed_positions.weight.copy_(ours.encoding.table)
            for their_layer, our_layer in zip(theirs.layers, ours.layers, strict=True):
                copy_common(their_layer, our_layer)
        for theirs, ours in zip(marian.model.decoder.layers, model.decoder.layers, strict=True):
            cross = ours.cross_attention
            projections = [*split(cross.query, "q"), *split(cross.key_value, "kv")]
            copy_attention(theirs.encoder_attn, projections, cross.output)
            copy_norm(theirs.encoder_attn_layer_norm, ours.around_cross_attention.norm)
    return marian


def test_equal_to_marian_with_its_weights():
    model = drawn("learned", layer_norm_eps=1e-5)
    marian = marian_like(model)
    source, target = torch.randint(3, 20, (3, 9)), torch.randint(3, 20, (3, 7))
    mask = (torch.arange(9) < torch.tensor([9, 4, 6])[:, None]).long()
    with torch.no_grad():
        ours = model(source, mask, decoder_input_ids=target, use_cache=False).logits
        theirs = marian(source, attention_mask=mask, decoder_input_ids=target, use_cache=False).logits
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_greedy_equal_to_marians():
    model = drawn("learned", layer_norm_eps=1e-5)
    marian = marian_like(model)
    source = torch.randint(3, 20, (6, 5))
    theirs = marian.generate(source, max_new_tokens=12, num_beams=1, do_sample=False)
    found = model.translate(source, beam=1, max_length_ratio=0, max_length_plus=12)
    for row, hypotheses in zip(theirs.tolist(), found, strict=True):
        words = row[1:]  # after the start token
        assert hypotheses[0].tokens == (words[: words.index(2)] if 2 in words else words)


@pytest.mark.parametrize("name", [*ENCODINGS, "learned+tisa"])
@pytest.mark.parametrize("cross", ["none", "same"])
def test_the_last_row_of_a_whole_pass_is_one_cached_step(name, cross):
    if cross == "same" and set(ENCODINGS.get(name, ENCODINGS["none"]).places) not in ({"scores"}, {"scores", "values"}):
        pytest.skip("not defined across the sides")
    model = drawn(name, cross=cross)
    source, target = torch.randint(3, 20, (3, 6)), torch.randint(3, 20, (3, 8))
    mask = (torch.arange(6) < torch.tensor([6, 2, 5])[:, None]).long()
    with torch.no_grad():
        whole = model(source, mask, decoder_input_ids=target, use_cache=False).logits
        start = model(source, mask, decoder_input_ids=target[:, :3])  # several positions at once, then one by one
        rows, cache = [start.logits], start.past_key_values
        for at in range(3, 8):
            encoded = (start.encoder_last_hidden_state,)
            step = model(
                attention_mask=mask,
                encoder_outputs=encoded,
                decoder_input_ids=target[:, at : at + 1],
                past_key_values=cache,
            )
            rows.append(step.logits)
    torch.testing.assert_close(torch.cat(rows, 1), whole, rtol=1e-10, atol=1e-10)
