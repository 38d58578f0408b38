"""The plan of the rooms holds: a folder imports only the folders above it, and importing is cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "headway"

ALLOWED = {  # room -> rooms it may import (docs/architecture.md)
    "bias": {"running"},
    "attention": {"bias", "running"},
    "encodings": {"bias", "running"},
    "models": {"attention", "encodings", "bias", "running"},
    "data": {"storage"},
    "tasks": {"models", "data", "encodings", "convert", "recording", "storage"},
    "analysis": {"models", "encodings", "attention", "bias", "storage"},
    "cost": {"models", "encodings", "attention", "bias", "recording", "storage"},
    "convert": {"analysis", "encodings", "attention", "bias", "running", "storage"},
    "study": {"tasks", "analysis", "convert", "cost", "data", "encodings", "models", "storage"},
    "claims": {"storage"},
    "report": {"storage"},
    "cli": {
        "analysis",
        "claims",
        "convert",
        "cost",
        "data",
        "encodings",
        "models",
        "report",
        "storage",
        "study",
        "tasks",
    },
}


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            names = [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        rooms |= {name.split(".")[1] for name in names if name.startswith("headway.")}
    return rooms


def test_every_room_is_in_the_plan():
    assert {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"} == set(ALLOWED)


@pytest.mark.parametrize("room", ALLOWED)
def test_a_room_imports_only_rooms_above_it(room):
    for path in (SOURCE / room).rglob("*.py"):
        beyond = imported_rooms(path) - ALLOWED[room] - {room}
        assert not beyond, f"{path.relative_to(SOURCE)} imports {sorted(beyond)}"


def test_backends_do_not_import_one_another():
    backends = {"eager", "sdpa", "flex", "blockwise", "native"}
    for path in (SOURCE / "attention").rglob("*.py"):
        own = path.relative_to(SOURCE / "attention").parts[0].removesuffix(".py")
        if own not in backends:
            continue
        text = path.read_text()
        for other in backends - {own}:
            assert f"headway.attention.{other}" not in text, f"{path} imports {other}"
            assert f"from headway.attention import {other}" not in text, f"{path} imports {other}"


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_headway_loads_nothing_heavy():
    assert "torch" not in loaded_by("import headway")
    assert "torch" not in loaded_by("import headway.cli")
    assert "torch" not in loaded_by("import headway.data")


def test_importing_the_core_loads_torch_and_nothing_optional():
    loaded = loaded_by("import headway; headway.attention; headway.encoding")
    assert "torch" in loaded
    assert not loaded & {"transformers", "typer", "rich", "scipy", "pytest", "triton"}


def test_public_names_are_what_they_say():
    import headway

    for name in headway.__all__:
        assert getattr(headway, name) is not None
    with pytest.raises(AttributeError, match="attention"):
        _ = headway.attenion


def test_the_function_is_not_hidden_by_its_folder():
    code = "import headway.attention.masking, headway.attention; import headway; print(headway.attention.__module__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "headway.attention.call"
