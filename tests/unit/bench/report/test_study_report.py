"""The report of a study: its numbers are the saved ones, in every format, and names are never markup."""

from __future__ import annotations

import csv
import io
import re
import runpy
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from headway.bench.report.study import report_study
from headway.bench.report.study.page import draw_bars
from headway.bench.report.study.pictures import LETTER, WIDTH, scatter
from headway.bench.report.study.tables import as_csv, as_latex, as_markdown, legend, on_terminal, write_spread
from headway.bench.study.store import export_study, read_records
from headway.storage import read_json, write_json

made = runpy.run_path(str(Path(__file__).parent / "study_results.py"))
HOSTILE, study_results, cell, column = (made[name] for name in ("HOSTILE", "study_results", "cell", "column"))


@pytest.fixture
def folder(tmp_path):
    write_json(tmp_path / "results.json", study_results())
    return tmp_path


class Page(HTMLParser):
    """What a page has: words, tags, and ids that links may lead to."""

    def __init__(self, text):
        super().__init__()
        self.words, self.tags, self.ids, self.links = [], [], set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        found = dict(attributes)
        self.ids.add(found.get("id"))
        if tag == "a":
            self.links.append(found["href"])

    def handle_data(self, data):
        self.words.append(data)


def written(folder):
    text = io.StringIO()
    report_study(folder, Console(file=text, width=200))
    return text.getvalue()


def test_the_page_says_every_number(folder):
    written(folder)
    page = Page((folder / "report.html").read_text())
    words = " ".join(" ".join(page.words).split())
    for said in (
        "31.0", "30.0 to 32.0, 3 seeds", "paper 58.7", "−4.0 to 5.0, 2 of 3 seeds", "▲", "no result", "2.250", "1 seed",
        "supported", "per-head is above input", "41.0 – 31.0 = +10.0", "bag of words", "1,234,567",
        "outputs differ from the formula", "headway study fake", "2,000 tokens in 40 rows",
        "too few seeds for any test to tell: 2 at most here, 7 are needed",
    ):  # fmt: skip
        assert said in words, said


def test_names_are_text_in_the_page(folder):
    written(folder)
    text = (folder / "report.html").read_text()
    page = Page(text)
    assert "<script>document" not in text
    assert "taken" in " ".join(page.words)
    assert page.tags.count("script") == 2  # the data and the code
    assert "<b>" not in text


def test_links_lead_somewhere_and_nothing_is_fetched(folder):
    written(folder)
    text = (folder / "report.html").read_text()
    page = Page(text)
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links)
    assert not re.search(r"(src|href)=[\"']https?:", text)


def test_the_terminal_has_table_claims_failures_and_paths(folder):
    said = written(folder)
    assert "41.0 ▲" in said and "paper 60.3" in said and "30.0..32.0" in said
    # by hand: differences 10, 9, 11; standard deviation 1; t of 2 degrees of freedom 4.303; 4.303 / sqrt(3) = 2.48
    numbers = "41.0 – 31.0 = +10.0 [+7.5, +12.5]; 95 % interval over 3 seeds"
    assert f"supported: per-head is above input ({numbers})" in said
    assert numbers in (folder / "report.html").read_text()
    assert f"failed: cola, {HOSTILE}: jobs/finetune-1/log.txt (status 1):" in said
    assert f"wrote {folder / 'report.html'}, table.csv, table.md, table.tex, bars.svg" in said


def bar_widths(picture):
    """Widths of the bars of a picture, ours and the paper's, in order."""
    return {
        kind: [float(width) for width in re.findall(rf'<rect class="{kind}"[^>]* width="([\d.]+)"', str(picture))]
        for kind in ("ours", "papers")
    }


