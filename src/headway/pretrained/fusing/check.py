"""`headway fuse --check`: a model's own numbers and times beside those of the fused model, on this machine."""

from __future__ import annotations

import copy
import statistics
import time
from dataclasses import dataclass
from inspect import signature
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor

from headway.pretrained.fusing.surgery import Fusing, fuse, fused

ROUNDS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class FuseConfig:
    """The model to compare with its fused copy, its input and the device.

    Args:
        model: folder of a transformers model, or a name on the Hub.
        length: number of tokens, or of frames of speech, of the longest sequence.
        batch: number of sequences.
        padding: give the sequences several lengths; without it all have `length` tokens.
        rounds: number of timed calls of each row, which take turns.
        device: device to run on; auto takes a GPU if there is one.
        revision: branch, tag or commit of a model on the Hub.
        seed: seed of the random tokens.
    """

    model: str
    length: int = 128
    batch: int = 4
    padding: bool = True
    rounds: int = ROUNDS
    device: str = "auto"
    revision: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("length", "batch", "rounds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}.")


class Inputs(NamedTuple):
    """What a model is given, and where its outputs are compared."""

    arguments: dict[str, Tensor]
    keep: Tensor | None  # boolean (B, L), True for the tokens whose outputs are compared; None compares all outputs
    what: str  # kind and size of the input, in words

    def outputs(self, model: Any) -> Tensor:
        """Run a model and return the outputs that are compared."""
        found: Tensor = model(**self.arguments).last_hidden_state
        return found if self.keep is None else found[self.keep]


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
    what: str  # what the model was given

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
    model = kind.from_pretrained(config.model, revision=config.revision, **asked)
    if saved.model_type == "speecht5":  # its encoder takes frames, which the rest of the model makes in several ways
        return model.encoder.wrapped_encoder
    return getattr(model, "speech_encoder", model)  # of SeamlessM4T, the part that has a bias


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
        outputs = {name: inputs.outputs(each) for name, each in rows.items()}  # warms up too
        times: dict[str, list[float]] = {name: [] for name in rows}
        for _ in range(config.rounds):
            for name, each in rows.items():
                times[name].append(_seconds(each, inputs.arguments))
    eager = outputs["eager"]
    measured = [Row(name, statistics.median(times[name]), float((outputs[name] - eager).abs().max())) for name in rows]
    absent = [Row(name, None, None, problem) for name, problem in problems.items()]
    return Check(measured + absent, fused(rows["headway"]), float(eager.abs().max()), inputs.what)


def random_inputs(model: Any, config: FuseConfig) -> Inputs:
    """Return random inputs of the kind that a model takes first."""
    first = "hidden_states" if "hidden_states" in signature(model.forward).parameters else model.main_input_name
    if first not in INPUTS:
        raise NotImplementedError(
            f"model: its main input is {first}, and --check can make {', '.join(INPUTS)} alone. Use --no-check."
        )
    return INPUTS[first](model, config, torch.Generator().manual_seed(config.seed))


def random_text(model: Any, config: FuseConfig, draw: torch.Generator) -> Inputs:
    """Return random tokens; with padding, sequences from a quarter of the length to the whole, padded on the right."""
    words = model.get_input_embeddings().num_embeddings
    ids = torch.randint(min(5, words - 1), words, (config.batch, config.length), generator=draw)
    keep = random_padding(config, draw)
    taken = signature(model.forward).parameters
    arguments = {"input_ids": ids, "attention_mask": keep.long()}
    if "decoder_input_ids" in taken:
        arguments["decoder_input_ids"] = ids
    if "bbox" in taken:  # places of the words on a page, from 0 to 1: left, top, right, bottom
        corners = torch.rand(config.batch, config.length, 2, 2, generator=draw).sort(2).values
        arguments["bbox"] = corners.flatten(2)
        if model.config.model_type != "udop":  # LayoutLM counts thousandths of the page
            arguments["bbox"] = (1000 * arguments["bbox"]).long()
    return Inputs(
        {name: each.to(model.device) for name, each in arguments.items()},
        None if "decoder_input_ids" in taken else keep.to(model.device),
        f"{config.batch} x {config.length}, {int(keep.sum())} tokens",
    )


def random_padding(config: FuseConfig, draw: torch.Generator) -> Tensor:  # boolean (B, L), True = no padding
    """Return which positions of a batch are no padding; the first sequence has the whole length."""
    lengths = torch.full((config.batch,), config.length)
    if config.padding:
        lengths[1:] = torch.randint(-(-config.length // 4), config.length + 1, (config.batch - 1,), generator=draw)
    return torch.arange(config.length) < lengths[:, None]


def random_images(model: Any, config: FuseConfig, draw: torch.Generator) -> Inputs:
    """Return random images of the model's size, which have no padding."""
    size = model.config.image_size
    height, width = (size, size) if isinstance(size, int) else size
    images = torch.randn(config.batch, model.config.num_channels, height, width, generator=draw)
    return Inputs({"pixel_values": images.to(model.device, model.dtype)}, None, f"{config.batch} images")


def random_waveforms(model: Any, config: FuseConfig, draw: torch.Generator) -> Inputs:
    """Return random waveforms of which the model's convolutions make `length` frames."""
    keep = random_padding(config, draw)
    samples = keep.sum(1)
    for kernel, stride in reversed(list(zip(model.config.conv_kernel, model.config.conv_stride, strict=True))):
        samples = (samples - 1) * stride + kernel
    waves = torch.randn(config.batch, int(samples.max()), generator=draw).to(model.device, model.dtype)
    mask = (torch.arange(waves.shape[1]) < samples[:, None]).long()
    return _speech(model, {"input_values": waves, "attention_mask": mask.to(model.device)}, keep)


def random_features(model: Any, config: FuseConfig, draw: torch.Generator) -> Inputs:
    """Return random features of speech, of which the model makes `length` frames."""
    settings = model.config
    width = getattr(settings, "feature_projection_input_dim", None) or settings.num_mel_bins
    every = getattr(settings, "subsampling_factor", 1)
    keep = random_padding(config, draw)
    features = torch.randn(config.batch, config.length * every, width, generator=draw).to(model.device, model.dtype)
    mask = keep.repeat_interleave(every, 1).long().to(model.device)
    return _speech(model, {"input_features": features, "attention_mask": mask}, keep)


def random_frames(model: Any, config: FuseConfig, draw: torch.Generator) -> Inputs:
    """Return random frames for an encoder that takes them as they are."""
    keep = random_padding(config, draw)
    frames = torch.randn(config.batch, config.length, model.config.hidden_size, generator=draw)
    frames = frames.to(model.device, model.dtype)
    return _speech(model, {"hidden_states": frames, "attention_mask": keep.long().to(model.device)}, keep)


def _speech(model: Any, arguments: dict[str, Tensor], keep: Tensor) -> Inputs:
    shorter = getattr(model.config, "add_adapter", False)  # an adapter makes one frame of several
    what = f"{keep.shape[0]} x {keep.shape[1]}, {int(keep.sum())} frames"
    return Inputs(arguments, None if shorter else keep.to(model.device), what)


INPUTS = {  # a model's main input -> what makes it
    "input_ids": random_text,
    "pixel_values": random_images,
    "input_values": random_waveforms,
    "input_features": random_features,
    "hidden_states": random_frames,
}


def _seconds(model: Any, inputs: dict[str, Tensor]) -> float:
    def wait() -> None:
        if model.device.type == "cuda":
            torch.cuda.synchronize()

    wait()
    start = time.perf_counter()
    model(**inputs)
    wait()
    return time.perf_counter() - start
