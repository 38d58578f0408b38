"""Decoding with a cache, in batches, against searches written as loops over whole forward passes in float64."""

from __future__ import annotations

import itertools

import pytest
import torch

from headway.encodings import ENCODINGS
from headway.models.translation import TranslationModel, translation_preset

END, START = 2, 1


def model_of(encoding="shaw", *, vocab=12, seed=0, **choices):
    """A small model in float64 whose tables are all drawn large, so that position matters."""
    torch.manual_seed(seed)
    config = translation_preset(
        "tiny",
        **{"vocab_size": vocab, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
        | {"max_position_embeddings": 40, "encoding": encoding, **choices},
    )
    model = TranslationModel(config).double().eval()
    with torch.no_grad():
        for parameter in (*model.decoder.parameters(), *model.encoder.encoding.parameters()):
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def next_log_probabilities(model, source, words):
    """Log-probabilities of the next word, from a whole pass without a cache or padding."""
    with torch.no_grad():
        target = torch.tensor([[START, *words]])
        logits = model(torch.tensor([source]), decoder_input_ids=target, use_cache=False).logits
    return logits[0, -1].log_softmax(-1).tolist()


def penalty(length, alpha):
    return ((5 + length) / 6) ** alpha


def beam_by_hand(model, source, *, beam, n_best, alpha, limit):
    """2 * beam best continuations, those that end are finished, the best others go on; no early stopping."""
    live, finished = [((), 0.0)], []
    for length in range(1, limit + 1):
        grown = []
        for words, total in live:
            for word, gain in enumerate(next_log_probabilities(model, source, words)):
                if length < limit or word == END:
                    grown.append(((*words, word), total + gain))
        grown.sort(key=lambda pair: -pair[1])
        best = grown[: 2 * beam]
        finished += [(words[:-1], total, total / penalty(length, alpha)) for words, total in best if words[-1] == END]
        live = [pair for pair in best if pair[0][-1] != END][:beam]
    finished.sort(key=lambda entry: -entry[2])
    return finished[:n_best]


def greedy_by_hand(model, source, *, alpha, limit):
    words, total = (), 0.0
    for length in range(1, limit + 1):
        gains = next_log_probabilities(model, source, words)
        word = END if length == limit else max(range(len(gains)), key=gains.__getitem__)
        total += gains[word]
        if word == END:
            return [(words, total, total / penalty(length, alpha))]
        words = (*words, word)


def batch_of(sources, pad=0):
    longest = max(map(len, sources))
    ids = torch.tensor([source + [pad] * (longest - len(source)) for source in sources])
    mask = torch.tensor([[1] * len(source) + [0] * (longest - len(source)) for source in sources])
    return ids, mask


def check(found, expected):
    assert [tuple(h.tokens) for h in found] == [words for words, _, _ in expected]
    assert [h.log_probability for h in found] == pytest.approx([total for _, total, _ in expected], abs=1e-9)
    assert [h.score for h in found] == pytest.approx([score for _, _, score in expected], abs=1e-9)


SOURCES = [[5, 3, 7, 8, 4, 2], [6, 2], [9, 9, 3, 2]]


@pytest.mark.parametrize("name", [*ENCODINGS, "learned+tisa"])
@pytest.mark.parametrize("beam", [1, 4])
def test_equal_to_a_loop_over_whole_passes(name, beam):
    model = model_of(name)
    found = model.translate(*batch_of(SOURCES), beam=beam, n_best=min(beam, 3), max_length_plus=3)
    for source, hypotheses in zip(SOURCES, found, strict=True):
        limit = len(source) + 3
        if beam == 1:
            expected = greedy_by_hand(model, source, alpha=0.6, limit=limit)
        else:
            expected = beam_by_hand(model, source, beam=beam, n_best=3, alpha=0.6, limit=limit)
        check(hypotheses, expected)


@pytest.mark.parametrize("name", ["diet-abs", "diet-rel", "t5", "shaw", "tisa", "alibi", "tupe-rel"])
def test_equal_with_position_in_cross_attention(name):
    model = model_of(name, cross="same", norm="pre")
    found = model.translate(*batch_of(SOURCES), beam=3, max_length_plus=2)
    for source, hypotheses in zip(SOURCES, found, strict=True):
        check(hypotheses, beam_by_hand(model, source, beam=3, n_best=1, alpha=0.6, limit=len(source) + 2))


@pytest.mark.parametrize("alpha", [-0.5, 0.0, 1.5])
@pytest.mark.parametrize("seed", range(2))
def test_a_wide_beam_and_any_length_penalty(alpha, seed):
    model = model_of("diet-rel", seed=seed)
    found = model.translate(*batch_of(SOURCES), beam=10, n_best=10, length_penalty=alpha, max_length_plus=1)
    for source, hypotheses in zip(SOURCES, found, strict=True):
        expected = beam_by_hand(model, source, beam=10, n_best=10, alpha=alpha, limit=len(source) + 1)
        check(hypotheses, expected)


def test_a_beam_wider_than_all_sequences_finds_the_best_of_all():
    model = model_of("shaw", vocab=4)
    source, limit = [3, 2], 4
    found = model.translate(
        *batch_of([source]), beam=64, n_best=40, max_length_ratio=0.0, max_length_plus=limit, length_penalty=0.6
    )[0]
    others = [word for word in range(4) if word != END]
    sequences = [words for length in range(limit) for words in itertools.product(others, repeat=length)]
    scored = []
    for words in sequences:
        total = sum(next_log_probabilities(model, source, words[:at])[word] for at, word in enumerate((*words, END)))
        scored.append((words, total, total / penalty(len(words) + 1, 0.6)))
    scored.sort(key=lambda entry: -entry[2])
    assert len(sequences) == 40
    check(found, scored)


def test_longer_than_the_first_buffers():
    """The buffers start with room for 32 positions and grow; a model that never ends goes through several."""
    model = model_of("shaw", max_position_embeddings=100)
    with torch.no_grad():
        model.output.weight[END] -= 5 * model.output.weight.abs().sum(0)
    ids, mask = batch_of([[5, 3, 2]])
    found = model.translate(ids, mask, beam=2, max_length_plus=70)[0]
    check(found, beam_by_hand(model, [5, 3, 2], beam=2, n_best=1, alpha=0.6, limit=73))
