"""Decoding: options, limits, early stopping, sampling, precisions, and the pieces it is made of."""

from __future__ import annotations

import pytest
import torch

from headway.models.translation import Decoding, TranslationModel, translation_preset
from headway.models.translation.cache import INITIAL_CAPACITY, initial_state
from headway.models.translation.search import logsumexp, top_words
from headway.models.translation.step import FEW_ROWS, OUTPUT_BLOCK, project_few_rows
from headway.models.translation.translate import StepRunner, order_without

END = 2


def model_of(encoding="diet-rel", ends=0.0, **choices):
    torch.manual_seed(0)
    sizes = {"vocab_size": 30, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    config = translation_preset("tiny", **{**sizes, "max_position_embeddings": 24, "encoding": encoding, **choices})
    model = TranslationModel(config).eval()
    # Words of the output alone, so that the end token's can be moved without moving what the decoder sees.
    model.output.weight = torch.nn.Parameter(model.output.weight.detach().clone())
    last = model.decoder.layers[-1].around_feed_forward.norm
    with torch.no_grad():
        last.bias.fill_(1.0)
        model.output.weight[END] += ends
    return model


def sources(lengths=(7, 2, 5), longest=None):
    generator = torch.Generator().manual_seed(3)
    longest = longest or max(lengths)
    ids = torch.randint(3, 30, (len(lengths), longest), generator=generator)
    mask = (torch.arange(longest) < torch.tensor(lengths)[:, None]).long()
    return ids.masked_fill(mask == 0, 0), mask


def count_steps(monkeypatch):
    calls = []
    taken = StepRunner.__call__
    monkeypatch.setattr(
        StepRunner, "__call__", lambda self, position: (calls.append(self.state.shape), taken(self, position))
    )
    return calls


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam": 0}, "beam: expected a whole number of at least 1, got 0"),
        ({"beam": 2.0}, r"beam: expected a whole number of at least 1, got 2\.0"),
        ({"sample": True, "n_best": 1.5}, r"n_best: expected a whole number of at least 1, got 1\.5"),
        ({"beam": 2, "n_best": 3}, r"n_best: expected at most beam \(2\)"),
        ({"temperature": 0.5}, "temperature: an option of sampling"),
        ({"top_k": 5}, "top_k: an option of sampling"),
        ({"sample": True, "temperature": 0.0}, "temperature: expected more than 0"),
        ({"sample": True, "top_p": 1.5}, "top_p: expected more than 0 and at most 1"),
        ({"max_length_plus": -1}, "max_length_plus: expected a finite number of at least 0, got -1"),
        ({"max_length_ratio": float("nan")}, "max_length_ratio: expected a finite number of at least 0, got nan"),
        ({"max_length_ratio": float("inf")}, "max_length_ratio: expected a finite number of at least 0, got inf"),
        ({"length_penalty": float("nan")}, "length_penalty: expected a finite number, got nan"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        Decoding(**options)


def test_inputs_are_checked():
    model = model_of()
    ids, mask = sources()
    with pytest.raises(ValueError, match="at least one word in each source"):
        model.translate(ids, mask * torch.tensor([[1], [0], [1]]))
    with pytest.raises(ValueError, match=r"input_ids: expected \(B, L\)"):
        model.translate(ids[0])
    with torch.no_grad():
        model.output.weight.fill_(torch.nan)
    with pytest.raises(FloatingPointError, match="NaN"):
        model.translate(ids, mask)


@pytest.mark.parametrize("beam", [1, 3])
def test_no_translation_is_longer_than_its_limit(beam):
    model = model_of(ends=-2.0)
    found = model.translate(*sources(), beam=beam, max_length_ratio=1.5, max_length_plus=1)
    assert [len(hypotheses[0].tokens) for hypotheses in found] == [10, 3, 7]  # 11, 4 and 8 with the end token


@pytest.mark.parametrize("name", ["learned", "diet-abs"])
def test_a_limit_of_the_encoding_is_a_limit_of_translations(name):
    found = model_of(name, ends=-2.0).translate(*sources(), beam=2)
    assert [len(hypotheses[0].tokens) for hypotheses in found] == [23, 23, 23]


def test_a_search_stops_when_nothing_can_change(monkeypatch):
    calls = count_steps(monkeypatch)
    found = model_of(ends=1.0).translate(*sources(), beam=4, max_length_plus=40)
    assert len(calls) < 15
    assert all(len(hypotheses[0].tokens) == 0 for hypotheses in found)


def test_sources_that_are_done_leave_the_batch(monkeypatch):
    calls = count_steps(monkeypatch)
    model_of(ends=-2.0).translate(*sources((9, 2, 5)), beam=2, max_length_plus=0)
    assert [batch for batch, *_ in calls] == [3, 3, 2, 2, 2, 1, 1, 1, 1]


@pytest.mark.parametrize("options", [{"beam": 3, "n_best": 2, "max_length_plus": 5}, {"beam": 1}])
def test_a_batch_is_as_its_sources_alone(options):
    model = model_of().double()
    ids, mask = sources((7, 2, 5, 1))
    together = model.translate(ids, mask, **options)
    for row, length in enumerate((7, 2, 5, 1)):
        alone = model.translate(ids[row : row + 1, :length], **options)[0]
        assert [h.tokens for h in together[row]] == [h.tokens for h in alone]
        assert [h.score for h in together[row]] == pytest.approx([h.score for h in alone])


def test_the_model_stays_as_it_was():
    model = model_of(hidden_dropout_prob=0.5).train()
    one, other = (model.translate(*sources(), max_length_plus=2) for _ in range(2))
    assert model.training and model.decoder.training
    assert one == other  # no dropout


def log_probability(model, ids, length, words):
    with torch.no_grad():
        target = torch.tensor([[model.config.decoder_start_token_id, *words]])
        scores = model(ids[None, :length], decoder_input_ids=target, use_cache=False).logits[0].log_softmax(-1)
    return float(scores.gather(1, torch.tensor([[*words, END]]).T).sum())


@pytest.mark.parametrize("options", [{"beam": 4, "n_best": 2}, {"beam": 1}, {"sample": True, "n_best": 3, "seed": 1}])
def test_log_probabilities_are_the_models(options):
    model = model_of("shaw").double()
    ids, mask = sources()
    for row, hypotheses in enumerate(model.translate(ids, mask, max_length_plus=4, **options)):
        for hypothesis in hypotheses:
            expected = log_probability(model, ids[row], int(mask[row].sum()), hypothesis.tokens)
            assert hypothesis.log_probability == pytest.approx(expected, abs=1e-8)
            penalty = ((5 + len(hypothesis.tokens) + 1) / 6) ** 0.6
            assert hypothesis.score == pytest.approx(expected / penalty, abs=1e-8)


@pytest.mark.parametrize("way", ["half weights", "autocast"])
@pytest.mark.parametrize("name", ["sinusoidal", "shaw", "rope", "diet-abs"])
def test_half_precision(name, way):
    model, (ids, mask) = model_of(name), sources()
    exact = model.double().translate(ids, mask, beam=3, max_length_plus=3)
    model = model.bfloat16() if way == "half weights" else model.float()
    with torch.autocast("cpu", torch.bfloat16, enabled=way == "autocast"):
        found = model.translate(ids, mask, beam=3, max_length_plus=3)
    for hypotheses, wanted in zip(found, exact, strict=True):
        assert hypotheses[0].score == pytest.approx(wanted[0].score, abs=0.15)


def test_sampling_repeats_with_its_seed():
    model, (ids, mask) = model_of(), sources()
    draw = [model.translate(ids, mask, sample=True, n_best=4, seed=seed) for seed in (5, 5, 6)]
    assert draw[0] == draw[1] != draw[2]
    assert all(len(hypotheses) == 4 for hypotheses in draw[0])
    scores = [h.score for h in draw[0][0]]
    assert scores == sorted(scores, reverse=True)


def test_sampling_draws_as_often_as_words_are_probable():
    model = model_of(ends=0.2).double()
    ids, mask = sources((4,))
    drawn = model.translate(
        ids, mask, sample=True, n_best=4000, seed=0, max_length_ratio=0, max_length_plus=2, temperature=0.7
    )[0]
    with torch.no_grad():
        target = torch.tensor([[model.config.decoder_start_token_id]])
        scores = model(ids, mask, decoder_input_ids=target, use_cache=False).logits[0, 0]
    expected = (scores / 0.7).softmax(-1)
    first = torch.tensor([h.tokens[0] if h.tokens else END for h in drawn])
    seen = torch.bincount(first, minlength=30) / 4000
    assert (seen - expected).abs().max() < 4 * (0.25 / 4000) ** 0.5


def test_sampling_keeps_to_the_best_words():
    model, (ids, mask) = model_of(), sources()
    greedy = model.translate(ids, mask, beam=1)
    for narrow in ({"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-3}):
        found = model.translate(ids, mask, sample=True, seed=0, **narrow)
        assert [h[0].tokens for h in found] == [h[0].tokens for h in greedy]
    with torch.no_grad():
        target = torch.tensor([[model.config.decoder_start_token_id]] * 3)
        scores = model(ids, mask, decoder_input_ids=target, use_cache=False).logits[:, 0]
    best = scores.topk(3).indices.tolist()
    drawn = model.translate(ids, mask, sample=True, seed=0, n_best=200, top_k=3, max_length_ratio=0, max_length_plus=2)
    for hypotheses, allowed in zip(drawn, best, strict=True):
        assert {h.tokens[0] if h.tokens else END for h in hypotheses} <= set(allowed)


@pytest.mark.parametrize("words", [1, 30, 4095, 4096, 9001])
@pytest.mark.parametrize("count", [1, 8])
def test_top_is_topk(words, count):
    z = torch.randperm(6 * words).view(2, 3, words).float()
    count = min(count, words)
    for ours, theirs in zip(top_words(z, count), z.topk(count), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", ["none", "sinusoidal", "shaw", "transformer-xl", "t5", "diet-abs", "rope"])
@pytest.mark.parametrize("beam", [1, 3])
def test_steps_of_one_size_are_the_same(monkeypatch, name, beam):
    """What a GPU captures: every step looks at all the room there is, and empty slots must not count."""
    model, (ids, mask) = model_of(name).double(), sources()
    exact = model.translate(ids, mask, beam=beam, max_length_plus=4)
    step = StepRunner._step
    monkeypatch.setattr(StepRunner, "_step", lambda self, span: step(self, self.state.capacity))
    found = model.translate(ids, mask, beam=beam, max_length_plus=4)
    for hypotheses, wanted in zip(found, exact, strict=True):
        assert [h.tokens for h in hypotheses] == [h.tokens for h in wanted]
        assert [h.score for h in hypotheses] == pytest.approx([h.score for h in wanted], abs=1e-9)


@pytest.mark.parametrize("shape", [(1, 5), (3, 4, 50), (17, 40)])
def test_logsumexp_is_torchs(shape):
    z = torch.randn(shape, dtype=torch.float64)
    torch.testing.assert_close(logsumexp(z), z.logsumexp(-1))


@pytest.mark.parametrize("rows", [FEW_ROWS[0] - 1, FEW_ROWS[0], FEW_ROWS[-1], FEW_ROWS[-1] + 1])
@pytest.mark.parametrize("outputs", [30, OUTPUT_BLOCK, OUTPUT_BLOCK + 5])
def test_few_rows_one_way_round_or_the_other(rows, outputs):
    layer = torch.nn.Linear(16, outputs, bias=False)
    x = torch.randn(rows, 1, 16)
    with torch.no_grad():
        found = project_few_rows(layer, x)
    torch.testing.assert_close(found, layer(x).detach())
    assert found.shape == (rows, 1, outputs) and found.is_contiguous()
    assert project_few_rows(layer, x).requires_grad  # where gradients are asked for it is the layer's own


def test_few_rows_of_a_layer_that_somebody_wrapped():
    class Doubled(torch.nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    layer, x = Doubled(16, 30, bias=False), torch.randn(FEW_ROWS[0], 16)
    with torch.no_grad():
        torch.testing.assert_close(project_few_rows(layer, x), layer(x))


@pytest.mark.parametrize(
    ("done", "order"),
    [
        ([False, True, False, True, False], [0, 4, 2]),
        ([True, False], [1]),
        ([False, False, True], [0, 1]),
        ([True, True], []),
        ([True, True, False, False], [3, 2]),
    ],
)
def test_places_of_sources_that_leave_are_taken_by_the_last(done, order):
    assert order_without(done) == order


def test_a_smaller_state_is_that_of_its_sources():
    model = model_of("t5")
    memory, lengths = torch.randn(5, 6, 16), torch.tensor([6, 2, 5, 1, 3])
    whole, state = (
        initial_state(model.decoder, memory, lengths, start=1, paths=2, capacity=INITIAL_CAPACITY) for _ in range(2)
    )
    order = [0, 4, 2]
    smaller = state.select_sources(order)
    for name in ("tokens", "allowed", "memory_allowed"):
        torch.testing.assert_close(getattr(smaller, name), getattr(whole, name)[order])
    for name in ("keys", "values", "memory_keys", "memory_values"):
        for found, wanted in zip(getattr(smaller, name), getattr(whole, name), strict=True):
            assert torch.equal(found, wanted[order])


def test_positions_that_end_end_the_translation():
    """The cache has room for more than there are positions, which a bias that does not extend must not be asked for."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    options = {"encoding": "diet-rel:beyond=raise", "max_position_embeddings": 16}
    model = TranslationModel(translation_preset("tiny", **sizes, **options)).eval()
    found = model.translate(torch.randint(3, 20, (2, 5)), max_length_plus=40)
    assert all(len(best[0].tokens) <= 16 for best in found)
