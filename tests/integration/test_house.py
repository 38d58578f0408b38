"""The plan of the rooms holds: a folder imports only the folders above it, and importing is cheap."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "headway"

PAGE = SOURCE.parents[1] / "docs" / "architecture.md"
LIBRARY = ("bias", "attention", "encodings", "models")
ALLOWED = {  # room -> rooms it may import, beside storage.py (docs/architecture.md)
    "bias": {"running"},
    "attention": {"bias", "running"},
    "encodings": {"bias", "running"},
    "models": {"attention", "encodings", "bias", "running"},
    "pretrained/analysis": {*LIBRARY, "pretrained/fusing", "pretrained/model_types", "running"},
    "pretrained/conversion": {
        *LIBRARY,
        "pretrained/analysis",
        "pretrained/fusing",
        "pretrained/model_types",
        "running",
    },
    "pretrained/fusing": {*LIBRARY, "running"},
    "bench/data": set(),
    "bench/tasks": {
        *LIBRARY,
        "pretrained/analysis",
        "pretrained/conversion",
        "bench/data",
        "bench/processes",
        "bench/recording",
        "bench/statistics",
    },
    "bench/cost": {*LIBRARY, "bench/processes", "bench/recording", "bench/statistics"},
    "bench/claims": {"encodings", "models", "bench/cost", "bench/judge", "bench/statistics"},
    "bench/study": {
        *LIBRARY,
        "pretrained/analysis",
        "pretrained/conversion",
        "bench/data",
        "bench/tasks",
        "bench/cost",
        "bench/judge",
        "bench/processes",
        "bench/statistics",
    },
    "bench/report": {"encodings", "bench/judge", "bench/terminal"},
}
TWO_FLOORS = ("pretrained", "bench")  # folders whose rooms are the folders in them


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for _, first, *rest in (name.split(".") for name in names if name.startswith("headway.")):
            rooms.add(f"{first}/{rest[0]}" if first in TWO_FLOORS and rest else first)
    return rooms - {"storage"}


def folders(where: Path) -> set[str]:
    return {path.name for path in where.iterdir() if path.is_dir() and path.name != "__pycache__"}


def test_every_room_is_in_the_plan():
    assert folders(SOURCE) == {*LIBRARY, *TWO_FLOORS, "cli"}
    for floor in TWO_FLOORS:
        assert {f"{floor}/{room}" for room in folders(SOURCE / floor)} == {
            room for room in ALLOWED if room.startswith(floor)
        }


@pytest.mark.parametrize("room", ALLOWED)
def test_a_room_imports_only_rooms_above_it(room):
    for path in (SOURCE / room).rglob("*.py"):
        beyond = imported_rooms(path) - ALLOWED[room] - {room}
        assert not beyond, f"{path.relative_to(SOURCE)} imports {sorted(beyond)}"


def test_the_library_is_whole_without_the_rest():
    """Every module of it, and of the package itself, loads where `pretrained`, `bench` and `cli` are not there."""
    code = """
import pkgutil, sys
for name in ("pretrained", "bench", "cli"):
    sys.modules[f"headway.{name}"] = None  # so that importing it fails
import headway
for room in sys.argv[1:]:
    package = __import__(f"headway.{room}", fromlist=["x"])
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if module.name != "headway.attention.triton.op" and "kernel" not in module.name:
            __import__(module.name)
"""
    done = subprocess.run([sys.executable, "-c", code, *LIBRARY], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_modules_do_not_import_one_another_in_circles():
    """Imports inside functions count as well; those for types alone, under TYPE_CHECKING, do not."""
    paths = {
        ".".join(("headway", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in SOURCE.rglob("*.py")
    }
    left = {name: imported_modules(path, paths) - {name} for name, path in paths.items()}
    while free := {name for name, needed in left.items() if not needed & set(left)}:
        left = {name: needed for name, needed in left.items() if name not in free}
    assert not left


def imported_modules(path: Path, paths: dict[str, Path]) -> set[str]:
    found = set()
    for node in runtime_nodes(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in paths else str(node.module) for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & set(paths)


def runtime_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a tree as `ast.walk` does, without the blocks of `if TYPE_CHECKING`."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            for statement in child.orelse:
                yield from runtime_nodes(statement)
        else:
            yield from runtime_nodes(child)


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
    assert "torch" not in loaded_by("import headway.bench.data")


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


def test_the_page_on_architecture_names_files_and_functions_that_exist():
    """A name without a folder is that of some file; functions are looked for in the files of their line."""
    everywhere = {path.name for path in SOURCE.rglob("*.*")}
    text = PAGE.read_text()
    for name in re.findall(r"`([\w/]+\.(?:py|cu|cuh|cpp))`", text):
        there = any((root / name).is_file() for root in (SOURCE, SOURCE.parents[1]))
        assert there or ("/" not in name and name in everywhere), name
    steps = [line for line in text.splitlines() if re.match(r"\| \d \|", line)]
    assert len(steps) == 6
    for line in steps:
        where = line.split("|")[2]
        files = [path for name in re.findall(r"`([\w/]+\.\w+)`", where) for path in SOURCE.rglob(Path(name).name)]
        source = "".join(path.read_text() for path in files)
        for function in re.findall(r"`(\w+)`", where):
            assert f"def {function}(" in source, f"{function} in {where}"


def test_paragraphs_of_the_page_on_architecture_are_short():
    for paragraph in re.split(r"\n\s*\n", PAGE.read_text()):
        if not paragraph.startswith("|"):
            parts = re.split(r"\n- ", paragraph)
            assert all(part.count("\n") < 8 for part in parts), paragraph
