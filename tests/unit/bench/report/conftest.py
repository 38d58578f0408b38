"""Small analysed models, saved as `headway analyze` saves them."""

import base64
import zlib

import numpy as np
import pytest
import torch
import transformers

from headway.models import EncoderConfig, EncoderModel
from headway.pretrained.analysis import analyze
from headway.storage import write_json

SIZES = {
    "vocab_size": 50,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
    "type_vocab_size": 2,
    "pad_token_id": 0,
}
TEXTS = ["position belongs in the attention heads", "and not in the input, so it is said"]


def tokenizer(text, truncation, max_length):
    ids = [ord(letter) % 50 for letter in text][:max_length]
    return {"input_ids": ids, "token_type_ids": [0] * len(ids)}


def analysed(folder, model, texts=TEXTS, **options):
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
    analyze(model.eval(), tokenizer if texts else None, texts, **options).save(folder)
    return folder


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory):
    """Everything but bias curves."""
    folder = tmp_path_factory.mktemp("bert")
    return analysed(folder, transformers.BertModel(transformers.BertConfig(**SIZES)))


@pytest.fixture(scope="session")
def own_folder(tmp_path_factory):
    """Bias curves; no position table, no texts, no segments."""
    folder = tmp_path_factory.mktemp("own")
    return analysed(folder, EncoderModel(EncoderConfig(**SIZES, encoding="diet-rel:segments=none")), texts=None)


@pytest.fixture(scope="session")
def gpt2_folder(tmp_path_factory):
    """Causal."""
    sizes = {name: SIZES[name] for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")}
    config = transformers.GPT2Config(**sizes, n_positions=40, bos_token_id=0, eos_token_id=0)
    return analysed(tmp_path_factory.mktemp("gpt2"), transformers.GPT2Model(config), kernels=[1])


@pytest.fixture
def record():
    """Write what a command notes beside its measures."""

    def write(folder, **changed):
        config = {"model": "organisation/name", "weights": None, "kernels": [1, 3, 5], "seed": 0, **changed}
        note = {"config": config, "command": "headway analyze organisation/name", "environment": {"torch": "2.13.0"}}
        write_json(folder / "config.json", note)

    return write


@pytest.fixture(scope="session")
def unpacked():
    """Decode one array of a page, number by number."""

    def decode(packed, name):
        entry = packed["index"][name]
        content = zlib.decompress(base64.b64decode(packed["blob"]))[entry["at"] :]
        width = entry["bits"] // 8
        rows, size = entry["shape"][0], int(np.prod(entry["shape"][1:]))
        values = np.zeros((rows, size))
        for row in range(rows):
            running = 0
            for n in range(size):
                at = (row * size + n) * width
                running = (running + int.from_bytes(content[at : at + width], "little")) % 2 ** entry["bits"]
                values[row, n] = entry["low"][row] + entry["step"][row] * running
        return values.reshape(entry["shape"])

    return decode
