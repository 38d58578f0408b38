"""F_P of every layer and head: Toeplitz R^2, profile, TISA fits, kind of head, small pictures, and curves of biases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from headway.bias import Bias, RelativeKeys, RelativeProducts, Sum
from headway.pretrained.analysis.anatomy import Reading
from headway.pretrained.analysis.hidden_states import position_states
from headway.pretrained.analysis.matrices import Array, Blocks, Window, bands
from headway.pretrained.analysis.patterns import Patterns, attention_patterns, softmax, stack_patterns
from headway.pretrained.analysis.scores import Scores, position_scores
from headway.pretrained.analysis.tisa_fit import TisaFit, fit_tisa
from headway.pretrained.analysis.toeplitz import Diagonals, Windows, diagonals, windowed_r2, without_first

PICTURE = 128  # pixels to a side of the whole matrix, each the mean of what it covers
CORNER = 64  # first positions shown one by one


@dataclass(frozen=True, eq=False)
class Fits:
    """TISA fits with one number of kernels, S, of all layers and heads."""

    amplitude: Array  # (layers, H, S)
    sharpness: Array  # (layers, H, S)
    center: Array  # (layers, H, S)
    constant: Array  # (layers, H)
    r2_profile: Array  # (layers, H)
    r2_matrix: Array  # (layers, H)


@dataclass(frozen=True, eq=False)
class HeadMeasures:
    """Position scores of all layers and heads, over L positions."""

    length: int
    formula: str  # of F_P, see `position_scores`
    offsets: Array  # (N,), j - i; 0 and less for a causal model
    mean: Array  # (layers, H, N), profile: mean over the pairs with each offset
    std: Array  # (layers, H, N)
    r2: Array  # (layers, H), Toeplitz R^2
    r2_without_first: Array  # (layers, H), position 0, that of [CLS], left out
    r2_carried: Array | None  # (layers, H), of positions as they arrive through the network below
    window: int
    window_starts: Array  # (W,)
    window_r2: Array  # (layers, H, W)
    fits: dict[int, Fits]  # by number of kernels
    patterns: Patterns  # attention from positions alone, over the first pattern_length positions
    kinds: Array  # (layers, H), of strings
    picture: Array  # (layers, H, P, P), F_P, averaged over pixels
    corner: Array  # (layers, H, C, C), F_P of the first positions
    attention: Array  # (layers, H, C, C), softmax of F_P, of the first C positions among themselves


@dataclass(frozen=True, eq=False)
class _LayerMeasures:
    profile: Diagonals
    r2_without_first: Array
    windows: Windows
    fits: list[dict[int, TisaFit]]
    patterns: Patterns
    picture: Array
    corner: Array
    attention: Array


def measure_heads(
    reading: Reading,
    length: int | None = None,
    *,
    formula: str = "model",
    kernels: Sequence[int] = (1, 3, 5),
    window: int = 128,
    pattern_length: int = 128,
    carried: bool = True,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> HeadMeasures:
    """Measure F_P of all layers and heads.

    Args:
        formula: model or equation, see `position_scores`; what arrives through the network is always the model's.
        window: positions of the sliding windows of R^2.
        pattern_length: positions over which the softmax is taken for patterns: a usual text, not the longest one.
        carried: also run a text of average words through the network, and measure F_P of what arrives at each layer.
        progress: called with each layer's number when it is done.
    """
    length = reading.length(length)
    return measure_scores(
        lambda layer: position_scores(reading, layer, length, formula=formula),
        reading.alike,
        formula=formula,
        r2_carried=_measure_carried(reading, length) if carried and reading.runs_alone else None,
        kernels=kernels,
        window=window,
        pattern_length=pattern_length,
        seed=seed,
        progress=progress,
    )


def measure_scores(
    scores_of: Callable[[int], Scores],
    alike: Sequence[int],
    *,
    formula: str,
    kernels: Sequence[int],
    r2_carried: Array | None = None,
    window: int = 128,
    pattern_length: int = 128,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> HeadMeasures:
    """Measure the position scores that a function returns for each layer; see `measure_heads`.

    Args:
        alike: for each layer, the first with the same scores, which is measured once.
    """
    layers: list[_LayerMeasures] = []
    for layer, same in enumerate(alike):
        if same < layer:
            layers.append(layers[same])
        else:
            scores = scores_of(layer)
            length = scores.length
            layers.append(_measure_layer(scores, kernels, window, min(pattern_length, length), seed))
        if progress is not None:
            progress(layer)
    profiles = [one.profile for one in layers]
    patterns = stack_patterns([one.patterns for one in layers])
    return HeadMeasures(
        length=length,
        formula=formula,
        offsets=profiles[0].offsets,
        mean=np.stack([profile.mean for profile in profiles]),
        std=np.stack([profile.std for profile in profiles]),
        r2=np.stack([profile.r2 for profile in profiles]),
        r2_without_first=np.stack([one.r2_without_first for one in layers]),
        r2_carried=r2_carried,
        window=layers[0].windows.size,
        window_starts=layers[0].windows.starts,
        window_r2=np.stack([one.windows.r2 for one in layers]),
        fits={count: _stack_fits([[head[count] for head in one.fits] for one in layers]) for count in kernels},
        patterns=patterns,
        kinds=patterns.kinds(),
        picture=np.stack([one.picture for one in layers]),
        corner=np.stack([one.corner for one in layers]),
        attention=np.stack([one.attention for one in layers]),
    )


def _measure_layer(
    scores: Scores, kernels: Sequence[int], window: int, pattern_length: int, seed: int
) -> _LayerMeasures:
    length, causal = scores.length, scores.causal
    profile = diagonals(scores, causal=causal)
    shown = min(CORNER, length)
    corner = scores.tile(0, shown, 0, shown)
    return _LayerMeasures(
        profile=profile,
        r2_without_first=without_first(profile, scores).r2,
        windows=windowed_r2(scores, size=window, causal=causal),
        fits=fit_tisa(profile, kernels=kernels, seed=seed),
        patterns=attention_patterns(Window(scores, 0, pattern_length), causal=causal),
        picture=shrink(scores),
        corner=corner,
        attention=softmax(corner, np.arange(shown) if causal else None),
    )


def _measure_carried(reading: Reading, length: int) -> Array:
    each = [
        diagonals(position_scores(reading, layer, projected=arriving), causal=reading.causal).r2
        for layer, arriving in enumerate(position_states(reading, length))
    ]
    return np.stack(each)


def shrink(blocks: Blocks, pixels: int = PICTURE) -> Array:  # (H, P, P)
    """Make matrices small: each pixel is the mean of the entries it covers."""
    length = blocks.length
    pixels = min(pixels, length)
    starts = np.arange(pixels) * length // pixels
    sums = np.zeros((blocks.heads, pixels, pixels))
    for first, band in bands(blocks):
        columns = np.add.reduceat(band, starts, axis=2)  # (H, rows, P)
        row_of = np.searchsorted(starts, np.arange(first, first + band.shape[1]), side="right") - 1
        covered, begins = np.unique(row_of, return_index=True)
        sums[:, covered] += np.add.reduceat(columns, begins, axis=1)
    sides = np.diff(np.append(starts, length))
    means: Array = sums / (sides[:, None] * sides[None, :])
    return means


def _stack_fits(layers: list[list[TisaFit]]) -> Fits:
    def stack(name: str) -> Array:
        return np.array([[getattr(fit, name) for fit in heads] for heads in layers])

    return Fits(**{field.name: stack(field.name) for field in fields(Fits)})


@dataclass(frozen=True, eq=False)
class Curves:
    """What a model adds to the scores of each layer and head, by offset."""

    offsets: Array  # (N,), j - i; 0 and less for a causal model
    mean: Array  # (layers, H, N)
    std: Array  # (layers, H, N), over the pairs with one offset; 0 for a Toeplitz bias
    r2: Array  # (layers, H), Toeplitz R^2
    terms: dict[str, Array]  # (layers, H, N), mean of each part, where a bias has several: "queries" is DeBERTa's c2p


@dataclass(frozen=True, eq=False)
class _BiasMatrices:
    """The bias of scores alone; a `Blocks`."""

    scores: Scores

    @property
    def heads(self) -> int:
        return self.scores.heads

    @property
    def length(self) -> int:
        return self.scores.length

    def tile(self, q_start: int, q_stop: int, k_start: int, k_stop: int) -> Array:
        added = self.scores.added(q_start, q_stop, k_start, k_stop)
        return np.broadcast_to(added, (self.heads, *added.shape[1:])).astype(np.float64)


def bias_curves(reading: Reading, length: int | None = None) -> Curves | None:
    """Return the curves of a model's bias, or None for a model that adds nothing to its scores.

    A bias that depends on the query (Shaw, Transformer-XL) is computed with the queries of average words.
    """
    length = reading.length(length)
    if reading.bias_of(0, length) is None:
        return None
    return curves_of([position_scores(reading, layer, length) for layer in range(len(reading.layers))])


def curves_of(layers: Sequence[Scores]) -> Curves:
    """Return the curves of what is added to the scores of each layer, and of its terms where there are several."""
    whole = [diagonals(_BiasMatrices(scores), causal=scores.causal) for scores in layers]
    terms: dict[str, list[Array]] = {}
    for scores in layers:
        for part in scores.bias.terms if isinstance(scores.bias, Sum) else ():
            alone = _BiasMatrices(replace(scores, bias=part))
            terms.setdefault(name_of_term(part), []).append(diagonals(alone, causal=scores.causal).mean)
    return Curves(
        offsets=whole[0].offsets,
        mean=np.stack([layer.mean for layer in whole]),
        std=np.stack([layer.std for layer in whole]),
        r2=np.stack([layer.r2 for layer in whole]),
        terms={name: np.stack(means) for name, means in terms.items() if len(means) == len(layers)},
    )


def name_of_term(bias: Bias) -> str:
    """Name a term of a bias: by whose vectors are multiplied with those of offsets, or by its structure."""
    if isinstance(bias, RelativeProducts):
        return "keys" if bias.of_keys else "queries"
    return "queries" if isinstance(bias, RelativeKeys) else type(bias).__name__.lower()
