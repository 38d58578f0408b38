"""What the encoder promises with every encoding: it trains, sees order as declared, and is blind to padding."""

import json

import pytest
import torch
from torch.testing import assert_close

from headway.encodings import ENCODINGS, SEGMENTS, SHARINGS, EncodingChoice
from headway.models import EncoderConfig, EncoderForMaskedLM, EncoderModel
from headway.models.padding import lengths_or_mask

SIZES = {
    "vocab_size": 29,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 16,
}
SUMS = ["learned+tisa", "sinusoidal+diet-rel", "rope+alibi", "shaw+t5", "learned+diet-abs"]
COMBINATIONS = [
    EncodingChoice(name, sharing=sharing, segments=segments)
    for name in [*ENCODINGS, *SUMS]
    for segments in SEGMENTS
    for sharing in [None, *SHARINGS]
    if sharing is None or EncodingChoice(name).can_share
] + [EncodingChoice("diet-rel", {}, None, "per-head", sharing) for sharing in SHARINGS]
EXACT = {"rtol": 1e-9, "atol": 1e-9}


def build(kind=EncoderModel, **options):
    """A model in float64 with random parameters, because a table that begins with zeros would hide a no-op."""
    torch.manual_seed(0)
    model = kind(EncoderConfig(**{**SIZES, **options})).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def words(*shape, seed=1):
    return torch.randint(1, 29, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("choice", COMBINATIONS, ids=str)
def test_every_parameter_is_trained(choice):
    """Unused parameters would break distributed training."""
    model = build(EncoderForMaskedLM, encoding=str(choice)).train()
    tokens = words(2, 16)
    ids = torch.randint(2, (2, 16)) if choice.segments != "none" else None
    model(tokens, token_type_ids=ids, labels=tokens).loss.backward()
    unused = {name for name, p in model.named_parameters() if p.grad is None}
    still = {name for name, p in model.named_parameters() if p.grad is not None and not p.grad.abs().sum()}
    assert unused == set()
    assert still <= {"encoder.encoding.theta1"}  # adds the same to all scores of [CLS]: its gradient is 0, or rounding


@pytest.mark.parametrize("name", [*ENCODINGS, *SUMS])
@pytest.mark.parametrize("segments", SEGMENTS)
def test_sees_order_as_declared(name, segments):
    model = build(encoding=f"{name}:segments={segments}")
    tokens, swapped = words(1, 7), [1, 0, 2, 3, 5, 4, 6]
    one, other = model(tokens).last_hidden_state, model(tokens[:, swapped]).last_hidden_state
    blind = torch.allclose(one[:, swapped], other, atol=1e-9)
    assert blind != model.encoding.sees_order


@pytest.mark.parametrize("name", [*ENCODINGS, *SUMS])
@pytest.mark.parametrize("segments", ["none", "per-head"])
def test_padded_and_packed_texts_are_as_if_alone(name, segments):
    """Five texts, in rows of their own with padding, and in two rows; also beyond max_position_embeddings in sum."""
    model = build(encoding=f"{name}:segments={segments}", max_position_embeddings=8)
    texts = [words(1, n, seed=n) for n in (8, 3, 5, 1, 7)]
    ids = [torch.arange(t.shape[1])[None] % 3 // 2 for t in texts] if segments != "none" else None
    alone = [
        model(text, token_type_ids=None if ids is None else ids[index]).last_hidden_state[0]
        for index, text in enumerate(texts)
    ]
    lengths = torch.tensor([8, 3, 5, 1, 7])
    padded, segments_padded = (
        torch.cat([torch.nn.functional.pad(t, (0, 8 - t.shape[1])) for t in rows]) for rows in (texts, ids or texts)
    )
    got = model(
        padded,
        attention_mask=(torch.arange(8) < lengths[:, None]).long(),
        token_type_ids=None if ids is None else segments_padded,
    ).last_hidden_state
    for index, want in enumerate(alone):
        assert_close(got[index, : len(want)], want, **EXACT)

    def pack(parts):  # rows 8 + 3 + 1 and 5 + 7, the first one with padding at the end
        rows = [torch.cat([parts[i] for i in order], 1) for order in ((0, 1, 3), (2, 4))]
        return torch.cat(rows)

    documents = torch.tensor([[7] * 8 + [2] * 3 + [9], [0] * 5 + [1] * 7])
    packed = model(
        pack(texts), documents=documents, token_type_ids=None if ids is None else pack(ids)
    ).last_hidden_state
    for row, start, index in ((0, 0, 0), (0, 8, 1), (0, 11, 3), (1, 0, 2), (1, 5, 4)):
        assert_close(packed[row, start : start + len(alone[index])], alone[index], **EXACT)


def test_packed_rows_may_have_padding_and_pool_nothing():
    model = build(encoding="tupe-rel")
    text = words(1, 5)
    padded = torch.nn.functional.pad(text, (0, 3))
    got = model(padded, documents=torch.tensor([[0] * 5 + [-1] * 3]))
    assert_close(got.last_hidden_state[:, :5], model(text).last_hidden_state, **EXACT)
    assert got.pooler_output is None
    assert model(text).pooler_output.shape == (1, 8)


class TestMasks:
    def test_all_ways_to_say_padding_agree(self):
        model, tokens = build(encoding="diet-rel"), words(3, 9)
        lengths = torch.tensor([9, 4, 6])
        mask = torch.arange(9) < lengths[:, None]
        want = model(tokens, lengths=lengths).last_hidden_state
        for given in (mask, mask.long(), mask.float(), mask[:, None, :].expand(-1, 9, -1), mask[:, None, None, :]):
            assert_close(model(tokens, attention_mask=given).last_hidden_state[mask], want[mask], **EXACT)

    def test_all_ones_is_no_mask(self):
        model, tokens = build(), words(2, 9)
        assert_close(model(tokens, attention_mask=torch.ones(2, 9)).last_hidden_state, model(tokens).last_hidden_state)

    @pytest.mark.parametrize("hole", [0, 4])
    def test_padding_may_stand_anywhere(self, hole):
        model, tokens = build(encoding="tisa"), words(2, 9)
        mask = torch.ones(2, 9, dtype=torch.long)
        mask[1, hole] = 0
        other = tokens.clone()
        other[1, hole] = tokens[1, hole] % 28 + 1
        seen = mask.bool()
        one, two = (model(t, attention_mask=mask).last_hidden_state[seen] for t in (tokens, other))
        assert_close(one, two, **EXACT)
        assert not torch.allclose(model(other).last_hidden_state[seen], two)

    def test_a_mask_between_queries(self):
        """Causal, as a mask: a word does not see those after it."""
        model, tokens = build(encoding="alibi"), words(1, 9)
        causal = torch.ones(1, 9, 9).tril().bool()
        whole = model(tokens, attention_mask=causal).last_hidden_state
        assert_close(model(tokens[:, :4], attention_mask=causal[:, :4, :4]).last_hidden_state, whole[:, :4], **EXACT)

    @pytest.mark.parametrize(
        ("given", "kind", "message"),
        [
            ({"attention_mask": torch.ones(2, 8)}, ValueError, r"expected \(2, 9\)"),
            ({"attention_mask": torch.ones(2, 9, 9)}, TypeError, "boolean"),
            ({"attention_mask": torch.ones(2, 9), "lengths": torch.tensor([1, 2])}, ValueError, "pass one"),
            ({"lengths": torch.tensor([1, 20])}, ValueError, "expected 0 to 9"),
            ({"documents": torch.zeros(2, 9)}, TypeError, "integer"),
            ({"inputs_embeds": torch.ones(2, 9, 8).double()}, ValueError, "exactly one"),
            ({"token_type_ids": torch.full((2, 9), 2)}, ValueError, "segments"),
        ],
    )
    def test_what_does_not_fit_says_so(self, given, kind, message):
        with pytest.raises(kind, match=message):
            build()(words(2, 9), **given)

    def test_no_device_is_waited_for(self):
        """Beyond the CPU no value of a mask is read: tensors that have none show it."""
        given = torch.ones(2, 9, dtype=torch.long, device="meta")
        lengths, mask = lengths_or_mask(given, None, (2, 9))
        assert lengths is None
        assert mask.shape == (2, 1, 1, 9) and mask.dtype == torch.bool
        assert lengths_or_mask(None, given[:, 0], (2, 9))[0].shape == (2,)


class TestOutputs:
    @pytest.mark.parametrize("name", ["learned", "diet-rel", "shaw", "rope", "tupe-abs"])
    def test_weights_on_request_belong_to_the_same_output(self, name):
        model, tokens = build(encoding=name), words(2, 9)
        lengths = torch.tensor([9, 4])
        plain, asked = model(tokens, lengths=lengths), model(tokens, lengths=lengths, output_attentions=True)
        assert plain.attentions is None
        assert_close(asked.last_hidden_state, plain.last_hidden_state, **EXACT)
        for weights in asked.attentions:
            assert weights.shape == (2, 2, 9, 9)
            assert_close(weights.sum(-1), torch.ones(2, 2, 9).double(), **EXACT)
            assert not weights[1, :, :, 4:].any()

    def test_hidden_states_on_request(self):
        model, tokens = build(), words(2, 9)
        states = model(tokens, output_hidden_states=True).hidden_states
        assert len(states) == 3
        again, _ = model.layers[0](states[0], model._context(states[0], None, None, None, None))
        assert_close(again, states[1], **EXACT)
        assert_close(model.layers[1](again, model._context(again, None, None, None, None))[0], states[2], **EXACT)

    def test_the_configuration_may_ask(self):
        model = build(output_hidden_states=True)
        model.config.output_attentions = True
        got = model(words(2, 9))
        assert len(got.hidden_states) == 3
        assert len(got.attentions) == 2

    def test_embeddings_in_place_of_words(self):
        model, tokens = build(encoding="learned"), words(2, 9)
        assert_close(
            model(inputs_embeds=model.words(tokens)).last_hidden_state, model(tokens).last_hidden_state, **EXACT
        )

    def test_a_tuple_on_request(self):
        model, tokens = build(), words(2, 9)
        hidden, pooled = model(tokens, return_dict=False)
        assert_close(hidden, model(tokens).last_hidden_state)
        assert_close(pooled, model(tokens).pooler_output)


class TestSegments:
    def test_ids_of_one_segment_are_no_loss_without_segments(self):
        """Tokenizers give them unasked."""
        model, tokens = build(encoding="learned:segments=none"), words(2, 9)
        zeros = torch.zeros_like(tokens)
        assert_close(model(tokens, token_type_ids=zeros).last_hidden_state, model(tokens).last_hidden_state, **EXACT)
        with pytest.raises(ValueError, match="segments=none"):
            model(tokens, token_type_ids=zeros + 1)

    @pytest.mark.parametrize("segments", ["input", "per-head"])
    @pytest.mark.parametrize("name", ["none", "learned+tisa"])
    def test_they_act(self, name, segments):
        model, tokens = build(encoding=f"{name}:segments={segments}"), words(2, 9)
        ids = torch.tensor([[0] * 4 + [1] * 5, [0] * 9])
        one, other = model(tokens).last_hidden_state, model(tokens, token_type_ids=ids).last_hidden_state
        assert not torch.allclose(one[0], other[0])
        assert_close(one[1], other[1], **EXACT)


@pytest.mark.parametrize("name", ["t5", "diet-abs", "learned+t5"])
@pytest.mark.parametrize(("sharing", "times"), [("layer", 1), ("none", 2)])
def test_layers_that_share_make_their_bias_once(name, sharing, times, monkeypatch):
    """In sums too, and beside segments that layers do not share."""
    model = build(encoding=f"{name}:sharing={sharing}")
    kind = ENCODINGS[name.split("+")[-1]]
    calls, made = [], kind._bias
    monkeypatch.setattr(kind, "_bias", lambda self, *given: calls.append(1) or made(self, *given))
    model(words(2, 9))
    assert len(calls) == times


def test_dropout_is_of_training_only():
    model, tokens = build(hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5, encoding="diet-rel"), words(2, 9)
    assert_close(model(tokens).last_hidden_state, model(tokens).last_hidden_state)
    model.train()
    assert not torch.allclose(model(tokens).last_hidden_state, model(tokens).last_hidden_state)


@pytest.mark.parametrize("attention", ["full", "linformer"])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lengths": torch.tensor([3])}, r"lengths: expected one length per sequence, \(2,\), got \(1,\)"),
        ({"lengths": torch.tensor([3, 12])}, "lengths: expected 0 to 10 .*got 3 to 12"),
        ({"lengths": torch.tensor([2.5, 3.0])}, "lengths: expected an integer tensor"),
        ({"lengths": [3, 4]}, r"lengths: expected an integer tensor \(B,\), got list"),
        ({"attention_mask": [[1] * 10] * 2}, r"attention_mask: expected a tensor \(B, L\), got list"),
        ({"attention_mask": torch.ones(2, 1, 1, 1, dtype=torch.bool)}, "attention_mask: expected .* a last one of 10"),
        ({"token_type_ids": torch.zeros(3, 10, dtype=torch.long)}, r"token_type_ids: expected \(2, 10\)"),
    ],
)
def test_sizes_that_do_not_fit_are_named(given, message, attention):
    projected = {} if attention == "full" else {"attention": "linformer", "projected_length": 4}
    with pytest.raises((TypeError, ValueError), match=message):
        build(**projected)(torch.ones(2, 10, dtype=torch.long), **given)


