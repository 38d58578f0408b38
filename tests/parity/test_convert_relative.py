"""Checkpoints of types relative_key and relative_key_query against transformers' former formula, written as loops."""

from __future__ import annotations

import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM, BertConfig, BertForMaskedLM, BertModel, RobertaConfig, RobertaModel

from headway.pretrained.analysis.hidden_states import token_states
from headway.pretrained.analysis.loading import read
from headway.pretrained.analysis.scores import scores_of
from headway.pretrained.conversion import load_relative

LENGTH, HEADS, WIDTH, LAYERS = 12, 2, 8, 2
SIZES = {
    "vocab_size": 40,
    "hidden_size": HEADS * WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 20,
    "max_position_embeddings": LENGTH,
    "initializer_range": 0.4,
}


def former(folder, kind, model):
    """A folder as transformers 4 would have saved it: tables of distances, and positions that are not used."""
    model.save_pretrained(folder)
    state = load_file(folder / "model.safetensors")
    inside = "bert." if any(name.startswith("bert.") for name in state) else ""
    tables = []
    for n in range(LAYERS):
        table = torch.randn(2 * model.config.max_position_embeddings - 1, WIDTH, dtype=torch.float64)
        state[f"{inside}encoder.layer.{n}.attention.self.distance_embedding.weight"] = table
        tables.append(table)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text()) | {"position_embedding_type": kind}
    (folder / "config.json").write_text(json.dumps(config))
    return tables


def by_hand(model, tables, kind, ids):
    """BERT layer by layer; the scores of every pair by themselves. `model` is transformers' own, without tables."""
    base = model.base_model
    e = base.embeddings
    x = e.LayerNorm(e.word_embeddings(ids) + e.token_type_embeddings(torch.zeros_like(ids)))  # no position
    most = model.config.max_position_embeddings
    for layer, table in zip(base.encoder.layer, tables, strict=True):
        attention = layer.attention.self
        q, k, v = (
            part(x)[0].view(-1, HEADS, WIDTH).transpose(0, 1)
            for part in (attention.query, attention.key, attention.value)
        )
        length = ids.shape[1]
        mixed = torch.zeros(length, HEADS, WIDTH, dtype=torch.float64)
        for h in range(HEADS):
            for left in range(length):
                scores = []
                for right in range(length):
                    d = table[left - right + most - 1]
                    score = q[h, left] @ k[h, right] + q[h, left] @ d
                    if kind == "relative_key_query":
                        score = score + k[h, right] @ d
                    scores.append(score / math.sqrt(WIDTH))
                weights = torch.stack(scores).softmax(0)
                mixed[left, h] = weights @ v[h]
        x = layer.attention.output(mixed.flatten(1)[None], x)
        x = layer.output(layer.intermediate(x), x)
    return x


@pytest.mark.parametrize("kind", ["relative_key", "relative_key_query"])
def test_it_runs_again_as_it_did(tmp_path, kind):
    torch.manual_seed(0)
    model = BertForMaskedLM(BertConfig(**SIZES)).double().eval()
    tables = former(tmp_path, kind, model)
    loaded = load_relative(str(tmp_path))
    assert loaded.dtype == torch.float64
    ids = torch.randint(1, 40, (1, 9))
    want = by_hand(model, tables, kind, ids)
    torch.testing.assert_close(loaded.base_model(ids).last_hidden_state, want)
    torch.testing.assert_close(loaded(ids).logits, model.cls(want))


@pytest.mark.parametrize("kind", ["relative_key", "relative_key_query"])
def test_saved_it_loads_as_every_converted_model(tmp_path, kind):
    torch.manual_seed(0)
    former(tmp_path, kind, BertForMaskedLM(BertConfig(**SIZES)).double())
    loaded = load_relative(str(tmp_path))
    loaded.save_pretrained(tmp_path / "again")
    again = AutoModelForMaskedLM.from_pretrained(tmp_path / "again").eval()
    ids = torch.randint(1, 40, (2, LENGTH))
    mask = (torch.arange(LENGTH) < torch.tensor([[LENGTH], [5]])).long()
    assert torch.equal(again(ids, attention_mask=mask).logits, loaded(ids, attention_mask=mask).logits)
    alone = loaded(ids[1:, :5]).logits
    torch.testing.assert_close(loaded(ids, attention_mask=mask).logits[1:, :5], alone)


@pytest.mark.parametrize("kind", ["relative_key", "relative_key_query"])
def test_what_is_read_of_it_gives_the_weights_that_it_reports(tmp_path, kind):
    torch.manual_seed(0)
    former(tmp_path, kind, BertModel(BertConfig(**SIZES)).double())
    model = load_relative(str(tmp_path))
    reading = read(model)
    assert reading.positions is None and reading.limit is None
    ids = torch.randint(1, 40, (1, 9))
    with torch.no_grad():
        reported = model(ids, output_attentions=True).attentions
    for layer, projected in enumerate(token_states(reading, ids[0].numpy())):
        scores = scores_of(reading, layer, projected)
        whole = torch.from_numpy(scores.matrices())
        torch.testing.assert_close(whole.softmax(-1), reported[layer][0])
        torch.testing.assert_close(torch.from_numpy(scores.tile(2, 7, 1, 4)), whole[:, 2:7, 1:4])


def test_tables_learn_on_both_sides(tmp_path):
    torch.manual_seed(0)
    tables = former(tmp_path, "relative_key_query", BertModel(BertConfig(**SIZES)).double())
    model = load_relative(str(tmp_path)).train()
    ids = torch.randint(1, 40, (1, 6))
    model.eval()(ids).last_hidden_state.pow(2).sum().backward()
    table = model.position_bias.encoding.key_table
    torch.testing.assert_close(table[0, 0].detach(), tables[0].flip(0))
    assert (table.grad[:, :, LENGTH - 6 : LENGTH + 5] != 0).any(-1).all()
    plain = BertModel.from_pretrained(tmp_path, key_mapping={}).double().eval()
    wanted = [t.clone().requires_grad_() for t in tables]
    by_hand(plain, wanted, "relative_key_query", ids).pow(2).sum().backward()
    for n, want in enumerate(wanted):
        torch.testing.assert_close(table.grad[n, 0], want.grad.flip(0))


def test_roberta_too(tmp_path):
    torch.manual_seed(0)
    model = RobertaModel(RobertaConfig(**SIZES | {"max_position_embeddings": LENGTH + 2, "pad_token_id": 1})).double()
    tables = former(tmp_path, "relative_key", model.eval())
    ids = torch.randint(3, 40, (1, LENGTH))
    torch.testing.assert_close(
        load_relative(str(tmp_path))(ids).last_hidden_state, by_hand(model, tables, "relative_key", ids)
    )


def test_what_is_no_such_checkpoint_is_told(tmp_path):
    model = BertModel(BertConfig(**SIZES))
    model.save_pretrained(tmp_path / "absolute")
    with pytest.raises(ValueError, match="expected position_embedding_type relative_key or relative_key_query"):
        load_relative(str(tmp_path / "absolute"))
    config = json.loads((tmp_path / "absolute" / "config.json").read_text())
    config["position_embedding_type"] = "relative_key"
    (tmp_path / "absolute" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"says relative_key, and encoder\.layer\.0"):
        load_relative(str(tmp_path / "absolute"))
    (tmp_path / "absolute" / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="expected weights"):
        load_relative(str(tmp_path / "absolute"))
    with pytest.raises(ValueError, match="is no folder"):
        load_relative(str(tmp_path / "nowhere"))
