"""What `read` and `load_model` refuse, and what they say."""

import json
import shutil
import subprocess
import sys

import pytest
import torch
import transformers

from headway.pretrained.analysis.loading import load_model, load_tokenizer, read, revision_of
from headway.pretrained.analysis.scores import position_scores
from headway.pretrained.analysis.toeplitz import diagonals


def test_an_unknown_family_names_the_known_ones():
    model = transformers.XLNetModel(transformers.XLNetConfig(vocab_size=9, d_model=8, n_layer=1, n_head=2, d_inner=8))
    with pytest.raises(NotImplementedError, match=r"bert, roberta, .*headway-encoder, got 'xlnet'"):
        read(model)


def test_what_is_no_model_is_refused():
    with pytest.raises(TypeError, match="expected a transformers model"):
        read(torch.nn.Linear(2, 2))


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_named(bert, broken):
    model = bert()
    with torch.no_grad():
        model.encoder.layer[1].attention.self.key.weight[3, 4] = broken
    with pytest.raises(ValueError, match=r"layer 1: key\.weight: expected finite weights"):
        read(model)


def test_broken_biases_are_named_too(own):
    model = own("tisa")
    with torch.no_grad():
        model.encoding.center[1, 0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"finite values, got NaN"):
        position_scores(read(model), 1)


@pytest.mark.parametrize("asked", [2, 41, 0, -1])
def test_more_positions_than_there_are(bert, asked):
    with pytest.raises(ValueError, match=rf"positions: expected 3 to 40 \(the model's positions\), got {asked}"):
        position_scores(read(bert()), 0, asked)


def test_encodings_that_extend_have_no_limit(own):
    assert position_scores(read(own("tisa")), 0, 100).length == 100
    with pytest.raises(ValueError, match="3 to 40"):
        position_scores(read(own("diet-abs")), 0, 41)


def test_a_layer_that_is_not_there(bert):
    with pytest.raises(ValueError, match="layer: expected 0 to 1, got 2"):
        position_scores(read(bert()), 2)


def test_tables_that_transformers_no_longer_loads(bert):
    model = bert()
    model.config.position_embedding_type = "relative_key"
    with pytest.raises(NotImplementedError, match="'relative_key'"):
        read(model)


def test_linformer_has_no_score_of_one_position_for_another(own):
    model = own("diet-abs", attention="linformer", projected_length=6)
    with pytest.raises(NotImplementedError, match="'linformer'"):
        read(model)


def test_stacks(bert, t5):
    with pytest.raises(ValueError, match="stack: expected one of encoder, decoder, got 'middle'"):
        read(t5, stack="middle")
    with pytest.raises(ValueError, match="bert has one stack"):
        read(bert(), stack="decoder")
    encoder = transformers.T5EncoderModel(t5.config)
    with pytest.raises(ValueError, match="all that T5EncoderModel has"):
        read(encoder, stack="decoder")


def test_shared_layers_are_told(albert, bert):
    assert read(albert()).alike == (0, 0, 0)
    assert read(albert(num_hidden_groups=3)).alike == (0, 1, 2)
    assert read(bert()).alike == (0, 1)


def test_half_precision_is_read(bert):
    exact, half = read(bert()), read(bert().to(torch.bfloat16))
    r2 = [diagonals(position_scores(reading, 0)).r2 for reading in (exact, half)]
    assert abs(r2[0] - r2[1]).max() < 0.05


def test_arrays_are_the_models_own_numbers_and_not_copies(bert):
    model = bert()
    reading = read(model)
    with torch.no_grad():
        model.embeddings.position_embeddings.weight[0, 0] = 77.0
    assert reading.positions[0, 0] == 77.0


# Loading.


@pytest.fixture
def folder(bert, tmp_path):
    bert().float().save_pretrained(tmp_path)
    return tmp_path


def test_models_load(folder, own, tmp_path_factory):
    assert read(load_model(str(folder))).model_type == "bert"
    other = tmp_path_factory.mktemp("own")
    own("diet-rel").float().save_pretrained(other)
    assert read(load_model(str(other))).model_type == "headway-encoder"


def test_a_folder_has_no_revision(folder):
    assert revision_of(load_model(str(folder))) is None
    with pytest.raises(ValueError, match="revision: expected none for a folder"):
        load_model(str(folder), revision="main")


def test_loading_leaves_the_log_as_it_was(folder):
    from transformers.utils import logging

    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    load_model(str(folder))
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


def test_a_converted_model_says_what_makes_it_known(folder):
    """In a process of its own: here, other tests may have imported it."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "headway-bert"}))
    code = f"from headway.pretrained.analysis import load_model; load_model({str(folder)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "got 'headway-bert', a converted model. Add `import headway.pretrained.conversion`" in done.stderr


def test_a_folder_without_weights(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"expected weights \(\*\.safetensors\)"):
        load_model(str(folder))


def test_weights_that_belong_to_another_model(folder):
    config = transformers.BertConfig.from_pretrained(folder)
    config.num_hidden_layers = 3
    config.save_pretrained(folder)
    with pytest.raises(ValueError, match=r"got none for encoder\.layer\.2\.attention.*random numbers"):
        load_model(str(folder))


def test_pickled_weights_are_refused_with_the_way_out(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"got pytorch_model\.bin.*weights_only=True"):
        load_model(str(folder))


def test_a_folder_without_a_configuration(folder):
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match=r"expected a folder with config\.json"):
        load_model(str(folder))


def test_an_unsupported_architecture_is_refused_before_its_weights_are_read(folder):
    shutil.rmtree(folder)
    transformers.LongformerConfig().save_pretrained(folder)
    (folder / "model.safetensors").write_bytes(b"never opened")
    with pytest.raises(NotImplementedError, match="got 'longformer'"):
        load_model(str(folder))


def test_no_tokenizer(folder):
    with pytest.raises(ValueError, match=r"tokenizer: expected one of tokenizer\.json.*save_pretrained\("):
        load_tokenizer(str(folder))