def test_documents_of_other_rows_and_a_single_sequence_are_named():
    model = build()
    with pytest.raises(ValueError, match=r"documents: expected \(1, 10\)"):
        model(torch.ones(1, 10, dtype=torch.long), documents=torch.zeros(3, 10, dtype=torch.long))
    with pytest.raises(ValueError, match=r"input_ids: expected \(B, L\), got 1 axes"):
        model(torch.ones(10, dtype=torch.long))


@pytest.mark.parametrize("shape", [(0, 5), (2, 0)])
@pytest.mark.parametrize("projected", [{}, {"attention": "linformer", "projected_length": 4}])
def test_an_empty_batch_is_named(shape, projected):
    tokens = torch.zeros(shape, dtype=torch.long)
    for given in ({}, {"attention_mask": tokens}, {"lengths": tokens.sum(1)}):
        with pytest.raises(ValueError, match="input_ids: expected at least one sequence of at least one word"):
            build(**projected)(tokens, **given)


@pytest.mark.parametrize("word", [29, -1])
def test_words_beyond_the_vocabulary_are_named(word):
    with pytest.raises(ValueError, match=rf"input_ids: .*{word}"):
        build()(torch.full((2, 3), word))


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # of the exporter's own code
@pytest.mark.parametrize(
    ("name", "projected"),
    [
        *((name, {}) for name in ("diet-rel", "diet-abs", "t5", "tupe-rel", "shaw", "rope")),
        *((name, {"attention": "linformer", "projected_length": 4}) for name in ("learned", "diet-abs")),
    ],
)
def test_exported_for_any_length(name, projected):
    model, length = build(encoding=name, **projected), torch.export.Dim("length", min=2, max=16)
    exported = torch.export.export(
        model, (torch.ones(3, 9, dtype=torch.long),), dynamic_shapes={"input_ids": {1: length}}, strict=False
    ).module()
    for length in (2, 9, 16):
        tokens = torch.randint(1, 29, (3, length))
        assert_close(exported(tokens).last_hidden_state, model(tokens).last_hidden_state, **EXACT)


@pytest.mark.parametrize("sharing", ["head", "layer", None])
@pytest.mark.parametrize("name", ["diet-rel", "alibi"])
def test_checkpoints_whose_segments_share_as_positions_load_as_they_were(name, sharing, tmp_path):
    """Before the encoding was one text, one field `sharing` held for positions and segments alike."""
    positions = f"sharing={sharing}," if sharing and name == "diet-rel" else ""
    segments = "segments=per-head" + (f",segment_sharing={sharing}" if sharing else "")
    model, tokens = build(encoding=f"{name}:{positions}{segments}"), words(2, 9)
    model.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    old = {"encoding": name, "sharing": sharing, "segments": "per-head", "encoding_options": {}}
    (tmp_path / "config.json").write_text(json.dumps({**saved, **old}))
    again = EncoderModel.from_pretrained(tmp_path, dtype=torch.float64)
    assert again.config.encoding == model.config.encoding
    ids = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 1]] * 2)
    one, other = (each(tokens, token_type_ids=ids).last_hidden_state for each in (model, again))
    assert torch.equal(one, other)
    assert {key: each.shape for key, each in again.state_dict().items()} == {
        key: each.shape for key, each in model.state_dict().items()
    }
