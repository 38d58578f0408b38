"""Decoding on a GPU, with captured graphs, against the same on the CPU; training, replayed, against the plain steps."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from headway.bench.tasks.training.run_folder import RunFolder
from headway.bench.tasks.translate import run
from headway.bench.tasks.translate.recipes import recipe
from headway.encodings import ENCODINGS
from headway.models.translation import TranslationModel, translation_preset
from headway.models.translation import translate as translate_module
from headway.models.translation.translate import StepRunner

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the compiler's own code
]


def model_of(encoding, **choices):
    torch.manual_seed(0)
    sizes = {"vocab_size": 200, "hidden_size": 64, "num_attention_heads": 2, "max_position_embeddings": 128}
    model = TranslationModel(translation_preset("tiny", **{**sizes, "encoding": encoding, **choices})).eval()
    with torch.no_grad():
        for parameter in (*model.encoder.encoding.parameters(), *model.decoder.encoding.parameters()):
            parameter.add_(torch.randn_like(parameter) * 0.3)
        model.encoder.words.weight[2] = 0.0  # translations reach their limits, beyond the first size of the buffers
    return model


def sources():
    generator = torch.Generator().manual_seed(1)
    lengths = torch.tensor([9, 40, 12, 3, 25, 7])
    mask = (torch.arange(40) < lengths[:, None]).long()
    return torch.randint(3, 200, (6, 40), generator=generator).masked_fill(mask == 0, 0), mask


@pytest.mark.parametrize("name", [*ENCODINGS, "learned+tisa"])
@pytest.mark.parametrize("beam", [1, 4])
def test_equal_to_the_cpu_in_float64(name, beam):
    """float64, so that no rounding decides between two words; graphs are captured in every precision alike."""
    model, (ids, mask) = model_of(name).double(), sources()
    exact = model.translate(ids, mask, beam=beam, n_best=beam, max_length_plus=5)
    found = model.cuda().translate(ids.cuda(), mask.cuda(), beam=beam, n_best=beam, max_length_plus=5)
    for hypotheses, wanted in zip(found, exact, strict=True):
        assert [h.tokens for h in hypotheses] == [h.tokens for h in wanted]
        assert [h.score for h in hypotheses] == pytest.approx([h.score for h in wanted], abs=1e-8)


@torch.no_grad()
def log_probability(model, ids, mask, tokens):
    """Of a translation and its end, by one whole pass."""
    end = model.config.eos_token_id
    labels = torch.tensor([[*tokens, end]])
    logits = model(ids, mask, labels=labels).logits
    return float(logits.log_softmax(-1).gather(2, labels[..., None]).sum())


@pytest.mark.parametrize("way", ["half weights", "autocast"])
@pytest.mark.parametrize("name", ["sinusoidal", "shaw", "diet-rel", "diet-abs", "rope"])
def test_half_precision(name, way):
    """Rounding may lead the search elsewhere; what it says of the translation that it found must be so."""
    model, (ids, mask) = model_of(name), sources()
    exact = copy.deepcopy(model).double()
    model = model.cuda().to(torch.bfloat16 if way == "half weights" else torch.float32)
    with torch.autocast("cuda", torch.bfloat16, enabled=way == "autocast"):
        found = model.translate(ids.cuda(), mask.cuda(), max_length_plus=2)
    for row, hypotheses in enumerate(found):
        best = hypotheses[0]
        wanted = log_probability(exact, ids[row : row + 1], mask[row : row + 1], best.tokens)
        assert best.log_probability == pytest.approx(wanted, rel=0.03)


def test_when_sources_leave_changes_nothing(monkeypatch):
    """Looking often and leaving early, with a new graph each time, against staying together to the end.

    Scores are near and not equal, because products of other sizes are summed in another order.
    """
    model, (ids, mask) = model_of("shaw").double().cuda(), (part.cuda() for part in sources())
    monkeypatch.setattr(translate_module, "SMALL_BATCH", 0)
    monkeypatch.setattr(translate_module, "CHECK_EVERY", 1)
    early = model.translate(ids, mask, max_length_plus=3)
    monkeypatch.setattr(translate_module, "CHECK_EVERY", 1000)
    late = model.translate(ids, mask, max_length_plus=3)
    for (one,), (other,) in zip(early, late, strict=True):
        assert one.tokens == other.tokens
        assert one.score == pytest.approx(other.score, abs=1e-8)


def test_weights_that_change_are_seen():
    model, (ids, mask) = model_of("diet-rel").double().cuda(), (part.cuda() for part in sources())
    before = model.translate(ids, mask, max_length_plus=3)
    with torch.no_grad():
        model.decoder.encoding.values.mul_(-1)
    after = model.translate(ids, mask, max_length_plus=3)
    assert [h[0].tokens for h in after] != [h[0].tokens for h in before]


def test_steps_are_captured():
    model, (ids, mask) = model_of("t5").cuda(), (part.cuda() for part in sources())
    seen = []
    taken = StepRunner.__call__
    try:
        StepRunner.__call__ = lambda self, position: (taken(self, position), seen.append(self.graph is not None))
        model.translate(ids, mask, max_length_plus=3)
    finally:
        StepRunner.__call__ = taken
    assert sum(seen) > len(seen) / 2


def test_sampling_repeats_with_its_seed():
    model, (ids, mask) = model_of("t5").cuda(), [part.cuda() for part in sources()]
    one, other = (model.translate(ids, mask, sample=True, n_best=3, seed=4, max_length_plus=3) for _ in range(2))
    assert one == other


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("encoding", ["sinusoidal", "shaw", "diet-rel"])
def test_replayed_steps_are_the_plain_ones(tmp_path, monkeypatch, encoding, compiled):
    """Batches of many shapes, several a step, with dropout; evaluations and checkpoints between."""
    replays, replay = [], torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: (replays.append(1), replay(graph)))
    config = recipe("quick")
    plan = replace(config.optimisation, steps=60, tokens=512, step_tokens=1500, compile=compiled, bf16=compiled)
    config = replace(
        config,
        model=replace(config.model, encoding=encoding, changes={**config.model.changes, "hidden_dropout_prob": 0.1}),
        data=replace(config.data, source="builtin:2000", translated=0),
        optimisation=plan,
        intervals=replace(config.intervals, log=10, evaluate=30, checkpoint=30),
    )
    run(config, tmp_path / "plain", progress=False, graphs=False)
    assert not replays
    run(config, tmp_path / "replayed", progress=False)
    assert len(replays) > 100  # of about 180 batches, and 60 updates
    found, wanted = (RunFolder(tmp_path / name).logged("loss") for name in ("replayed", "plain"))
    torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted), atol=2e-3, rtol=2e-3)
