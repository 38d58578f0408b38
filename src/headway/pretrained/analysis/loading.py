"""Load models and tokenizers from a folder or the Hub, from safetensors only and without code that comes with them.

`read` finds the positions, embeddings and projections of a model of any supported family.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from headway.models.pretrained import quiet_transformers
from headway.pretrained.analysis.anatomy import Reading
from headway.pretrained.analysis.hugging_face import FAMILIES, read_hugging_face
from headway.pretrained.analysis.own_encoders import read_own
from headway.pretrained.fusing.registry import FAMILIES as FUSED_FAMILIES
from headway.pretrained.model_types import CONVERTED, OWN
from headway.storage import read_json

STACKS = ("encoder", "decoder")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.msgpack", "*.h5")
VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model")


def read(model: Any, *, stack: str = "encoder") -> Reading:
    """Read the parts of a transformers or headway model that decide how positions act on its scores.

    Args:
        model: any head or none; its `config.model_type` says the family.
        stack: encoder or decoder of an encoder-decoder (T5's family).
    """
    kind = getattr(getattr(model, "config", None), "model_type", None)
    if kind is None:
        raise TypeError(f"model: expected a transformers model, with a config, got {type(model).__name__}.")
    if stack not in STACKS:
        raise ValueError(f"stack: expected one of {', '.join(STACKS)}, got {stack!r}.")
    check_supported(kind)
    return read_own(model) if kind == OWN else read_hugging_face(model, stack=stack)


def check_supported(model_type: str) -> None:
    """Raise for a model type of no family whose parts are known."""
    if model_type.removeprefix(CONVERTED) not in FAMILIES and model_type != OWN:
        raise NotImplementedError(
            f"model: expected one of the types {', '.join([*FAMILIES, OWN])}, got {model_type!r}. "
            f"A family is one row of headway/pretrained/analysis/hugging_face.py; converted models are read too, and "
            f"`headway analyze` takes the models of text that `headway fuse` takes."
        )


def is_fused_family(model_type: str | None) -> bool:
    """Return whether a model's parts are not known here, but `headway.fuse` takes it."""
    return model_type not in FAMILIES and model_type in FUSED_FAMILIES


def check_analyzed(model_type: str) -> None:
    """Raise for a model type that `analyze` does not take."""
    if not is_fused_family(model_type):
        check_supported(model_type)


def load_model(source: str, *, revision: str | None = None) -> Any:
    """Load a model without a head, from a folder or by its name on the Hub, there at a branch, tag or commit.

    Converted models are known after `import headway.pretrained.conversion`.
    """
    from transformers import AutoModel

    return load_checked(source, check_analyzed, lambda config: AutoModel, revision=revision)


def load_masked_words(source: str, *, revision: str | None = None) -> Any:
    """Load an encoder with its head for masked words: one of ours, or of any family of transformers that has one."""
    from transformers import AutoModelForMaskedLM

    return load_checked(source, lambda model_type: None, lambda config: AutoModelForMaskedLM, revision=revision)


def load_with_head(source: str, *, seed: int = 0) -> Any:
    """Load an encoder with a head for masked words: its own, or a new one whose output layer is its table of words.

    Args:
        seed: seed of a new head's weights.
    """
    import torch
    from transformers import AutoModelForMaskedLM

    encoder = load_model(source)
    if any(name.endswith(("ForMaskedLM", "ForPreTraining")) for name in encoder.config.architectures or []):
        return load_masked_words(source)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        headed = AutoModelForMaskedLM.from_config(encoder.config)
    weights = encoder.state_dict()
    headed.base_model.load_state_dict({name: weights[name] for name in weights if not name.startswith("pooler.")})
    return headed.eval()


def load_checked(
    source: str, check: Callable[[str], None], choose: Callable[[Any], Any], *, revision: str | None = None
) -> Any:
    """Load a model with all of its weights, in evaluation mode.

    Args:
        check: raises for a model type that is not wanted, before any weight is read.
        choose: the class to load, by the configuration.

    Of a model on the Hub, `revision_of` then says which commit it is.
    """
    from transformers import AutoConfig

    import headway.models  # noqa: F401  registers headway's own encoders

    _check_revision(source, revision)
    if Path(source).is_dir():
        check_folder(Path(source), check)
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=False, revision=revision)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"model: expected a folder with config.json, or a name on the Hub, got {str(source)!r}: {error}"
        ) from error
    check(config.model_type)
    revision = _commit(source, revision) or revision  # all files are then of one commit
    with quiet_transformers():
        model, info = choose(config).from_pretrained(
            source,
            config=config,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            revision=revision,
        )
    missing = sorted(name for name in info["missing_keys"] if "pooler" not in name)  # only a task's head uses that
    if len(missing) < len(info["missing_keys"]) and model.base_model is model:
        model.pooler = None  # it would be random numbers
    if missing:
        raise ValueError(
            f"model: expected all weights of {type(model).__name__} in {str(source)!r}, got none for {missing[0]} "
            f"({len(missing)} in all), which would be random numbers. Check that config.json belongs to the weights."
        )
    model.config._commit_hash = revision  # a name that transformers knows, and leaves out of config.json
    return model.eval()


