"""Configurations to plain values and back, so that a job's folder says all that it does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from headway.storage import settings

T = TypeVar("T")


def plain(config: Any) -> dict[str, Any]:
    """Return a configuration as the plain values that JSON has."""
    value: dict[str, Any] = json.loads(json.dumps(settings(config)))
    return value


def restored(kind: type[T], value: Mapping[str, Any]) -> T:
    """The configuration that `plain` was given."""
    hints = get_type_hints(kind)
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: _part(hints[name], part) for name, part in value.items() if name in known})


def _part(hint: Any, value: Any) -> Any:
    if value is None:
        return None
    if get_origin(hint) in (Union, UnionType):
        hint = next(each for each in get_args(hint) if each is not type(None))
    if is_dataclass(hint) and isinstance(hint, type):
        return restored(hint, value)
    if get_origin(hint) is tuple and isinstance(value, list):
        inner = [each for each in get_args(hint) if each is not Ellipsis] or [Any]
        return tuple(_part(inner[min(at, len(inner) - 1)], each) for at, each in enumerate(value))
    return value
