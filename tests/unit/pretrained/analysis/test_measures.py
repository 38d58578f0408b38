"""`analyze` on small models: everything is there, finite, and lasts on disk."""

import json
import tracemalloc

import numpy as np
import pytest
import torch
import transformers
from numpy.testing import assert_allclose

from headway.pretrained.analysis import analyze
from headway.pretrained.analysis.head_measures import shrink
from headway.pretrained.analysis.loading import read
from headway.pretrained.analysis.matrices import Whole
from headway.pretrained.analysis.measures import flatten, to_plain
from headway.pretrained.analysis.scores import position_scores
from headway.pretrained.analysis.text_measures import measure_tokens
from headway.pretrained.analysis.tisa_fit import fit_tisa
from headway.pretrained.analysis.toeplitz import diagonals, toeplitz_r2

TEXTS = ["position belongs in the attention heads", "", "and not in the input, so it is said"]


def numbers(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from numbers(part)
    elif isinstance(value, int | float):
        yield value


@pytest.fixture
def measured(bert, tokenizer):
    return analyze(bert(), tokenizer, TEXTS)


def test_heads_have_what_the_single_calls_give(bert, measured):
    model = bert()
    heads = measured.heads
    assert heads.r2.shape == heads.kinds.shape == (2, 3)
    for layer in range(2):
        matrices = position_scores(read(model), layer).matrices()
        assert_allclose(heads.r2[layer], toeplitz_r2(matrices), rtol=1e-9)
        assert_allclose(heads.r2_without_first[layer], toeplitz_r2(matrices[:, 1:, 1:]), rtol=1e-8)
        assert_allclose(heads.mean[layer], diagonals(matrices).mean, rtol=1e-9, atol=1e-12)
        assert_allclose(heads.corner[layer], matrices, rtol=1e-9)  # 40 positions are all in the corner
        assert_allclose(heads.attention[layer].sum(-1), 1.0)
        for h, fits in enumerate(fit_tisa(diagonals(matrices))):
            for count in (1, 3, 5):
                assert heads.fits[count].amplitude.shape == (2, 3, count)
                assert_allclose(heads.fits[count].r2_matrix[layer, h], fits[count].r2_matrix, atol=1e-6)
    assert_allclose(heads.r2_carried[0], heads.r2[0], rtol=1e-6)  # nothing lies below the first layer
    assert abs(heads.r2_carried[1] - heads.r2[1]).max() > 1e-3


def test_every_part_is_there(measured):
    assert measured.model.positions == measured.model.limit == 40
    assert measured.model.position_parameters == 40 * 24
    assert measured.table.gram.mean.shape == (1, 79)
    assert measured.gram_picture.shape == (40, 40)
    assert measured.segments.scores.shape == (2, 3, 2, 2)
    assert measured.segments.attention.shape == (2, 3, 32, 32)
    assert measured.curves is None
    assert measured.texts.ranks.each["whole"].numerical.shape == (2, 2, 3)  # the empty text is left out
    assert measured.texts.patterns.previous.shape == (2, 3)


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_attention_to_the_same_token_is_that_of_the_model(bert, gpt2, kind):
    """Over all tokens of both texts that stand elsewhere too; in a causal model, that stood before."""
    model = {"bert": bert(), "gpt2": gpt2}[kind]
    model.set_attn_implementation("eager")
    texts = [np.array([3, 5, 3, 7, 3, 5]), np.array([9, 8, 9])]
    found = measure_tokens(read(model), [(ids, None) for ids in texts]).same_token
    shares, chances = [], []
    for ids in texts:
        weights = model(input_ids=torch.tensor(ids[None]), output_attentions=True).attentions
        for i, token in enumerate(ids):
            others = [j for j, other in enumerate(ids) if other == token and j != i and (kind == "bert" or j < i)]
            if others:
                shares.append([[float(head[i, others].sum().detach()) for head in layer[0]] for layer in weights])
                chances.append(len(others) / (len(ids) if kind == "bert" else i + 1))
    assert len(shares) == (7 if kind == "bert" else 4)
    assert_allclose(found.share, np.mean(shares, axis=0), rtol=1e-4)
    assert found.chance == pytest.approx(np.mean(chances))
    assert measure_tokens(read(model), [(np.array([1, 2, 3]), None)]).same_token is None


def test_the_json_is_finite_and_small_and_says_what_the_arrays_are(measured, tmp_path):
    paths = measured.save(tmp_path / "new" / "folder")
    assert [path.name for path in paths] == ["measures.json", "arrays.npz"]
    text = paths[0].read_text()
    content = json.loads(text)
    assert all(np.isfinite(number) for number in numbers(content))
    assert len(text) < 20_000
    assert_allclose(content["heads"]["r2"], measured.heads.r2, rtol=1e-5)
    assert_allclose(content["heads"]["fits"]["3"]["center"], measured.heads.fits[3].center, rtol=1e-5, atol=1e-12)
    assert content["heads"]["kinds"] == measured.heads.kinds.tolist()
    assert content["model"]["model_type"] == "bert"
    assert content["texts"]["ranks"]["within_theorem"] is True
    assert np.shape(content["texts"]["ranks"]["average"]["words"]["effective"]) == (1, 3)
    with np.load(paths[1], allow_pickle=False) as arrays:
        assert {name: list(arrays[name].shape) for name in arrays} == content["arrays"]
        assert_allclose(arrays["heads.mean"], measured.heads.mean, rtol=1e-5, atol=1e-6)
        assert_allclose(arrays["table.norms"], measured.table.norms, rtol=1e-6)


def test_two_runs_give_the_same(bert):
    one, two = (analyze(bert(), kernels=[3], carried=False).to_json() for _ in range(2))
    assert one == two


def test_progress_counts_every_step(bert, tokenizer):
    seen = []
    analyze(bert(), tokenizer, [TEXTS[0]], progress=lambda done, total, what: seen.append((done, total, what)))
    assert [done for done, _, _ in seen] == list(range(1, seen[-1][0] + 1))
    assert seen[-1][0] == seen[-1][1] == 6
    assert "layer 1" in [what for _, _, what in seen]


def test_fewer_positions(bert):
    found = analyze(bert(), positions=20, kernels=[1], carried=False)
    assert found.model.positions == found.heads.length == len(found.table.norms) == 20
    assert found.heads.r2_carried is None
    with pytest.raises(ValueError, match="3 to 40"):
        analyze(bert(), positions=41)


@pytest.mark.parametrize("encoding", ["diet-rel", "diet-abs", "rope", "tisa", "alibi", "sinusoidal", "none"])
def test_headway_encoders(own, encoding, tokenizer, tmp_path):
    found = analyze(own(encoding, segments="per-head"), tokenizer, TEXTS, kernels=[1])
    found.save(tmp_path)
    assert (found.table is not None) == (encoding == "sinusoidal")
    assert (found.curves is not None) == (encoding in ("diet-rel", "diet-abs", "tisa", "alibi"))
    assert found.segments.scores.shape == (2, 3, 2, 2)
    if encoding not in ("diet-abs", "sinusoidal"):  # these depend on the offset alone
        assert_allclose(found.heads.r2, 1.0, rtol=1e-7)


def test_a_causal_model_is_measured_where_it_looks(gpt2, tokenizer):
    found = analyze(gpt2, tokenizer, TEXTS, kernels=[1])
    assert found.model.causal
    assert found.heads.offsets.tolist() == list(range(-39, 1))
    assert found.segments is None
    assert_allclose(found.heads.patterns.next, 0.0)
    assert_allclose(np.triu(found.heads.attention, 1), 0.0)
    matrix = position_scores(read(gpt2), 1).matrices()
    inside = np.tri(40, dtype=bool)
    for h in range(3):
        values = matrix[h][inside]
        left = sum(((np.diag(matrix[h], -k) - np.diag(matrix[h], -k).mean()) ** 2).sum() for k in range(40))
        assert_allclose(found.heads.r2[1, h], 1 - left / ((values - values.mean()) ** 2).sum(), rtol=1e-8)


def test_t5_and_its_decoder(t5, tokenizer):
    encoder, decoder = analyze(t5, kernels=[1], positions=60), analyze(t5, kernels=[1], positions=60, stack="decoder")
    assert encoder.table is None
    assert encoder.curves.mean.shape == (2, 3, 119)
    assert decoder.curves.mean.shape == (2, 3, 60)
    assert decoder.heads.r2_carried is None
    with pytest.raises(NotImplementedError, match="does not run on a text alone"):
        analyze(t5, tokenizer, TEXTS, positions=10, kernels=[1], stack="decoder")


def test_layers_that_share_are_measured_once_and_shown_each(albert):
    found = analyze(albert(), kernels=[1])
    assert found.model.shared_layers == (0, 0, 0)
    assert found.heads.r2.shape == (3, 3)
    assert_allclose(found.heads.r2[1], found.heads.r2[0], rtol=0)
    assert abs(found.heads.r2_carried[2] - found.heads.r2[2]).max() > 1e-3


def test_texts_that_cannot_be_used(bert, tokenizer):
    with pytest.raises(ValueError, match="tokenizer: expected the model's tokenizer"):
        analyze(bert(), texts=TEXTS)
    with pytest.raises(ValueError, match="texts: expected at least one text of 3 tokens"):
        analyze(bert(), tokenizer, ["", "  ", "ab"], kernels=[1])
    with pytest.raises(ValueError, match="texts: expected at least one text"):
        analyze(bert(), tokenizer, [], kernels=[1])
    with pytest.raises(TypeError, match="got one string"):
        analyze(bert(), tokenizer, "one text", kernels=[1])


def test_a_tokenizer_of_another_model(bert):
    def foreign(text, truncation, max_length):
        return {"input_ids": [3, 4, 30_000]}

    with pytest.raises(ValueError, match="tokenizer: expected ids below 50"):
        analyze(bert(), foreign, ["abc"], kernels=[1])


@pytest.mark.parametrize(("length", "pixels"), [(10, 4), (7, 7), (12, 5), (3, 128)])
def test_pictures_are_means_over_pixels(length, pixels):
    matrix = np.random.default_rng(0).normal(size=(2, length, length))
    found = shrink(Whole(matrix), pixels)
    side = min(pixels, length)
    edges = [n * length // side for n in range(side)] + [length]
    for a in range(side):
        for b in range(side):
            covered = matrix[:, edges[a] : edges[a + 1], edges[b] : edges[b + 1]]
            assert_allclose(found[:, a, b], covered.mean((1, 2)), rtol=1e-10)


def test_what_is_not_finite_becomes_none():
    assert to_plain({"a": np.array([1.0, np.nan]), "b": (np.inf, 2)}) == {"a": [1.0, None], "b": [None, 2]}
    assert to_plain(np.float64(1.23456789)) == 1.23457


def test_arrays_are_named_by_their_way(measured):
    names = flatten(measured)
    assert "heads.fits.5.amplitude" in names
    assert "texts.ranks.each.whole.effective" in names
    assert names["heads.kinds"].dtype.kind == "U"


@pytest.mark.slow
def test_long_models_in_bounded_memory():
    """Twelve matrices of 4,096 x 4,096 would take 1.5 GiB."""
    config = transformers.BertConfig(vocab_size=100, num_hidden_layers=1, max_position_embeddings=4096)
    model = transformers.BertModel(config).eval()
    tracemalloc.start()
    found = analyze(model, kernels=[1], carried=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.heads.mean.shape == (1, 12, 8191)
    assert peak < 400 * 2**20


def test_single_numbers_are_in_the_json_whatever_their_name(measured):
    cosines = measured.to_json()["table"]["cosines"]
    assert_allclose(
        [cosines["mean"], cosines["std"]], [measured.table.cosines.mean, measured.table.cosines.std], rtol=1e-5
    )
    assert set(cosines) == {"mean", "std"}  # the histogram itself is in the arrays
