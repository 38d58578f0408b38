"""Rows by their text, and what is built from it."""

import pytest
import torch
from torch.testing import assert_close

from headway.bench.cost.contestant import Contestant, strengthen_weights, with_formula_attention


def build(text, **changes):
    torch.manual_seed(0)
    given = {"length": 24, "dropout": 0.1, "segments": "input", **changes}
    return Contestant(text).build("tiny", **given)


def test_options_go_to_the_encoding_and_sharing_and_segments_to_the_model():
    config = build("diet-abs:rank=6,sharing=layer,segments=per-head").config
    assert config.encoding == "diet-abs:rank=6,sharing=layer,segments=per-head"
    assert build("diet-rel", segments="none").config.encoding == "diet-rel:segments=none"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("diet", "expected one of none, sinusoidal.*, got 'diet'"),
        ("learned+tissa", "got 'tissa'. Did you mean 'tisa'"),
        ("diet-abs:rank", r"expected NAME\[:OPTION=VALUE.*got 'diet-abs:rank'"),
        ("diet-abs:rnk=3", "diet-abs has rank.*got rnk"),
        ("diet-rel:sharing=all", "sharing: expected one of none, head, layer, got 'all'"),
    ],
)
def test_wrong_texts_say_what_is_right(text, message):
    with pytest.raises(ValueError, match=message):
        Contestant(text).check()


def test_theirs_has_the_sizes_of_ours():
    ours, theirs = build("learned"), build("transformers")
    assert theirs.config._attn_implementation == "sdpa"
    count = [sum(p.numel() for p in model.parameters()) for model in (ours, theirs)]
    assert count[0] == count[1]
    assert theirs.config.attention_probs_dropout_prob == ours.config.attention_probs_dropout_prob == 0.1


def test_sequences_may_be_longer_than_the_preset():
    assert build("learned", length=300).config.max_position_embeddings == 300


@pytest.mark.parametrize("text", ["shaw", "diet-abs", "transformers"])
def test_the_plain_copy_is_the_same_model_by_the_formula(text, monkeypatch):
    model = build(text).eval()
    words = torch.randint(5, 100, (2, 24))
    want = model(words).logits
    twin = with_formula_attention(model)
    monkeypatch.setattr("headway.models.context.attention", None)  # ours would call one of these
    monkeypatch.setattr("headway.models.context.self_attention", None)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", None)  # theirs would
    assert_close(twin(words).logits, want, rtol=1e-4, atol=1e-4)
    with pytest.raises(TypeError):
        model(words)


@pytest.mark.parametrize("text", ["diet-rel", "diet-abs", "t5", "tisa", "tupe-rel", "shaw", "transformer-xl"])
def test_a_visible_bias_changes_the_output(text):
    model = build(text).eval()
    strengthen_weights(model, 24)
    words = torch.randint(5, 100, (2, 24))
    want = model(words).logits
    model.encoder.encoding.bias = lambda *args, **kwargs: None
    assert (model(words).logits - want).norm() > 0.05 * want.norm()


def test_encodings_without_a_bias_stay_as_they_were():
    for text in ("none", "learned", "alibi"):
        model = build(text)
        before = [parameter.clone() for parameter in model.encoder.encoding.parameters()]
        strengthen_weights(model, 24)
        assert all(torch.equal(a, b) for a, b in zip(before, model.encoder.encoding.parameters(), strict=True))


@pytest.mark.parametrize("text", ["none", "transformers"])
def test_in_a_model_with_strong_weights_tokens_look_at_one_another(text):
    """Another word far away changes a token's output by more than rounding to half precision does."""
    changes = []
    for lively in (False, True):
        model = build(text).eval()
        if lively:
            strengthen_weights(model, 24)
        words = torch.randint(5, 100, (1, 24))
        other = words.clone()
        other[0, -1] = 500
        a, b = (model.base_model(ids).last_hidden_state[0, 0] for ids in (words, other))
        changes.append(((a - b).norm() / a.norm()).item())
    assert changes[0] < 2**-8 < changes[1]