def test_bars_are_differences_from_the_baseline(folder):
    written(folder)
    cola, loss = draw_bars(study_results())
    # by hand: 40, 41, 42 against 30, 32, 31 by seed: 10, 9, 11; the paper has 60.3 against 58.7
    for said in ("CoLA, difference from the baseline, Matthews", "ours +10.0; paper +1.6", "ours −30.5"):
        assert said in str(cola), said
    ours, papers = bar_widths(cola)["ours"], bar_widths(cola)["papers"]
    assert ours[1] / papers[0] == pytest.approx(10 / 1.6, rel=0.02)
    assert ours[0] / ours[1] == pytest.approx(30.5 / 10, rel=0.02)  # -34 and -27
    assert "ours −0.250" in str(loss)
    drawn = ElementTree.parse(folder / "bars.svg").getroot()  # well-formed, with every name as text
    assert any(text.text == HOSTILE for text in drawn.iter("{http://www.w3.org/2000/svg}text"))
    page = Page((folder / "report.html").read_text())
    assert page.tags.count("figure") >= 2 and page.tags.count("rect") == len(ours) + len(papers) + 1


def test_times_are_in_percent_of_the_baseline():
    results = study_results()
    results["columns"] = [
        column("tiny training", source="cost", value="training/tiny", scale=1.0, digits=2, higher=False),
        column("tiny training, steps/s", source="cost", value="training/tiny/steps", scale=1.0),
    ]
    rounds = {"learned": cell([1.0, 1.0, 1.0]), HOSTILE: cell([]), "diet-rel": cell([1.2, 1.1, 1.15], published=1.13)}
    results["cells"] = [rounds, rounds]
    (picture,) = draw_bars(results)
    assert "diet-rel; ours +15; paper +13" in str(picture) and HOSTILE not in str(picture)


def test_a_table_too_wide_for_the_terminal_becomes_several(folder):
    results = study_results()
    assert len(on_terminal(results, 300)) == 1
    tables = on_terminal(results, 50)
    assert len(tables) > 1
    assert sum(len(table.columns) - 1 for table in tables) == len(results["columns"])
    text = io.StringIO()
    for table in tables:
        Console(file=text, width=50).print(table)
    assert "…" not in text.getvalue()
    for row in results["rows"]:
        first = row["name"].splitlines()[0][:20]
        assert text.getvalue().count(first) >= len(tables), first


def test_what_is_kept_is_the_numbers(folder, tmp_path):
    results = study_results()
    for found in results["analysis"].values():
        measures = folder / results["study"]["store"] / found["folder"] / "analysis" / "measures.json"
        write_json(measures, {"toeplitz": 1.0})
    done = [job["key"] for job in results["jobs"] if job["state"] == "done"]
    store = folder / results["study"]["store"]
    for key in done:
        write_json(store / key / "result.json", {"key": key, "result": {"loss": 1.0}, "seconds": 1.0})
    kept = export_study(folder, tmp_path / "kept")
    assert read_json(tmp_path / "kept" / "results.json") == read_json(folder / "results.json")
    assert {key: record["result"] for key, record in read_records(tmp_path / "kept").items()} == {
        key: {"loss": 1.0} for key in done
    }
    folders = list((tmp_path / "kept" / "analysis").iterdir())
    assert len(kept) - 2 == len(folders) == len(results["analysis"])
    assert all(read_json(each / "measures.json") == {"toeplitz": 1.0} for each in folders)


