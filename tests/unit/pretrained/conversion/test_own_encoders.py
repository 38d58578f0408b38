"""headway's own encoders: what they become, what stays, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from transformers import AutoModelForMaskedLM

from headway.encodings import ENCODINGS, EncodingChoice
from headway.models import EncoderConfig, EncoderForMaskedLM, EncoderForSequenceClassification, EncoderModel
from headway.pretrained.conversion import compare, convert, loss_by_length
from headway.pretrained.conversion.converted import encoding_of, max_length_of
from headway.pretrained.conversion.own_encoders import build_without_positions
from headway.pretrained.conversion.position_factors import average_scores, position_factors

LENGTH, WIDTH, HEADS, LAYERS = 24, 32, 4, 3
SIZES = {
    "vocab_size": 60,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 40,
    "max_position_embeddings": LENGTH,
    "initializer_range": 0.3,
}
FITTED = ("tisa", "diet-rel", "diet-abs", "t5")
CHEAP = {"tisa": "tisa:kernels=1"}
NO_BIAS_ALONE = ("shaw", "music-transformer", "transformer-xl", "rope")  # they meet, or turn, the words' own queries


@pytest.fixture
def own():
    """A random encoder in float64, every parameter drawn, so that no zero hides what is lost."""

    def make(encoding, segments="none", kind=EncoderModel, std=0.3, **options):
        choice = replace(EncodingChoice.parse(encoding), segments=segments)
        model = kind(EncoderConfig(**{**SIZES, **options}, encoding=str(choice)))
        draw = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                noise = std * torch.randn(parameter.shape, generator=draw, dtype=torch.float64)
                parameter.copy_(noise + (1.0 if "norm" in name and name.endswith("weight") else 0.0))
        return model.double().eval()

    return make


def states(model, ids):
    return model.base_model(ids).last_hidden_state.detach()


@pytest.mark.parametrize("segments", ["none", "input", "per-head"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_supplement_starts_as_the_model_it_was(own, ids, encoding, segments):
    model = own(encoding, segments)
    for to in FITTED:
        converted = convert(model, to)
        assert type(converted) is EncoderModel and converted.config.choice.name == f"{encoding}+{to}"
        torch.testing.assert_close(states(converted, ids), states(model, ids), msg=f"{encoding}+{to}")


@pytest.mark.parametrize("segments", ["none", "input", "per-head"])
@pytest.mark.parametrize("encoding", [name for name in ENCODINGS if name not in NO_BIAS_ALONE])
def test_what_replaces_is_all_that_is_left_of_order(own, ids, encoding, segments):
    converted = convert(own(encoding, segments), "diet-rel", mode="replace", start="zero")
    assert converted.config.choice.name == "diet-rel"
    swapped = torch.randperm(20, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(states(converted, ids[:, swapped]), states(converted, ids)[:, swapped])


@pytest.mark.parametrize("segments", ["none", "input", "per-head"])
@pytest.mark.parametrize("encoding", ["learned", "sinusoidal", "learned+sinusoidal"])
def test_the_mean_of_what_was_added_to_the_input_stays(own, ids, encoding, segments):
    """The oracle is a supplement, whose table is then levelled by hand."""
    model = own(encoding, segments, EncoderForMaskedLM)
    replaced = convert(model, "diet-rel", mode="replace")
    beside = convert(own("learned", segments, EncoderForMaskedLM), "diet-rel")
    rest = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("encoder.encoding.")}
    beside.load_state_dict(rest, strict=False)
    with torch.no_grad():
        rows = model.encoder.encoding.embed(torch.zeros(1, LENGTH, WIDTH, dtype=torch.float64))[0]
        kept, new = beside.encoder.encoding.parts
        kept.table.copy_(rows.mean(0).expand_as(kept.table))
        new.values.copy_(encoding_of(replaced).values)
    torch.testing.assert_close(states(replaced, ids), states(beside, ids))
    # Folded into the words, which are the output's too, the mean moves all of a token's scores alike.
    torch.testing.assert_close(replaced(ids).logits.log_softmax(-1), beside(ids).logits.log_softmax(-1))
    if segments == "input":
        torch.testing.assert_close(replaced(ids).logits, beside(ids).logits)


def test_the_original_is_left_as_it_is(own, ids):
    model = own("learned", "input", EncoderForMaskedLM).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    converted = convert(model, "tisa:kernels=1", mode="replace")
    assert model.training and converted.training and model.config.choice.name == "learned"
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


@pytest.mark.parametrize("kind", [EncoderModel, EncoderForMaskedLM, EncoderForSequenceClassification])
def test_every_head_stays(own, ids, kind):
    model = own("learned", kind=kind)
    converted = convert(model, "tisa:kernels=2")
    assert type(converted) is kind
    before, after = model(ids), converted(ids)
    for name in ("logits", "pooler_output"):
        if name in before:
            torch.testing.assert_close(after[name], before[name])


def test_a_model_without_a_pooler_has_none_afterwards(own):
    model = own("learned", kind=EncoderForMaskedLM).encoder
    assert convert(model, "alibi").pooler is None


@pytest.mark.parametrize(("encoding", "rank"), [("diet-abs", 8), ("abs-scalar", 8), ("tupe-abs", 10)])
def test_a_bias_of_low_rank_becomes_diet_abs_exactly(own, ids, encoding, rank):
    """Position that is in the scores already is known: with that rank, the converted model is the same one."""
    model = own(encoding)
    converted = convert(model, f"diet-abs:rank={rank}", mode="replace")
    assert converted.config.choice.options == {"rank": rank}
    torch.testing.assert_close(states(converted, ids), states(model, ids))
    assert converted.encoding.scale is None  # TUPE's went into the queries


def test_a_bias_of_the_offset_becomes_diet_rel_and_t5_exactly(own, ids):
    alibi = own("alibi")
    t5 = own("t5:buckets=8,max_distance=10")
    for model, to in ((t5, "t5:buckets=8,max_distance=10"), (t5, "diet-rel"), (alibi, "tisa")):
        converted = convert(model, to, mode="replace")
        offset = torch.arange(-15, 16)  # the outermost tenth of DIET-REL is averaged
        profile, want = (
            each.base_model.encoding.bias(1, LENGTH, LENGTH).dense()[0, 2].detach() for each in (converted, model)
        )
        got = torch.stack([(profile - want).diagonal(int(n))[0] for n in offset])
        near = 0.05 if to == "tisa" else 1e-9  # a few bells are nearly a line; a constant does not matter
        assert float((got - got.mean()).abs().max()) < near * float(want.abs().max()), to


def test_the_first_layer_has_what_replacing_takes_from_its_scores(own, ids):
    """With one text there is no average: q k^T of both models is there to be looked at."""
    model = own("learned", "input")
    without = build_without_positions(model, None)
    assert without.config.choice.name == "none"
    found = position_factors(model, without, ids[:1], first_is_special=True)
    with torch.no_grad():
        words = model.words(ids[:1]) + model.segments.table[0]
        table = model.encoding.table
        scores = []
        for added in (table[:20], table.mean(0)):
            x = model.norm(words + added)
            q, k, _ = model.layers[0].attention.qkv(x)[0].view(20, 3, HEADS, 8).permute(1, 2, 0, 3)
            scores.append(q @ k.transpose(-1, -2) / 8**0.5)
    want = scores[0] - scores[1]
    want = want - want.mean(-1, keepdim=True)
    torch.testing.assert_close(found[0].left @ found[0].right.transpose(-1, -2), want)
    assert len(found) == LAYERS


@pytest.mark.parametrize("segments", ["none", "per-head"])
def test_with_all_of_it_one_text_is_attended_as_in_the_original(own, ids, segments):
    """DIET-ABS with a rank that F_P does not exceed gives one layer exactly the weights of the original."""
    model, ids = own("learned", segments, num_hidden_layers=1), torch.cat([ids, ids[:, :4]], 1)
    converted = convert(model, "diet-abs:rank=16", mode="replace", start="zero")
    from headway.pretrained.conversion.fitting import fit

    fit(
        encoding_of(converted),
        position_factors(model, build_without_positions(model, None), ids[:1], first_is_special=True),
    )
    mine, theirs = (each(ids[:1], output_attentions=True).attentions[0] for each in (converted, model))
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("encoding", ["sinusoidal", "diet-abs"])
def test_the_fit_comes_nearer_than_nothing(own, ids, encoding):
    model = own(encoding, std=0.15)
    want = states(model, ids)
    for to in FITTED:
        errors = [
            float((states(convert(model, to, mode="replace", start=start), ids) - want).norm())
            for start in ("fit", "zero")
        ]
        assert errors[0] < errors[1], to


def test_scores_of_a_random_table_are_met_best_by_diet_abs(own, tokenizer, texts):
    model = own("learned")
    errors = {}
    for to, start in (("diet-abs", "fit"), ("diet-rel", "fit"), ("diet-rel", "zero")):
        converted = convert(model, to, mode="replace", start=start, tokenizer=tokenizer, texts=texts)
        errors[to, start] = compare(model, converted, tokenizer, texts, length=LENGTH).score_errors[0]
    assert errors["diet-abs", "fit"] < errors["diet-rel", "fit"] < errors["diet-rel", "zero"]


def test_a_supplement_may_start_at_the_fit_as_in_the_paper(own):
    model = own("learned")
    supplement = convert(model, "diet-rel", mode="supplement", start="fit")
    torch.testing.assert_close(
        encoding_of(supplement).values, encoding_of(convert(model, "diet-rel", mode="replace")).values
    )


@pytest.mark.parametrize("to", ["tisa", "diet-rel", "t5", "alibi"])
def test_texts_longer_than_the_original_allows(own, to):
    model = own("learned")
    assert max_length_of(model) == LENGTH
    converted = convert(model, CHEAP.get(to, to), mode="replace")
    assert max_length_of(converted) is None
    ids = torch.randint(5, 60, (2, 61))
    long = states(converted, ids)
    assert long.isfinite().all()
    padded = torch.cat([ids, torch.zeros(2, 9, dtype=torch.long)], 1)
    mask = (torch.arange(70) < 61).long().expand(2, -1)
    torch.testing.assert_close(converted(padded, attention_mask=mask).last_hidden_state[:, :61].detach(), long)


def test_diet_abs_has_the_length_that_was_asked_for(own):
    converted = convert(own("learned"), "diet-abs", mode="replace", max_length=40)
    assert max_length_of(converted) == converted.config.max_position_embeddings == 40
    with pytest.raises(ValueError, match="at most 40"):
        converted(torch.randint(5, 60, (1, 41)))


def test_saved_and_loaded_it_is_the_same(own, ids, tmp_path):
    for mode in ("supplement", "replace"):
        converted = convert(own("learned", kind=EncoderForMaskedLM), "tisa:kernels=2", mode=mode, start="random")
        converted.save_pretrained(tmp_path / mode)
        again = AutoModelForMaskedLM.from_pretrained(tmp_path / mode, dtype=torch.float64).eval()
        assert type(again) is EncoderForMaskedLM
        assert torch.equal(again(ids).logits, converted(ids).logits)


def test_sharing_is_that_of_what_stays(own):
    alone = own("learned")
    assert convert(alone, "t5").encoding.parts[1].table.shape[0] == LAYERS  # none, as for other models
    assert convert(alone, "t5:sharing=layer").encoding.parts[1].table.shape[0] == 1
    shared = own("diet-abs:sharing=layer")
    assert convert(shared, "diet-rel").config.choice.sharing == "layer"
    assert convert(shared, "diet-rel", mode="replace").config.choice.sharing == "none"
    assert convert(shared, "alibi").config.choice.sharing == "layer"
    assert convert(shared, "alibi", mode="replace").config.choice.sharing is None
    with pytest.raises(ValueError, match=r"sharing: expected that of the encodings that stay \(layer of diet-abs\)"):
        convert(shared, "diet-rel:sharing=head")
    apart = convert(own("learned", "per-head"), "diet-rel:sharing=layer", mode="replace")
    assert apart.encoding.values.shape[0] == 1 and apart.segments.table.shape[0] == LAYERS  # segments have their own


def test_options_are_those_of_what_stays(own):
    model = own("abs-scalar:rank=3,init_std=0.1")
    beside = convert(model, "diet-abs")
    assert beside.config.choice.options == {"rank": 3, "init_std": 0.1} and encoding_of(beside).rank == 3
    assert convert(model, "tisa:kernels=1", mode="replace").config.choice.options == {"kernels": 1}
    with pytest.raises(ValueError, match="rank: expected 3, that of abs-scalar"):
        convert(model, "diet-abs:rank=5")


@pytest.mark.parametrize("encoding", NO_BIAS_ALONE)
def test_positions_that_meet_the_words_are_not_replaced(own, encoding):
    model = own(encoding)
    for arguments in ({"mode": "replace"}, {"mode": "supplement", "start": "fit"}):
        with pytest.raises(NotImplementedError, match=f"got {encoding}, which .* no bias of positions alone"):
            convert(model, "tisa", **arguments)


def test_what_cannot_be_is_told(own):
    with pytest.raises(NotImplementedError, match="'linformer', whose keys are mixtures"):
        convert(own("learned", attention="linformer", projected_length=6), "tisa")
    for max_length in (LENGTH - 1, LENGTH + 1):
        with pytest.raises(ValueError, match=f"max_length: expected {LENGTH}"):
            convert(own("learned"), "tisa", max_length=max_length)
    broken = own("learned")
    with torch.no_grad():
        broken.encoding.table[3, 3] = torch.nan
    with pytest.raises(ValueError, match=r"encoding.table: expected finite weights"):
        convert(broken, "tisa")


def test_closeness_is_reported_as_for_other_models(own, tokenizer, texts):
    model = own("learned", kind=EncoderForMaskedLM)
    same = compare(model, convert(model, "tisa"), tokenizer, texts, length=20)
    assert same.relative_error < 1e-12 and max(same.score_errors) < 1e-12
    assert same.loss_after == pytest.approx(same.loss_before)
    other = compare(model, convert(model, "alibi", mode="replace"), tokenizer, texts, length=20)
    assert other.relative_error > 0.01 and len(other.score_errors) == LAYERS
    before = loss_by_length(model, tokenizer, texts, [10, LENGTH, LENGTH + 1])
    assert before[LENGTH + 1] is None and before[10] > 0


def catch(caught, module, args, out):
    caught["out"] = out.detach()


def test_average_scores_are_those_of_the_formula(own, ids):
    """Turned queries and keys, and a bias that meets the query, are linear in what is averaged."""
    for encoding in ("rope", "shaw", "learned+diet-rel"):
        model = own(encoding)
        caught = {}
        model.layers[1].attention.qkv.register_forward_hook(partial(catch, caught))
        model(ids)
        q, k, _ = caught["out"].mean(0, keepdim=True).unflatten(-1, (3, HEADS, 8)).permute(2, 0, 3, 1, 4)
        turned_q, turned_k = model.encoding.rotate(q, k, layer=1)
        want = turned_q @ turned_k.transpose(-1, -2) / 8**0.5
        bias = model.encoding.bias(1, 20, 20)
        if bias is not None:
            want = want + bias.dense(q, scale=8**-0.5)
        got = torch.from_numpy(average_scores(model, ids)[1].matrices())
        torch.testing.assert_close(got, want[0].detach())
