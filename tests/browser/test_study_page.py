"""The page of a study in a real browser: it sorts and draws by pointer and keys, fits a phone, fetches nothing."""

import runpy
from itertools import pairwise
from pathlib import Path

import pytest

from headway.bench.report.study.page import study_page
from headway.bench.report.study.report import read_results
from headway.storage import write_json

pytestmark = pytest.mark.browser

made = runpy.run_path(str(Path(__file__).parents[1] / "unit" / "bench" / "report" / "study_results.py"))
SPACE, ENTER, RIGHT = "\ue00d", "\ue007", "\ue014"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    write_json(folder / "results.json", made["study_results"]())
    return study_page(read_results(folder), folder / "report.html")


def rows(browser):
    return browser.run("return [...document.querySelectorAll('#table tbody th')].map((cell) => cell.textContent)")


def test_it_opens_without_a_complaint_and_without_a_request(browser, page):
    browser.open(page)
    assert browser.console() == []
    assert [url for url in browser.requests() if not url.startswith(("file:", "data:"))] == []
    assert browser.run("return document.title").startswith("A study of <script>")  # a name, not a script that ran


def test_columns_sort_by_click_and_by_key(browser, page):
    browser.open(page)
    hostile = made["HOSTILE"]
    assert rows(browser) == ["learned", hostile, "diet-rel"]
    browser.find("button[data-column='2']").click()
    assert rows(browser) == ["diet-rel", "learned", hostile]
    assert (
        browser.run("return document.querySelector('#table th:nth-child(3)').getAttribute('aria-sort')") == "descending"
    )
    browser.press("button[data-column='2']", ENTER)
    assert rows(browser) == [hostile, "learned", "diet-rel"]
    browser.press("button[data-column='3']", SPACE)
    assert rows(browser)[-1] == hostile  # a row without a result is last, whatever the order


def test_losses_are_drawn_of_the_encodings_that_are_chosen(browser, page):
    browser.open(page)
    lines = "return document.querySelectorAll('#loss-chart .line').length"
    names = "return [...document.querySelectorAll('#loss-chart .legend li')].map((each) => each.textContent.trim())"
    assert browser.run(names) == ["learned", made["HOSTILE"], "diet-rel"]
    before = browser.run(lines)
    browser.press("input.drawn", SPACE)
    assert browser.run(names) == [made["HOSTILE"], "diet-rel"]
    assert browser.run(lines) < before
    browser.press("#loss-chart svg", RIGHT)
    assert "step" in browser.text("#loss-chart .readout")


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_phone(browser, page, dark):
    browser.open(page, width=390, height=800, dark=dark)
    assert browser.run("return document.documentElement.scrollWidth") <= 390
    assert browser.run("return document.querySelector('[role=region]').scrollWidth") > 300  # wide tables scroll inside


def test_everything_has_a_name_and_can_be_reached(browser, page):
    browser.open(page)
    nameless = """return [...document.querySelectorAll('svg[role=img], [role=region], nav')]
        .filter((each) => !each.getAttribute('aria-label')).length"""
    assert browser.run(nameless) == 0
    assert browser.run("return [...document.querySelectorAll('.scroll')].every((each) => each.tabIndex === 0)")
    headings = browser.run("return [...document.querySelectorAll('h1,h2,h3')].map((each) => Number(each.tagName[1]))")
    assert headings[0] == 1 and all(after - before <= 1 for before, after in pairwise(headings))
    pictures = browser.run("return document.querySelectorAll('svg.head').length")
    assert pictures == 4
    assert browser.run("return document.querySelectorAll('figure circle').length") == 2  # the untimed row has no point
