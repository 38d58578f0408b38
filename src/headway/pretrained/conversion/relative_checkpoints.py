"""BERT checkpoints trained with transformers' former relative positions, running again.

Until version 5, `position_embedding_type` "relative_key" and "relative_key_query" gave each layer one vector for each
distance i - j, shared by its heads; no position was added to the input.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig

from headway.encodings import EncodingChoice
from headway.pretrained.analysis.loading import check_folder
from headway.pretrained.conversion.conversion import FAMILIES, SHAW, Conversion
from headway.pretrained.conversion.converted import CONFIGS, MODELS, Converted
from headway.storage import read_json

TYPES = ("relative_key", "relative_key_query")
TABLE = ".attention.self.distance_embedding.weight"  # of a layer, (2 * max_position_embeddings - 1, D)


def load_relative(folder: str) -> Converted:
    """Load a model from a folder whose positions are of type relative_key or relative_key_query.

    Paper:    Shaw et al. (2018), Eq. (4); relative_key_query: Huang et al. (2020), "Improve Transformer Models with
              Better Relative Position Embeddings", method 4
    Formula:  relative_key: scores[h, i, j] = scale * (q[h, i] . k[h, j] + q[h, i] . d[i - j])
              relative_key_query: the same, + scale * k[h, j] . d[i - j]
    Symbols:  d -> Shaw's key_table, reversed, because headway counts offsets as j - i
    Checked:  tests/parity/test_convert_relative.py

    The model saves and loads as every converted model does. relative_key runs in linear memory; the keys' term of
    relative_key_query is made as a whole matrix, B * H * L * L numbers in each layer. Texts longer than the tables
    (max_position_embeddings) take the outermost vectors; transformers refused them.
    """
    path = Path(folder)
    if not path.is_dir():
        raise ValueError(
            f"folder: {str(folder)!r} is no folder. Download the model, and name the folder that has its config.json."
        )
    check_folder(path)
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    kind = _class_for(config)
    state = _read_weights(path)
    conversion = Conversion(
        encoding=str(EncodingChoice(SHAW, {"clip": None, "keys": True, "values": False}, sharing="head")),
        mode="replace",
        max_length=config.max_position_embeddings,
        meets_keys=config.position_embedding_type == "relative_key_query",
    )
    settings = {
        name: value for name, value in config.to_dict().items() if name not in ("model_type", "position_embedding_type")
    }
    settings["position_bias"] = conversion.to_dict()
    settings["pooler"] = any("pooler." in name for name in state)
    model, info = kind.from_pretrained(
        None,
        config=CONFIGS[config.model_type](**settings),
        state_dict=_rename_tables(state, kind.base_model_prefix, config),
        output_loading_info=True,
    )
    missing = sorted(name for name in info["missing_keys"] if "pooler" not in name)
    if missing:
        raise ValueError(
            f"folder: {folder} lacks weights of {kind.__name__}: {', '.join(missing[:4])}. Download the whole model."
        )
    return model.eval()  # type: ignore[no-any-return]


def _class_for(config: Any) -> type[Converted]:
    """Return the class to load, and raise for a checkpoint that is not of these types."""
    position_type = getattr(config, "position_embedding_type", None) or "absolute"
    if position_type not in TYPES:
        raise ValueError(
            f"config: expected position_embedding_type {' or '.join(TYPES)}, got {position_type!r}. "
            f"Models with absolute positions are loaded with from_pretrained."
        )
    usual = [name for name, family in FAMILIES.items() if family.attention == "attention.self"]
    if config.model_type not in usual:
        raise NotImplementedError(f"config: expected one of the types {', '.join(usual)}, got {config.model_type!r}.")
    if getattr(config, "is_decoder", False):
        raise NotImplementedError("config: expected an encoder, got a decoder (is_decoder).")
    for name in config.architectures or []:
        if getattr(transformers, name, None) in MODELS:
            return MODELS[getattr(transformers, name)]
    return MODELS[transformers.AutoModel._model_mapping[type(config)]]


def _read_weights(folder: Path) -> dict[str, Tensor]:
    """Read all tensors of a folder, from one file or several."""
    index = folder / "model.safetensors.index.json"
    names = sorted(set(read_json(index)["weight_map"].values())) if index.is_file() else ["model.safetensors"]
    state: dict[str, Tensor] = {}
    for name in names:
        if not (folder / name).is_file():
            raise ValueError(f"folder: expected {name} in {folder}, got none. Download the whole model.")
        state |= load_file(folder / name)
    return state


def _rename_tables(state: dict[str, Tensor], prefix: str, config: Any) -> dict[str, Tensor]:
    """Join the tables of all layers into one of headway's, and leave no position in the input."""
    inside = f"{prefix}." if any(name.startswith(f"{prefix}.") for name in state) else ""
    names = [f"{inside}encoder.layer.{n}{TABLE}" for n in range(config.num_hidden_layers)]
    lost = [name for name in names if name not in state]
    if lost:
        raise ValueError(
            f"folder: the configuration says {config.position_embedding_type}, and {lost[0]} is not among the weights. "
            f"Download the whole model."
        )
    tables = torch.stack([state[name] for name in names])  # (layers, 2 * max_length - 1, D), by i - j
    kept = {
        name: tensor
        for name, tensor in state.items()
        if name not in names and not name.endswith(("position_ids", "token_type_ids"))
    }
    kept[f"{inside}position_bias.encoding.key_table"] = tables.flip(1)[:, None].contiguous()
    kept[f"{inside}embeddings.position_embeddings.weight"] = torch.zeros(
        1, config.hidden_size if not hasattr(config, "embedding_size") else config.embedding_size, dtype=tables.dtype
    )
    return kept
