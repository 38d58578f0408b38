"""How close, and loss by length: against sums by hand."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from headway.pretrained.conversion import compare, convert, length_figure, loss_by_length, save_figure
from headway.pretrained.conversion.comparison import masked_loss
from headway.pretrained.conversion.samples import draw_words, join_texts, mask_words, separate_texts


def test_rows_hold_the_text_in_order_between_special_tokens(tokenizer, texts):
    stream = [token for text in texts for token in tokenizer(text, add_special_tokens=False)["input_ids"]]
    rows = join_texts(tokenizer, texts, 22, 5)
    assert rows.shape == (5, 22)
    assert (rows[:, 0] == 2).all() and (rows[:, -1] == 3).all()
    assert torch.equal(rows[:, 1:-1].flatten(), torch.tensor(stream))  # 100 tokens in 5 rows of 20: no word twice
    assert join_texts(tokenizer, texts, 82, 5).shape == (1, 82)
    overlapping = join_texts(tokenizer, texts, 82, 5, overlapping=True)
    assert overlapping.shape == (5, 82) and overlapping[1, 1:-1].tolist() == stream[5:85]
    assert join_texts(tokenizer, texts, 512, 5).shape == (1, 102)


def test_texts_are_read_by_themselves(tokenizer, texts):
    rows, mask = separate_texts(tokenizer, texts, 32, 9)
    assert mask.sum(1).tolist() == [32, 22, 9, 32, 15]  # 50 words are 30 and 20
    assert (rows[mask == 0] == 0).all()
    assert rows[2, :9].tolist() == [2, *tokenizer(texts[1], add_special_tokens=False)["input_ids"], 3]


def test_words_are_drawn_with_a_seed_and_are_no_special_tokens(tokenizer):
    rows = draw_words(60, tokenizer, 30, 4, seed=0)
    assert torch.equal(rows, draw_words(60, tokenizer, 30, 4, seed=0))
    assert not torch.equal(rows, draw_words(60, tokenizer, 30, 4, seed=1))
    assert (rows[:, 1:-1] >= 5).all() and rows[0, 0] == 2 and rows[0, -1] == 3


def test_too_little_text_is_told(tokenizer, texts):
    for text in ([], [""], ["w1 w2"]):
        with pytest.raises(ValueError, match="texts: expected at least 16 tokens of text"):
            join_texts(tokenizer, text, 20, 2)
    with pytest.raises(TypeError, match="got one string"):
        join_texts(tokenizer, texts[0], 20, 2)


def test_a_row_has_room_for_a_word(tokenizer, texts):
    for rows in (join_texts, separate_texts):
        with pytest.raises(ValueError, match="length: expected at least 3 tokens in a row, of which two are special"):
            rows(tokenizer, texts, 2, 2)


def test_words_that_the_model_does_not_have_are_told(tiny, tokenizer, texts):
    model = tiny("bert", "ForMaskedLM", vocab_size=30)
    said = r"tokenizer: expected ids below 30 \(the model's words\), got \d+\. Give the tokenizer the model was trained"
    with pytest.raises(ValueError, match=said):
        convert(model, "tisa", start="fit", tokenizer=tokenizer, texts=texts)
    with pytest.raises(ValueError, match=said):
        compare(model, convert(model, "tisa"), tokenizer, texts)
    with pytest.raises(ValueError, match=said):
        loss_by_length(model, tokenizer, texts, [16])


def test_loss_is_the_mean_over_masked_words(tiny, tokenizer, texts):
    model = tiny("bert", "ForMaskedLM")
    rows, mask = separate_texts(tokenizer, texts, 20, 9)
    inputs, labels = mask_words(rows, tokenizer, seed=0)
    changed = inputs != rows
    assert torch.equal(changed, labels != -100) and (inputs[changed] == 4).all() and changed.any(1).all()
    assert (rows[changed] >= 5).all()
    total, count = 0.0, 0
    for row, own, wanted in zip(inputs, mask, labels, strict=True):
        logits = model(row[None, : own.sum()]).logits[0]
        for place in (wanted != -100).nonzero()[:, 0]:
            total += float(F.cross_entropy(logits[place].detach(), wanted[place]))
            count += 1
    assert masked_loss(model, inputs, labels, mask) == pytest.approx(total / count, rel=1e-5)


def test_a_supplement_at_zero_is_no_distance_away(tiny, tokenizer, texts):
    model = tiny("bert", "ForMaskedLM").train()
    closeness = compare(model, convert(model, "tisa"), tokenizer, texts, length=20)
    assert model.training
    assert closeness.relative_error < 1e-12 and closeness.cosine == pytest.approx(1)
    assert closeness.text_cosine == pytest.approx(1) and max(closeness.score_errors) < 1e-12
    assert closeness.loss_after == pytest.approx(closeness.loss_before)
    assert closeness.rows == 7 and closeness.length == 20


def test_distances_by_hand(tiny, tokenizer, texts, randomised):
    model = tiny("albert")
    converted = randomised(convert(model, "diet-rel", start="random"))
    closeness = compare(model, converted, tokenizer, texts, length=20)
    assert closeness.loss_before is None and closeness.loss_after is None
    rows, mask = separate_texts(tokenizer, texts, 20, 32)
    squares, norms, cosines = 0.0, 0.0, []
    for row, own in zip(rows, mask, strict=True):
        one, other = (each(row[None, : own.sum()]).last_hidden_state[0].detach() for each in (converted, model))
        squares += float(((one - other) ** 2).sum())
        norms += float((other**2).sum())
        cosines += [float(a @ b / (a.norm() * b.norm())) for a, b in zip(one, other, strict=True)]
    assert closeness.relative_error == pytest.approx((squares / norms) ** 0.5, rel=1e-6)
    assert closeness.cosine == pytest.approx(sum(cosines) / len(cosines), rel=1e-6)
    assert len(closeness.score_errors) == 6
    bias = converted.position_bias.encoding.bias(0, 20, 20).dense()[0].detach()
    x = model.encoder.embedding_hidden_mapping_in(model.embeddings(join_texts(tokenizer, texts, 20, 32)))
    attention = model.encoder.albert_layer_groups[0].albert_layers[0].attention
    q, k = (part(x).mean(0).view(20, 4, 8).transpose(0, 1).detach() for part in (attention.query, attention.key))
    scores = q @ k.transpose(1, 2) / 8**0.5
    error = (bias - bias.mean(-1, keepdim=True)).norm() / (scores - scores.mean(-1, keepdim=True)).norm()
    assert closeness.score_errors[0] == pytest.approx(float(error), rel=1e-6)


@pytest.mark.parametrize("mode", ["supplement", "replace"])
def test_a_bias_with_fewer_positions_than_the_model(tiny, tokenizer, texts, mode):
    model = tiny("bert", "ForMaskedLM")
    short = convert(model, "diet-abs", mode=mode, start="zero", max_length=12)
    assert compare(model, short, tokenizer, texts, length=20).length == 12
    assert loss_by_length(short, tokenizer, texts, [12, 13])[13] is None


def test_text_of_unknown_words_alone_is_refused(tokenizer):
    with pytest.raises(ValueError, match="expected words that the tokenizer knows, got none"):
        mask_words(torch.full((2, 9), tokenizer.unk_token_id), tokenizer, 0)


def test_loss_by_length_stops_where_the_positions_do(tiny, tokenizer, texts, tmp_path):
    model = tiny("roberta", "ForMaskedLM")
    converted = convert(model, "diet-rel", mode="replace", start="zero")
    before = loss_by_length(model, tokenizer, texts, [10, 24, 25])
    after = loss_by_length(converted, tokenizer, texts, [10, 24, 25, 60])
    assert before[25] is None and before[24] > 0 and all(loss > 0 for loss in after.values())
    short = convert(model, "diet-abs", mode="replace", start="zero")
    assert loss_by_length(short, tokenizer, texts, [25]) == {25: None}
    rows = join_texts(tokenizer, texts, 60, 99)
    draws = math.ceil(2000 / (0.15 * rows.numel()))
    each = [masked_loss(converted, *mask_words(rows, tokenizer, seed)) for seed in range(draws)]
    assert after[60] == pytest.approx(sum(each) / len(each))
    for path in save_figure(length_figure({"original": before, "converted": after}, positions=24), tmp_path / "losses"):
        assert path.stat().st_size > 1000


def test_loss_by_length_says_what_it_needs(tiny, tokenizer, texts):
    with pytest.raises(ValueError, match="ForMaskedLM"):
        loss_by_length(tiny("bert"), tokenizer, texts, [10])
    model = convert(tiny("bert", "ForMaskedLM"), "alibi", mode="replace")
    with pytest.raises(ValueError, match="they have 102 tokens, too few for one row of length 400"):
        loss_by_length(model, tokenizer, texts, [400])
    with pytest.raises(ValueError, match="lengths: expected one or more"):
        loss_by_length(model, tokenizer, texts, [])


def test_padding_is_no_word_whatever_fills_it(tokenizer):
    rows = torch.full((4, 20), 9)
    mask = (torch.arange(20) < torch.tensor([20, 12, 5, 3])[:, None]).long()
    for seed in range(20):
        inputs, labels = mask_words(rows, tokenizer, seed, mask)
        assert not ((labels != -100) & (mask == 0)).any() and (labels != -100).any(1).all()
        assert torch.equal(inputs[mask == 0], rows[mask == 0])
