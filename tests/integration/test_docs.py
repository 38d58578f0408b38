"""The documentation is true: it builds strictly, its commands parse, its code runs, its tables name what exists."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

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
        for part in ("Formula", "Where it acts", "Parameters", "What it can express", "Cost", "Paper"):
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


@pytest.mark.parametrize("page", sorted({*PAGES, *DOCS.glob("*.md")}), ids=lambda page: page.stem)
def test_a_page_begins_with_what_the_reader_will_have(page):
    assert page.read_text().split("\n\n")[1].startswith("At the end of this ")


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.stem)
def test_paragraphs_are_short(page):
    text = re.sub(r"^```.*?^```|<!-- table.*?<!-- end -->", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for paragraph in re.split(r"\n\s*\n|\n(?:- |\d+\. )", text):
        assert paragraph.startswith(("|", "<!--")) or len(paragraph.split()) <= 120, paragraph


def test_make_targets_of_the_guides_exist():
    for page in PAGES:
        for target in re.findall(r"`make (\w+)`", page.read_text()):
            done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True)
            assert done.returncode == 0, f"{page.name}: {done.stderr}"


# Everything that is numbered in the four papers; the appendices of TISA are not in the text that is at hand.
NUMBERED = {
    "Chen et al. (2021b)": {"Eq.": range(1, 6), "Theorem": (1, 2), "Table": range(1, 10), "Fig.": range(1, 9)},
    "Chen et al. (2021a)": {"Eq.": range(1, 12), "Theorem": (1, 2), "Table": range(1, 13), "Fig.": range(1, 7)},
    "Shaw et al. (2018)": {"Eq.": range(1, 6), "Table": (1, 2, 3), "Fig.": (1,)},
    "Wennberg and Henter (2021)": {
        "Eq.": range(1, 6),
        "Table": (1, 2, "3a", "3b"),
        "Fig.": (1, 2, 3, 4, 6, 7, 8),
    },
}


class Row(NamedTuple):
    """A row of the audit: what the paper has, what is there for it, the tests, and the differences."""

    item: str
    here: str
    tests: str
    differs: str


def audit() -> dict[str, list[Row]]:
    """The rows of docs/papers.md by section."""
    sections = re.split(r"^## ", (DOCS / "papers.md").read_text(), flags=re.MULTILINE)[1:]
    found = {}
    for section in sections:
        lines = [line for line in section.splitlines() if line.startswith("| ")][1:]
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        assert all(len(row) == 4 for row in rows), section.splitlines()[0]
        found[section.splitlines()[0].split(",")[0]] = [Row(*row) for row in rows]
    return found


ROWS = [(paper, row) for paper, rows in audit().items() for row in rows]


@pytest.mark.parametrize("paper", NUMBERED)
def test_everything_numbered_in_a_paper_has_a_row(paper):
    items = [row.item for row in audit()[paper]]
    named = re.findall(r"(Eq\.|Theorem|Table|Fig\.) \(?(\d+[ab]?)\)?", "; ".join(items))
    wanted = {(kind, str(number)) for kind, numbers in NUMBERED[paper].items() for number in numbers}
    assert {each for each in named if each[0] in NUMBERED[paper]} == wanted


@pytest.mark.parametrize(("paper", "row"), ROWS, ids=lambda each: each.item[:40] if isinstance(each, Row) else "")
def test_a_row_of_the_audit_names_what_exists(paper, row):
    for name in re.findall(r"`([^`]+)`", row.here):
        check_name(name)
    for test in re.findall(r"`([^`]+)`", row.tests):
        path, _, function = test.partition("::")
        assert re.search(rf"^(    )?def {function}\(", (ROOT / "tests" / path).read_text(), re.MULTILINE), test
    absent = re.search(r"\bno (?:plan|check|table) yet|not here$", row.here)
    assert row.tests or absent, f"{row.item}: a test, or a word that there is nothing"


def check_name(name: str) -> None:
    """Raise unless a name of the audit is a class, a module or what is in one, a plan, an encoding or an option."""
    from headway.bench.study.plans import PLANS
    from headway.models.config import ATTENTIONS

    if command := re.fullmatch(r"headway (\w+) ?(.*)", name):
        options, _ = options_and_settings()
        known = options[(command[1],)]
        words = command[2].split()
        assert all(word in known for word in words if word.startswith("-")), name
        assert command[1] != "study" or words[0] in PLANS, name
    elif re.fullmatch(r"headway[\w.]+", name):
        module, _, last = name.rpartition(".")
        assert importlib.util.find_spec(name) if _is_module(name) else hasattr(importlib.import_module(module), last)
    elif option := re.fullmatch(r'attention="(\w+)"', name):
        assert option[1] in ATTENTIONS
    elif re.fullmatch(r"[A-Z]\w+", name):
        homes = ("encodings", "bias", "models", "models.translation", "bench.tasks.finetune")
        assert any(hasattr(importlib.import_module(f"headway.{home}"), name) for home in homes), name
    elif re.fullmatch(r"[a-z][\w+-]*(:[\w=,-]+)?", name) and name != "sharing=":
        EncodingChoice.parse(name)


def _is_module(name: str) -> bool:
    path = ROOT / "src" / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


def test_every_plan_stands_in_the_audit():
    from headway.bench.study.plans import PLANS

    assert set(re.findall(r"`headway study ([\w-]+)`", (DOCS / "papers.md").read_text())) == set(PLANS)


def test_every_encoding_has_its_citation(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    from generate.citations import citations

    for kind in ENCODINGS.values():
        for entry in citations(kind.paper):
            assert "title" in entry and "author" in entry and "year" in entry
