"""Converted models against transformers' own eager attention, which is given each layer's bias as a mask to add."""

from __future__ import annotations

import pytest
import torch
import transformers
from transformers import AutoModel

from headway.pretrained.conversion import BIASES, convert
from headway.pretrained.conversion.converted import encoding_of

SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "initializer_range": 0.2,
    "max_position_embeddings": 26,
}
LAYERS = {  # where the module is that takes the mask, and how often it runs
    "Bert": lambda model: [layer.attention.self for layer in model.encoder.layer],
    "Roberta": lambda model: [layer.attention.self for layer in model.encoder.layer],
    "Electra": lambda model: [layer.attention.self for layer in model.encoder.layer],
    "Albert": lambda model: [model.encoder.albert_layer_groups[0].albert_layers[0].attention] * 3,
    "DistilBert": lambda model: [layer.attention for layer in model.transformer.layer],
}


def original(prefix):
    torch.manual_seed(0)
    own = {"DistilBert": {"dim": 32, "n_heads": 4, "n_layers": 3, "hidden_dim": 40}, "Albert": {"embedding_size": 16}}
    kept = ("vocab_size", "max_position_embeddings", "initializer_range") if prefix == "DistilBert" else SIZES
    config = getattr(transformers, f"{prefix}Config")(**{name: SIZES[name] for name in kept}, **own.get(prefix, {}))
    return AutoModel.from_config(config).double().eval()


def oracle(model, prefix, encoding, ids, mask):
    """transformers' eager attention: scores * scale + (bias + mask), in the model that was not converted."""
    model.set_attn_implementation("eager")
    padding = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(mask == 0, torch.finfo(torch.float64).min)
    length = ids.shape[1]
    biases = [encoding.bias(n, length, length).dense() + padding[:, None, None] for n in range(3)]
    biases = iter([bias.expand(len(ids), 4, -1, -1) for bias in biases])

    def give(module, args, kwargs):
        if len(args) > 1:
            return (args[0], next(biases), *args[2:]), kwargs
        return args, {**kwargs, "attention_mask": next(biases)}

    hooks = [
        module.register_forward_pre_hook(give, with_kwargs=True) for module in dict.fromkeys(LAYERS[prefix](model))
    ]
    try:
        return model(ids).last_hidden_state
    finally:
        for hook in hooks:
            hook.remove()


@pytest.mark.parametrize("mode", ["supplement", "replace"])
@pytest.mark.parametrize("to", BIASES)
@pytest.mark.parametrize("prefix", LAYERS)
def test_the_bias_is_added_in_every_layer(prefix, to, mode):
    model = original(prefix)
    converted = convert(model, to, mode=mode, start=None if to == "alibi" else "random")
    draw = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in encoding_of(converted).parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw, dtype=torch.float64))
    ids = torch.randint(5, 60, (3, 20), generator=draw)
    mask = (torch.arange(20) < torch.tensor([[20], [13], [1]])).long()
    got = converted(ids, attention_mask=mask).last_hidden_state
    if mode == "replace":  # every row in use becomes the mean
        with torch.no_grad():
            rows = model.embeddings.position_embeddings.weight
            first = 2 if prefix == "Roberta" else 0
            rows[first:] = rows[first:].mean(0)
    want = oracle(model, prefix, encoding_of(converted), ids, mask)
    inside = mask.bool()
    torch.testing.assert_close(got[inside], want[inside])


def test_gradients_are_those_of_the_formula():
    model = original("Bert")
    converted = convert(model, "tisa", start="random")
    encoding = encoding_of(converted)
    ids, mask = torch.arange(5, 25)[None], torch.ones(1, 20)
    weigh = torch.randn(20, 32, dtype=torch.float64)
    (converted(ids).last_hidden_state * weigh).sum().backward()
    got = [parameter.grad.clone() for parameter in encoding.parameters()]
    encoding.zero_grad()
    (oracle(model, "Bert", encoding, ids, mask) * weigh).sum().backward()
    for mine, parameter in zip(got, encoding.parameters(), strict=True):
        torch.testing.assert_close(mine, parameter.grad)