def revision_of(model: Any) -> str | None:
    """Return the commit on the Hub that a model was loaded from; None for a folder, or where it is not known."""
    return getattr(model.config, "_commit_hash", None)


def load_tokenizer(source: str, *, revision: str | None = None) -> Any:
    """Load the tokenizer that lies beside a model."""
    from transformers import AutoTokenizer

    folder = Path(source)
    if folder.is_dir() and not any((folder / name).is_file() for name in VOCABULARIES):
        # transformers would make one that knows no word
        raise ValueError(
            f"tokenizer: expected one of {', '.join(VOCABULARIES)} in {folder}, got none. "
            f"Save the model's own there: AutoTokenizer.from_pretrained(NAME).save_pretrained({str(folder)!r})."
        )
    try:
        return AutoTokenizer.from_pretrained(source, trust_remote_code=False, revision=revision)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"tokenizer: it could not be loaded from {str(source)!r}: {error} Save the model's own tokenizer there."
        ) from error


def named_class(name: str) -> Any:
    """Return the class of models that a configuration names, headway's or transformers'; None where neither has it."""
    import transformers

    import headway.models

    return getattr(headway.models, name, None) or getattr(transformers, name, None)


def check_folder(folder: Path, check: Callable[[str], None] = check_supported) -> None:
    """Raise for a folder that is no model's, or whose weights are not safetensors."""
    if not (folder / "config.json").is_file():
        raise ValueError(
            f"model: expected a folder with config.json, got {folder} without. Name the model's own folder."
        )
    model_type = read_json(folder / "config.json").get("model_type")
    if model_type is not None:
        check(model_type)  # also what transformers does not know
        _check_registered(model_type)
    if any(folder.glob("*.safetensors")):
        return
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if pickles:
        raise ValueError(
            f"model: expected weights as safetensors, got {', '.join(pickles)} in {folder}. Opening such files may run "
            f"code. If you trust this one, convert it once: model.load_state_dict(torch.load(file, "
            f"weights_only=True)), then model.save_pretrained(folder)."
        )
    raise ValueError(f"model: expected weights (*.safetensors) in {folder}, got none. Download the whole model.")


def _check_registered(model_type: str) -> None:
    """Raise for a converted model whose classes are not registered; the conversion module, which is not imported here,
    registers them."""
    from transformers import CONFIG_MAPPING

    if model_type.removeprefix(CONVERTED) in FAMILIES and model_type not in CONFIG_MAPPING:
        raise ValueError(
            f"model: expected a type that transformers knows, got {model_type!r}, a converted model. "
            f"Add `import headway.pretrained.conversion`, which makes it known."
        )


def _commit(source: str, revision: str | None) -> str | None:
    """Return the commit that a revision of a Hub model is now; the cache keeps its files under that commit."""
    from transformers.utils import cached_file, extract_commit_hash

    if Path(source).is_dir():
        return None
    commit: str | None = extract_commit_hash(cached_file(source, "config.json", revision=revision), None)
    return commit


def _check_revision(source: str, revision: str | None) -> None:
    if revision is not None and Path(source).is_dir():
        raise ValueError(
            f"revision: expected none for a folder, which has but one, got {revision!r} for {source}. Leave it out."
        )
