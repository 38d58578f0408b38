"""Small models with random parameters, so that no zero bias and no unit norm can hide an error."""

from dataclasses import replace

import pytest
import torch
import transformers

from headway.encodings import EncodingChoice
from headway.models import EncoderConfig, EncoderModel

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


def randomized(model, seed=0):
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=draw, dtype=torch.float64) * 0.3
            parameter.copy_(noise + (1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0))
    return model.double().eval()


@pytest.fixture
def bert():
    def make(**options):
        return randomized(transformers.BertModel(transformers.BertConfig(**{**SIZES, **options})))

    return make


@pytest.fixture
def own():
    """Headway's encoders by the name of the encoding."""

    def make(encoding, segments="none", **options):
        choice = replace(EncodingChoice.parse(encoding), segments=segments)
        return randomized(EncoderModel(EncoderConfig(**{**SIZES, **options}, encoding=str(choice))))

    return make


@pytest.fixture
def albert():
    def make(**options):
        config = transformers.AlbertConfig(**{**SIZES, "embedding_size": 10, "num_hidden_layers": 3, **options})
        return randomized(transformers.AlbertModel(config))

    return make


@pytest.fixture
def gpt2():
    sizes = {name: SIZES[name] for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")}
    config = transformers.GPT2Config(**sizes, n_positions=40, bos_token_id=0, eos_token_id=0)
    return randomized(transformers.GPT2Model(config))


@pytest.fixture
def t5():
    config = transformers.T5Config(vocab_size=50, d_model=24, d_kv=5, d_ff=32, num_layers=2, num_heads=3)
    return randomized(transformers.T5Model(config))


class Tokenizer:
    """Each letter a token; what `analyze` needs of a tokenizer."""

    def __call__(self, text, truncation, max_length):
        ids = [ord(letter) % 50 for letter in text][:max_length]
        return {"input_ids": ids, "token_type_ids": [n % 2 for n in range(len(ids))]}


@pytest.fixture
def tokenizer():
    return Tokenizer()