def test_what_was_kept_is_not_lost_with_the_jobs(folder, tmp_path):
    results = study_results()
    store = folder / results["study"]["store"]
    done = {job["key"] for job in results["jobs"] if job["state"] == "done"}
    for key in done:
        write_json(store / key / "result.json", {"key": key, "result": {}, "seconds": 1.0})
    export_study(folder, tmp_path / "kept")
    for key in done:
        (store / key / "result.json").unlink()
    export_study(folder, tmp_path / "kept")
    assert set(read_records(tmp_path / "kept")) == done
    with pytest.raises(FileNotFoundError, match=r"job .* is done, but its result is not in .*nothing was written"):
        export_study(folder, tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()


def test_csv_holds_all_that_is_known_of_a_cell():
    rows = list(csv.DictReader(io.StringIO(as_csv(study_results()))))
    assert len(rows) == 6
    found = {(row["row"], row["column"]): row for row in rows}
    line = found["diet-rel", "CoLA"]
    assert (line["median"], line["runs"], line["published"], line["verdict"]) == ("41.0", "3", "60.3", "above")
    assert line["values"] == "0:40.0 1:41.0 2:42.0"
    assert found[HOSTILE, "Loss"]["median"] == ""


def test_markdown_has_one_line_a_row_whatever_the_names_hold():
    lines = as_markdown(study_results()).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 5
    unescaped = re.compile(r"(?<!\\)\|")
    assert {len(unescaped.findall(line)) for line in table} == {5}
    assert "41.0 ▲ (40.0 to 42.0, 3 seeds); paper 60.3" in table[-1]


def test_latex_escapes_what_latex_reads():
    text = as_latex(study_results())
    line = next(line for line in text.splitlines() if "script" in line and not line.startswith("%"))
    assert r"\& 100\% \{x\}\_\$y|z" in line
    assert len(re.findall(r"(?<!\\)&", line)) == 3
    assert text.count(r"\\") == 4
    assert r"$\uparrow$" in text


def test_marks_explain_what_occurs():
    assert [sign for sign, _ in legend(study_results())] == ["▲", "?"]
    cells = study_results()["cells"][1]
    shown = {"source": "pretrain", "digits": 3}
    assert write_spread(cells["learned"], shown) == "1 seed"


def test_a_folder_without_results_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"expected the folder of a study with results\.json"):
        report_study(tmp_path, Console())
    (tmp_path / "results.json").write_text('{"study": {}}')
    with pytest.raises(ValueError, match=r"expected the results of a study, got a file without rows"):
        report_study(tmp_path, Console())
    (tmp_path / "results.json").write_text('{"study": ')
    with pytest.raises(ValueError, match=r"results\.json: expected JSON"):
        report_study(tmp_path, Console())


def test_a_study_without_published_figures_does_not_announce_them(folder):
    assert "Published figures: Somebody (2021)." in written(folder)
    assert "beside it Somebody (2021)" in (folder / "report.html").read_text()
    results = study_results()
    for cells in results["cells"]:
        for each in cells.values():
            each["published"] = None
    write_json(folder / "results.json", results)
    assert "Published figures" not in written(folder)
    assert "Somebody (2021)" not in (folder / "report.html").read_text()
    assert "Published figures" not in (folder / "table.md").read_text()


def test_names_of_points_stay_inside_the_picture():
    model, path = "FacebookAI/xlm-roberta-base", "/a/folder/of/models/that/is/as/long/as/a/path/can/reasonably/be/" * 2
    points = [("left", 0.0, 1.0), (model, 0.9, 2.0), (path, 0.5, 3.0), (f"{path}2", 0.5, 3.0), ("right", 1.0, 4.0)]
    picture = ElementTree.fromstring(str(scatter(points, x_label="x", y_label="y")))
    names = {text[0].text: text for text in picture.iter("text") if len(text)}
    assert names.keys() == {name for name, *_ in points}
    lines = []
    for name, text in names.items():
        shown, start = text[0].tail, float(text.get("x"))
        left = start if text.get("text-anchor") == "start" else start - LETTER * len(shown)
        assert left >= 0 and left + LETTER * len(shown) <= WIDTH
        assert shown == name or (shown[0] == "…" and name.endswith(shown[1:]))
        lines.append((left, left + LETTER * len(shown), float(text.get("y"))))
    assert names[model][0].tail == model and names[path][0].tail != path
    for at, (left, right, y) in enumerate(lines):
        assert not any(abs(y - line) < 12 and left < end and begin < right for begin, end, line in lines[:at])
