"""Tiny models of every family, and a tokenizer for them."""

from __future__ import annotations

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "initializer_range": 0.3,
}
LENGTH = 24  # positions of every model

FAMILIES = {  # prefix of the classes, and what differs
    "bert": ("Bert", {}),
    "roberta": ("Roberta", {"max_position_embeddings": LENGTH + 2, "pad_token_id": 1}),
    "xlm-roberta": ("XLMRoberta", {"max_position_embeddings": LENGTH + 2, "pad_token_id": 1}),
    "camembert": ("Camembert", {"max_position_embeddings": LENGTH + 2, "pad_token_id": 1}),
    "electra": ("Electra", {"embedding_size": 16}),
    "albert": ("Albert", {"embedding_size": 16, "inner_group_num": 2, "num_hidden_groups": 1}),
    "distilbert": ("DistilBert", {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 40}),
}


@pytest.fixture
def tiny():
    """A random model of a family, in float64, so that differences are those of formulas."""

    def make(family: str, head: str = "Model", *, seed: int = 0, dtype: torch.dtype = torch.float64, **changes):
        prefix, own = FAMILIES[family]
        sizes = {**SIZES, "max_position_embeddings": LENGTH, **own, **changes}
        if family == "distilbert":  # the other names are read-only there
            sizes = {name: value for name, value in sizes.items() if name not in SIZES or name in ("vocab_size",)}
            sizes["initializer_range"] = SIZES["initializer_range"]
        torch.manual_seed(seed)
        model = getattr(transformers, f"{prefix}{head}")(getattr(transformers, f"{prefix}Config")(**sizes))
        return model.to(dtype).eval()

    return make


@pytest.fixture
def ids():
    """(3, 20) tokens that are no padding."""
    return torch.randint(5, 60, (3, 20), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def randomised():
    """Parameters of the bias drawn anew: one that starts at 0 would hide a bias that is lost."""

    def draw(model, seed: int = 3, std: float = 1.0):
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.base_model.position_bias.parameters():
                parameter.copy_(std * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
        return model

    return draw


SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [f"w{n}" for n in range(55)]


@pytest.fixture(scope="module")
def tokenizer():
    known = {word: n for n, word in enumerate(SPECIAL + WORDS)}
    made = Tokenizer(models.WordLevel(known, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=made, **names)


@pytest.fixture(scope="module")
def texts():
    draw = torch.Generator().manual_seed(2)
    sizes = (50, 7, 30, 13)
    return [" ".join(WORDS[n] for n in torch.randint(55, (size,), generator=draw)) for size in sizes]
