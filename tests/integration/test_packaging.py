"""The project as others install it: a wheel that is complete, and a library that needs little beside torch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path
from shutil import copy, copytree, ignore_patterns

import pytest

import headway

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LIBRARY_CALL = """
import torch
import headway as hw

q, k, v = (torch.randn(2, 4, 24, 16, requires_grad=True) for _ in range(3))
table = torch.nn.Parameter(torch.randn(1, 4, 47))
out = hw.attention(q, k, v, bias=hw.Toeplitz(table), causal=True)
torch.testing.assert_close(out, hw.attention(q, k, v, bias=hw.Toeplitz(table), causal=True, backend="eager"))
out.sum().backward()
assert table.grad.isfinite().all()
encoding = hw.encoding("diet-rel", num_layers=1, num_heads=4, head_dim=16, segments="per-head")
assert hw.attention(q, k, v, bias=encoding.bias(0, 24, 24)).shape == q.shape
assert "native" in str(hw.explain(q, k, v, bias=hw.Toeplitz(table)))
"""


def run(*command: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy of the sources, so that no earlier build is packed too; nothing is fetched."""
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("wheel")
    copytree(ROOT / "src", folder / "source" / "src", ignore=ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        copy(ROOT / name, folder / "source")
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--wheel-dir", folder)
    run(sys.executable, "-m", "pip", "wheel", *options, folder / "source", cwd=folder)
    [built] = folder.glob("*.whl")
    return built


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_package(wheel):
    """Modules, the kernels' sources, the pages' templates and the marker of types."""
    source = ROOT / "src"
    ours = {
        str(path.relative_to(source))
        for path in (source / "headway").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {Path(name).suffix for name in ours} >= {".py", ".cu", ".cuh", ".cpp", ".jinja", ".css", ".js", ".typed"}
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
        licenses = [name for name in archive.namelist() if name.endswith("LICENSE")]
    assert packed == ours
    assert licenses


@pytest.mark.slow
def test_the_wheel_works_away_from_the_repository(wheel, tmp_path):
    """Installed beside the packages of this environment, but without this checkout."""
    venv.create(tmp_path / "clean", with_pip=False)
    python = tmp_path / "clean" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "--no-deps", "--no-index", "--quiet", wheel, cwd=tmp_path)
    [packages] = (tmp_path / "clean" / "lib").glob("python*/site-packages")
    (packages / "other_packages.pth").write_text(sysconfig.get_path("purelib") + "\n")

    where, version = run(
        python, "-c", "import headway; print(headway.__file__, headway.__version__)", cwd=tmp_path
    ).split()
    assert Path(where).is_relative_to(tmp_path / "clean")
    assert version == headway.__version__
    run(python, "-c", LIBRARY_CALL, cwd=tmp_path)
    command = tmp_path / "clean" / "bin" / "headway"
    assert "pretrain" in run(command, "--help", cwd=tmp_path)
    assert version in run(command, "--version", cwd=tmp_path)
    plan = run(command, "study", "parameters", "--out", tmp_path / "parameters", cwd=tmp_path)
    assert plan and (tmp_path / "parameters" / "report.html").exists()


def test_attention_and_encodings_need_torch_alone():
    """None of the optional packages can be imported here, nor those that only the command line takes."""
    optional = {requirement for group in PROJECT["optional-dependencies"].values() for requirement in group}
    optional |= set(PROJECT["dependencies"]) - {"torch>=2.11", "numpy>=1.26"}
    names = sorted({module_of(requirement) for requirement in optional} - {"headway", "setuptools", "triton", "nvidia"})
    assert {"transformers", "typer", "sklearn", "jinja2", "ray"} <= set(names)
    hide = f"import sys\nfor name in {names}: sys.modules[name] = None\n"
    run(sys.executable, "-c", hide + LIBRARY_CALL, cwd=ROOT)


def module_of(requirement: str) -> str:
    """The name to import of what a requirement installs."""
    [name] = re.findall(r"^[\w-]+", requirement)
    others = {"scikit-learn": "sklearn", "pillow": "PIL", "mkdocs-material": "material", "pytest-xdist": "xdist"}
    return others.get(name, name.partition("-")[0])


def test_models_without_transformers_say_what_to_install():
    code = """
import sys
sys.modules["transformers"] = None
import headway
try:
    headway.EncoderModel
except ImportError as error:
    print(error)
"""
    assert "transformers" in run(sys.executable, "-c", code, cwd=ROOT)


def test_versions_agree():
    """The oldest versions that the table of the docs names are those that pip is told, and CITATION.cff has ours."""
    page = (ROOT / "docs" / "index.md").read_text()
    extras = PROJECT["optional-dependencies"]["models"]
    for requirement in (*PROJECT["dependencies"], *extras):
        name, _, oldest = requirement.partition(">=")
        if name in ("torch", "transformers"):
            assert re.search(rf"^\| {name} \| {oldest}", page, re.MULTILINE), requirement
    citation = (ROOT / "CITATION.cff").read_text()
    [released] = re.findall(r"^date-released: (.+)$", citation, re.MULTILINE)
    assert f"\nversion: {headway.__version__}\n" in citation
    assert f"## {headway.__version__} - {released}\n" in (ROOT / "CHANGELOG.md").read_text()
