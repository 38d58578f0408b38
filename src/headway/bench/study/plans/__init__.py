"""The papers' tables as plans, by name; and plans of users, each a Python file."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

from headway.bench.study.plan import Plan
from headway.bench.study.plans.cost_tables import cost, parameters
from headway.bench.study.plans.encodings_on_text import encodings
from headway.bench.study.plans.glue_tables import glue, glue_segments, glue_sharing
from headway.bench.study.plans.league import league, league_base, league_conversion, league_length, league_noise
from headway.bench.study.plans.league_transfer import league_languages, league_translation
from headway.bench.study.plans.main_job import questions, quick
from headway.bench.study.plans.scalar_tables import (
    scalar_glue,
    scalar_place_glue,
    scalar_place_xtreme,
    scalar_rank,
    scalar_segments_glue,
    scalar_segments_xtreme,
    scalar_sharing_glue,
    scalar_sharing_xtreme,
    scalar_translation,
    scalar_xtreme,
)
from headway.bench.study.plans.shaw_tables import shaw_clip, shaw_parts, shaw_translation
from headway.bench.study.plans.tisa_models import tisa_models
from headway.bench.study.plans.tisa_tables import tisa_alone, tisa_beside
from headway.bench.study.plans.translation_tables import translation
from headway.bench.study.plans.xtreme_tables import long_range, xtreme, xtreme_ablation

PLANS: dict[str, Callable[[str, str | None], Plan]] = {
    "quick": quick,
    "encodings": encodings,
    "glue": glue,
    "glue-segments": glue_segments,
    "glue-sharing": glue_sharing,
    "xtreme": xtreme,
    "xtreme-ablation": xtreme_ablation,
    "long-range": long_range,
    "translation": translation,
    "scalar-place-glue": scalar_place_glue,
    "scalar-place-xtreme": scalar_place_xtreme,
    "scalar-glue": scalar_glue,
    "scalar-xtreme": scalar_xtreme,
    "scalar-translation": scalar_translation,
    "scalar-sharing-glue": scalar_sharing_glue,
    "scalar-sharing-xtreme": scalar_sharing_xtreme,
    "scalar-segments-glue": scalar_segments_glue,
    "scalar-segments-xtreme": scalar_segments_xtreme,
    "scalar-rank": scalar_rank,
    "shaw-translation": shaw_translation,
    "shaw-clip": shaw_clip,
    "shaw-parts": shaw_parts,
    "tisa-beside": tisa_beside,
    "tisa-alone": tisa_alone,
    "tisa-models": tisa_models,
    "cost": cost,
    "parameters": parameters,
    "questions": questions,
    "league": league,
    "league-noise": league_noise,
    "league-length": league_length,
    "league-conversion": league_conversion,
    "league-base": league_base,
    "league-languages": league_languages,
    "league-translation": league_translation,
}
OF_MODELS: dict[str, Callable[[str, str | None, tuple[str, ...]], Plan]] = {  # plans that take pretrained models
    "tisa-models": tisa_models,
    "league-conversion": league_conversion,
}
SIZES = ("quick", "gpu", "paper")


def find_plan(name: str, size: str = "quick", data: str | None = None, models: tuple[str, ...] = ()) -> Plan:
    """Return the plan with a name, or the plan of a Python file that defines `plan(size, data)`.

    Args:
        size: quick (the built-in language, two cores, minutes), gpu (one GPU, under an hour), or paper (as published).
        data: folder with corpus/, glue/, xtreme/ and translation/, for the larger sizes.
        models: pretrained models, for the plans in OF_MODELS.
    """
    if size not in SIZES:
        raise ValueError(f"size: expected one of {', '.join(SIZES)}, got {size!r}.")
    if data is not None and not Path(data).is_dir():
        raise FileNotFoundError(f"data: expected a folder, got {data}, which is not one.")
    if models and name not in OF_MODELS:
        raise ValueError(
            f"models: only the plans {' and '.join(OF_MODELS)} take pretrained models; this plan is {name}. Leave "
            f"models out."
        )
    if models:
        return OF_MODELS[name](size, data, models)
    if name in PLANS:
        return PLANS[name](size, data)
    if name.endswith(".py"):
        return _load_plan_function(Path(name))(size, data)
    raise ValueError(f"plan: expected one of {', '.join(PLANS)}, or a Python file with a function plan, got {name!r}.")


def _load_plan_function(path: Path) -> Callable[[str, str | None], Plan]:
    if not path.is_file():
        raise FileNotFoundError(f"plan: expected a Python file, got {path}, which does not exist.")
    spec = importlib.util.spec_from_file_location(f"headway_plan_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"plan: expected {path} to run, got {type(error).__name__}: {error}.") from error
    function = getattr(module, "plan", None)
    if not callable(function):
        raise ValueError(f"plan: expected {path} to define plan(size, data), got no such function.")

    def checked(size: str, data: str | None) -> Plan:
        try:
            plan = function(size, data)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            raise ValueError(f"plan: expected plan(size, data) of {path} to run, got {problem}.") from error
        if not isinstance(plan, Plan):
            raise ValueError(
                f"plan: expected {path} to return a headway.bench.study.plan.Plan, got {type(plan).__name__}."
            )
        return plan

    return checked
