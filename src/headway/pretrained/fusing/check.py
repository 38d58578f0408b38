"""`headway fuse --check`: a model's own numbers and times beside those of the fused model, on this machine."""

from __future__ import annotations

import copy
import statistics
import time
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
import transformers
from torch import Tensor

from headway.pretrained.fusing.surgery import Fusing, fuse, fused

ROUNDS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class FuseConfig:
    """What is compared.

    Args:
        model: a folder of transformers, or a name on the Hub.
        length: tokens of each sequence.
        batch: sequences.
        rounds: timed calls of each row, which take turns.
        device: "auto" takes a GPU if there is one.
        revision: branch, tag or commit of a model on the Hub.
        seed: of the random tokens.
    """

    model: str
    length: int = 128
    batch: int = 4
    rounds: int = ROUNDS
    device: str = "auto"
    revision: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("length", "batch", "rounds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}.")


@dataclass(frozen=True)
class Row:
    """One implementation of the model: median seconds of a call, and its greatest difference from eager attention."""

    name: str
    seconds: float | None
    difference: float | None
    problem: str | None = None


@dataclass(frozen=True)
class Check:
    """All rows, and what fusing did to the model."""

    rows: list[Row]
    fusing: Fusing
    scale: float  # greatest number of the eager output, beside which differences stand

    @property
    def ratio(self) -> float | None:
        """Time of transformers' fastest row over that of the fused model."""
        times = {row.name: row.seconds for row in self.rows if row.seconds is not None}
        ours = times.pop("headway", None)
        return min(times.values()) / ours if ours and times else None


def run(config: FuseConfig) -> Check:
    """Load a model, fuse a copy of it, and compare outputs and times of inference."""
    device = config.device if config.device != "auto" else ("cuda" if torch.cuda.is_available() else "cpu")
    return compare(load(config, attn_implementation="eager").to(device).eval(), config)


def load(config: FuseConfig, **asked: Any) -> Any:
    """Load the model without its head; one that was saved as an encoder alone is loaded as that."""
    saved = transformers.AutoConfig.from_pretrained(config.model, revision=config.revision)
    name = (saved.architectures or [""])[0]
    kind: Any = getattr(transformers, name) if name.endswith("EncoderModel") else transformers.AutoModel
    return kind.from_pretrained(config.model, revision=config.revision, **asked)


def compare(model: Any, config: FuseConfig) -> Check:
    """Compare a model with eager attention, the same with SDPA where it has that, and the same fused."""
    inputs = random_inputs(model, config)
    rows = {"eager": model}
    problems = {}
    try:
        rows["sdpa"] = copy.deepcopy(model)
        rows["sdpa"].set_attn_implementation("sdpa")
        if rows["sdpa"].config._attn_implementation != "sdpa":
            raise ValueError("the model computes attention itself")
    except (ValueError, ImportError) as error:
        del rows["sdpa"]
        problems["sdpa"] = str(error).split(". ")[0]
    rows["headway"] = fuse(copy.deepcopy(model))
    with torch.inference_mode():
        outputs = {name: each(**inputs).last_hidden_state for name, each in rows.items()}  # warms up too
        times: dict[str, list[float]] = {name: [] for name in rows}
        for _ in range(config.rounds):
            for name, each in rows.items():
                times[name].append(_seconds(each, inputs))
    eager = outputs["eager"]
    measured = [Row(name, statistics.median(times[name]), float((outputs[name] - eager).abs().max())) for name in rows]
    absent = [Row(name, None, None, problem) for name, problem in problems.items()]
    return Check(measured + absent, fused(rows["headway"]), float(eager.abs().max()))


def random_inputs(model: Any, config: FuseConfig) -> dict[str, Tensor]:
    """Return random tokens, or random images for a model of images."""
    draw = torch.Generator().manual_seed(config.seed)
    if model.main_input_name == "pixel_values":
        size = model.config.image_size
        height, width = (size, size) if isinstance(size, int) else size
        images = torch.randn(config.batch, model.config.num_channels, height, width, generator=draw)
        return {"pixel_values": images.to(model.device, model.dtype)}
    if model.main_input_name != "input_ids":
        raise NotImplementedError(
            f"model: expected one of text or images, got one of {model.main_input_name}. Leave --check out."
        )
    words = model.get_input_embeddings().num_embeddings
    ids = torch.randint(min(5, words - 1), words, (config.batch, config.length), generator=draw).to(model.device)
    more = {"decoder_input_ids": ids} if "decoder_input_ids" in signature(model.forward).parameters else {}
    return {"input_ids": ids, **more}


def _seconds(model: Any, inputs: dict[str, Tensor]) -> float:
    def wait() -> None:
        if model.device.type == "cuda":
            torch.cuda.synchronize()

    wait()
    start = time.perf_counter()
    model(**inputs)
    wait()
    return time.perf_counter() - start
