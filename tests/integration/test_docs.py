"""The documentation is true: it builds strictly, its commands parse, its code runs, its tables name what exists."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from headway.encodings import ENCODINGS, EncodingChoice

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([DOCS / "index.md", DOCS / "idea.md", *(DOCS / "guides").glob("*.md")])
ALL_PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.glob("*.md"), *(DOCS / "guides").glob("*.md")])
BLOCK = re.compile(r"^(<!-- not run: .+ -->\n)?```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
OTHERS = ("pip", "ray", "make", "python", "git")  # commands that are not ours


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """Line and text of the blocks of a page, those left out that say why they are not run."""
    text = page.read_text()
    found = [match for match in BLOCK.finditer(text) if match[2] == language and match[1] is None]
    return [(text[: match.start(3)].count("\n"), match[3]) for match in found]


def commands() -> list[tuple[str, str]]:
    """Where each command stands, and the command, with those over several lines joined."""
    found = []
    for page in ALL_PAGES:
        for line, block in blocks(page, "sh"):
            command = ""
            for number, text in enumerate(block.splitlines(), line + 1):
                command += text.split("  #")[0].strip()
                if command.endswith("\\"):
                    command = command[:-1]
                elif command:
                    found.append((f"{page.name}:{number}", command))
                    command = ""
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    pytest.importorskip("material", reason="needs mkdocs-material: pip install 'headway[docs]'")
    pytest.importorskip("mkdocstrings", reason="needs mkdocstrings: pip install 'headway[docs]'")
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_every_encoding_has_a_page(site):
    for name, kind in ENCODINGS.items():
        page = (site / "encodings" / f"{name}.html").read_text()
        for part in ("Formula", "Where it acts", "Parameters", "What it can say", "Cost", "Paper"):
            assert f">{part}<" in page, f"{name}: {part}"
        assert kind.__name__ in page
        assert (site / "encodings" / f"{name}.svg").read_text().rstrip().endswith("</svg>")


@pytest.mark.slow
def test_the_reference_has_every_public_name(site):
    import headway

    pages = "".join(path.read_text() for path in (site / "api").glob("*.html"))
    for name in headway.__all__:
        assert f".{name}" in pages or name == "__version__", name


@pytest.mark.slow
def test_the_site_needs_no_network(site):
    """Nothing that a browser fetches by itself comes from elsewhere."""
    fetched = re.compile(r"<(?:script|img|link)[^>]+(?:src|href)=\"?(https?://[^\" >]+)")
    for page in site.rglob("*.html"):
        found = [address for address in fetched.findall(page.read_text()) if "canonical" not in address]
        assert not found, f"{page.relative_to(site)}: {found}"


@pytest.mark.slow
def test_links_between_pages_lead_somewhere(site):
    for page in site.rglob("*.html"):
        for target in re.findall(r'href="([^":#?]+)(?:#[^"]*)?"', page.read_text()):
            if page.name != "404.html" and target != ".":
                assert (page.parent / target).exists(), f"{page.relative_to(site)}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_runs(page, tmp_path, monkeypatch):
    """The blocks of a page, one after the other, as a reader would type them."""
    code = blocks(page, "python")
    if not code:
        assert "```python" not in page.read_text(), "a block that is not run says so, and why"
        return
    monkeypatch.chdir(tmp_path)
    scope = {"__name__": "docs"}
    for line, block in code:
        exec(compile("\n" * line + block, str(page), "exec"), scope)


@pytest.mark.parametrize(("place", "command"), commands(), ids=lambda x: x[:50])
def test_command_parses(place, command):
    """Every option exists and takes what it is given; nothing is run."""
    words = shlex.split(command.replace(" ...", ""))  # "..." stands for more of the same
    if words[0] in OTHERS:
        return
    if words[0] == "torchrun":
        words = words[words.index("-m") + 1 :]
    assert words[0] == "headway", f"{place}: {command} is not checked by any test"
    parse(words[1:])


def parse(words: list[str]) -> None:
    from typer.main import get_command

    from headway.cli import app

    command, context, name = get_command(app), None, "headway"
    while hasattr(command, "commands"):
        context = command.make_context(name, list(words), parent=context)
        name, command, words = command.resolve_command(context, words)
    command.make_context(name, list(words), parent=context)


def options_and_settings() -> tuple[dict[tuple[str, ...], set[str]], set[str]]:
    """The options of each command, and the paths that --set takes anywhere."""
    from typer.main import get_command

    from headway.bench.cost import CostConfig
    from headway.bench.tasks.finetune import FinetuneConfig
    from headway.bench.tasks.pretrain import PretrainConfig
    from headway.bench.tasks.translate import TranslateConfig
    from headway.cli import app
    from headway.cli.settings import find_settings

    found: dict[tuple[str, ...], set[str]] = {}

    def collect(command, names):
        found[names] = {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)}
        for name in getattr(command, "commands", ()):
            collect(command.get_command(None, name), (*names, name))

    collect(get_command(app), ())
    kinds = (PretrainConfig, FinetuneConfig, TranslateConfig, CostConfig)
    return found, {path for kind in kinds for path in find_settings(kind)}


def test_commands_within_sentences_name_options_that_exist():
    """Commands in running text are often cut short, so that their options alone are looked up."""
    options, settings = options_and_settings()
    wrong, looked_up = [], 0
    for page in ALL_PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for code in re.findall(r"`(headway [^`]+)`", text):
            names: tuple[str, ...] = ()
            words = code.split()[1:]
            while words and (*names, words[0]) in options:
                names = (*names, words.pop(0))
            for word in words:
                option = word.partition("=")[0]
                if option.startswith("--"):
                    looked_up += 1
                    if option not in options[names] | {"--help", "--help-all"}:
                        wrong.append(f"{page.name}: {code}")
        for path in re.findall(r"--set\s+([\w.]+)=", text):
            if path not in settings and not path.startswith("model.changes."):
                wrong.append(f"{page.name}: --set {path}")
    assert looked_up > 20
    assert not wrong


def test_an_unknown_option_is_found():
    with pytest.raises(Exception, match="No such option"):
        parse(["translate", "train", "--encodng", "tisa"])


def test_make_targets_of_the_guides_exist():
    for page in PAGES:
        for target in re.findall(r"`make (\w+)`", page.read_text()):
            done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True)
            assert done.returncode == 0, f"{page.name}: {done.stderr}"


def rows_of_papers() -> list[list[str]]:
    lines = [line for line in (DOCS / "papers.md").read_text().splitlines() if line.startswith("| ")][1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_papers_name_classes_tests_and_plans_that_exist():
    from headway.bench.study.plans import PLANS

    homes = [
        importlib.import_module(f"headway.{room}") for room in ("encodings", "bias", "models", "pretrained.analysis")
    ]
    homes.append(importlib.import_module("headway.models.translation"))
    named = set()
    for paper, equation, classes, tests, plans in rows_of_papers():
        for name in re.findall(r"`(\w+)`", classes):
            assert any(hasattr(home, name) for home in homes), f"{paper} {equation}: {name}"
        for name in re.findall(r"`(headway[\w.]+)`", classes):
            module, _, last = name.rpartition(".")
            found = importlib.util.find_spec(name) if _is_module(name) else getattr(_load(module), last)
            assert found is not None, name
        folder = None
        for path in tests.split(", "):
            where = ROOT / path if "/" in path else folder / path
            assert where.exists(), f"{paper} {equation}: {path}"
            folder = where.parent
        named |= set(re.findall(r"`([\w-]+)`", plans))
    assert named == set(PLANS), "every plan stands beside what it is of"


def _is_module(name: str) -> bool:
    path = ROOT / "src" / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


def _load(name: str) -> object:
    return importlib.import_module(name)


def test_plans_beside_an_encoding_use_it():
    from headway.bench.study.plans import PLANS

    by_class = {kind.__name__: name for name, kind in ENCODINGS.items()}
    for _, equation, classes, _, plans in rows_of_papers():
        ours = {by_class[name] for name in re.findall(r"`(\w+)`", classes) if name in by_class}
        for plan in re.findall(r"`([\w-]+)`", plans) if ours else ():
            choices = [EncodingChoice.parse(str(row.encoding)) for row in PLANS[plan]("quick", None).rows]
            used = {part for choice in choices for part in choice.name.split("+")}
            assert ours & used, f"{equation}: {plan} has {sorted(used)}"


def test_every_encoding_has_its_citation(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    from generate.citations import citations

    for kind in ENCODINGS.values():
        for entry in citations(kind.paper):
            assert "title" in entry and "author" in entry and "year" in entry
