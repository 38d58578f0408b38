"""Models and tokenizers from a folder or the Hub: safetensors only, no code that comes with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headway.analysis.reading import check_supported
from headway.storage import read_json

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.msgpack", "*.h5")
VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model")


def load_model(source: str) -> Any:
    """The model without a head, from a folder or by its name on the Hub."""
    from transformers import AutoConfig, AutoModel

    import headway.models  # noqa: F401  registers headway's own encoders

    if Path(source).is_dir():
        check_folder(Path(source))
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"model: expected a folder with config.json, or a name on the Hub, got {str(source)!r}: {error}"
        ) from error
    check_supported(config.model_type)
    model, info = AutoModel.from_pretrained(
        source, config=config, use_safetensors=True, trust_remote_code=False, output_loading_info=True
    )
    missing = sorted(name for name in info["missing_keys"] if "pooler" not in name)  # only a task's head uses that
    if missing:
        raise ValueError(
            f"model: expected all weights of {type(model).__name__} in {str(source)!r}, got none for {missing[0]} "
            f"({len(missing)} in all), which would be random numbers. Check that config.json belongs to the weights."
        )
    return model.eval()


def load_tokenizer(source: str) -> Any:
    """The tokenizer that lies beside a model."""
    from transformers import AutoTokenizer

    folder = Path(source)
    if folder.is_dir() and not any((folder / name).is_file() for name in VOCABULARIES):
        # transformers would make one that knows no word
        raise ValueError(f"tokenizer: expected one of {', '.join(VOCABULARIES)} in {folder}, got none.")
    try:
        return AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"tokenizer: expected its files in {str(source)!r}, got {error}.") from error


def check_folder(folder: Path) -> None:
    """Raise for a folder that is no model's, or whose weights are not safetensors."""
    if not (folder / "config.json").is_file():
        raise ValueError(
            f"model: expected a folder with config.json, got {folder} without. Name the model's own folder."
        )
    model_type = read_json(folder / "config.json").get("model_type")
    if model_type is not None:
        check_supported(model_type)  # also what transformers does not know
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
