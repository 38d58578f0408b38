"""What Table 1 of Wennberg and Henter (2021) asks of an encoding, each criterion as a measurement.

The criteria are those of Sec. 1. The cells of the paper's table are lost in the text that we have; `PUBLISHED` has what
Secs. 1, 2 and 6 say of each approach in words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headway.bias import Bias
from headway.encodings.base import Encoding
from headway.encodings.choice import encoding
from headway.encodings.registry import ENCODINGS

NAMES = (
    "inductive",
    "data_driven",
    "parameter_efficient",
    "translation_invariant",
    "parallelizable",
    "interpretable",
)
PUBLISHED: dict[str, dict[str, bool]] = {
    # Sec. 1: BERT and its like have many positional parameters and a longest text; Sec. 2: they learn from data.
    "learned": {"inductive": False, "data_driven": True, "parameter_efficient": False},
    # Sec. 1: Shaw et al. argue for translation invariance. Sec. 2: their attention and Huang et al.'s is hard to
    # parallelize; like Raffel et al.'s it resolves dependencies up to a fixed distance only.
    "shaw": {"inductive": False, "translation_invariant": True, "parallelizable": False},
    "music-transformer": {"inductive": False, "parallelizable": False},
    "t5": {"inductive": False, "translation_invariant": True},
    # Sec. 2: Ke et al.'s proposal is neither inductive nor parameter-efficient.
    "tupe-abs": {"inductive": False, "parameter_efficient": False},
    "tupe-rel": {"inductive": False, "parameter_efficient": False},
    # Sec. 2: Tay et al.'s is not inductive, because the matrix has a fixed size.
    "synthesizer": {"inductive": False},
    # Sec. 2: Su et al.'s rotations are translation-invariant and not learned.
    "rope": {"translation_invariant": True, "data_driven": False},
    # Sec. 6: TISA is the first to satisfy all six.
    "tisa": dict.fromkeys(NAMES, True),
}

LENGTH = 16  # longest text of training, in the measurements
FAR = 600  # positions of a text that is much longer than that, and than any distance that an encoding tells apart
SHIFT = 5  # positions by which a text is moved
SCALES = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)  # of random parameters, tried in turn
EQUAL = 1e-9  # relative difference below which scores are the same
FEW = 0.1  # share of the parameters of a learned table, below which there are few


@dataclass(frozen=True, kw_only=True, slots=True)
class Criteria:
    """Which of the six criteria an encoding meets, and what was measured for it.

    Args:
        inductive: both any length and any distance.
        any_length: it gives finite scores for texts longer than in training, without new parameters.
        any_distance: with suitable parameters it tells any two distances apart, also beyond those of training.
        data_driven: it has parameters, and the scores change with them.
        parameter_efficient: it has at most a tenth of the parameters of a learned table for 512 positions.
        parameters: with default options, for the sizes of BERT-base.
        translation_invariant: words that move together, all by the same number of positions, keep their scores.
        parallelizable: no product of each word's query with a vector of its own for each offset; what is added to the
            scores is one matrix for all texts.
        interpretable: what it adds to a score depends on positions alone and not on the words.
        published: what the paper says of it, by criterion.
    """

    name: str
    inductive: bool
    any_length: bool
    any_distance: bool
    data_driven: bool
    parameter_efficient: bool
    parameters: int
    translation_invariant: bool
    parallelizable: bool
    interpretable: bool
    published: Mapping[str, bool] = field(default_factory=dict)

    @property
    def differences(self) -> tuple[str, ...]:
        """Name the criteria of which the paper says otherwise."""
        return tuple(name for name, said in self.published.items() if said != getattr(self, name))


def measure_criteria(names: tuple[str, ...] = tuple(ENCODINGS)) -> list[Criteria]:
    """Measure the criteria of encodings with their default options.

    Scores are those of one random layer in float64, q k^T with everything that the encoding does, for random words.
    """
    table = _parameters("learned")
    found = []
    for name in names:
        any_length = _takes_any_length(name)
        any_distance = any_length and any(_tells_distances_apart(name, scale) for scale in SCALES)
        parameters = _parameters(name)
        found.append(
            Criteria(
                name=name,
                inductive=any_length and any_distance,
                any_length=any_length,
                any_distance=any_distance,
                data_driven=_learns(name),
                parameter_efficient=parameters <= FEW * table,
                parameters=parameters,
                translation_invariant=_keeps_scores_of_moved_words(name),
                parallelizable=_adds_one_matrix(name),
                interpretable=_adds_positions_alone(name),
                published=PUBLISHED.get(name, {}),
            )
        )
    return found


class _Layer:
    """One layer of random projections around an encoding with random parameters."""

    def __init__(self, name: str, scale: float = 0.3) -> None:
        draw = torch.Generator().manual_seed(0)
        self.heads, self.width = 2, 8
        self.encoding: Encoding = encoding(
            name, num_layers=1, num_heads=self.heads, head_dim=self.width, max_length=LENGTH
        ).double()
        with torch.no_grad():
            for parameter in self.encoding.parameters():
                parameter.copy_(scale * torch.randn(parameter.shape, generator=draw, dtype=torch.float64))
        size = self.heads * self.width
        self.w_query, self.w_key = torch.randn(2, size, size, generator=draw, dtype=torch.float64) / size**0.5

    def words(self, length: int, seed: int = 1) -> Tensor:  # (1, L, E)
        draw = torch.Generator().manual_seed(seed)
        return torch.randn(1, length, self.heads * self.width, generator=draw, dtype=torch.float64)

    def queries_and_keys(self, words: Tensor) -> tuple[Tensor, Tensor]:  # (1, H, L, D) both
        x = self.encoding.embed(words)
        q, k = ((x @ w).unflatten(-1, (self.heads, -1)).transpose(1, 2) for w in (self.w_query, self.w_key))
        return self.encoding.rotate(q, k, layer=0)

    @property
    def scale(self) -> float:
        return self.encoding.scale or self.width**-0.5

    def bias(self, length: int) -> Bias | None:
        return self.encoding.bias(0, length, length)

    def scores(self, words: Tensor) -> Tensor:  # (H, L, L)
        q, k = self.queries_and_keys(words)
        scores = self.scale * q @ k.transpose(-1, -2)
        bias = self.bias(words.shape[1])
        return (scores if bias is None else scores + bias.dense(q, scale=self.scale))[0]

    def word_scores(self, words: Tensor) -> Tensor:  # (H, L, L)
        """Return the scores of the words alone, as if there were no encoding."""
        q, k = ((words @ w).unflatten(-1, (self.heads, -1)).transpose(1, 2) for w in (self.w_query, self.w_key))
        scores: Tensor = self.scale * q @ k.transpose(-1, -2)
        return scores[0]


def _equal(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs().max() <= EQUAL * max(1.0, float(a.abs().max())))


def _parameters(name: str) -> int:
    with torch.device("meta"):
        built = encoding(name, num_layers=12, num_heads=12, head_dim=64, max_length=512)
    return sum(parameter.numel() for parameter in built.parameters())


@torch.no_grad()
def _takes_any_length(name: str) -> bool:
    layer = _Layer(name)
    try:
        return bool(layer.scores(layer.words(FAR)).isfinite().all())
    except ValueError:  # the encoding refuses the length
        return False


@torch.no_grad()
def _tells_distances_apart(name: str, scale: float) -> bool:
    """Compare the scores of one word for equal words at neighbouring distances, none of which training has seen."""
    layer = _Layer(name, scale)
    words = layer.words(1).expand(1, FAR, -1)
    steps = layer.scores(words)[:, 0, FAR // 2 :].diff().abs()
    return bool((steps > 1e-13).all())


def _learns(name: str) -> bool:
    layer = _Layer(name)
    parameters = list(layer.encoding.parameters())
    if not parameters:
        return False
    scores = layer.scores(layer.words(LENGTH))
    weights = torch.randn(scores.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = torch.autograd.grad((scores * weights).sum(), parameters, allow_unused=True)
    return any(gradient is not None and bool(gradient.abs().sum() > 0) for gradient in found)


@torch.no_grad()
def _keeps_scores_of_moved_words(name: str) -> bool:
    layer = _Layer(name)
    words = layer.words(LENGTH - SHIFT)
    moved = torch.cat([layer.words(SHIFT, seed=3), words], 1)
    return _equal(layer.scores(moved)[:, SHIFT:, SHIFT:], layer.scores(words))


@torch.no_grad()
def _adds_one_matrix(name: str) -> bool:
    layer = _Layer(name)
    bias = layer.bias(LENGTH)
    if bias is None:
        return True
    first, second = (
        bias.dense(layer.queries_and_keys(layer.words(LENGTH, seed))[0], scale=layer.scale) for seed in (1, 4)
    )
    return _equal(first, second)


@torch.no_grad()
def _adds_positions_alone(name: str) -> bool:
    layer = _Layer(name)
    first, second = (
        layer.scores(words) - layer.word_scores(words) for words in (layer.words(LENGTH), layer.words(LENGTH, seed=4))
    )
    return _equal(first, second)
