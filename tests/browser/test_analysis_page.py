"""report.html in a real browser: it draws what was measured, by pointer and by keys, at any width, for any eyes."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch
import transformers
from numpy.testing import assert_allclose

from headway.bench.report import analysis_page
from headway.models import EncoderConfig, EncoderModel
from headway.pretrained.analysis import analyze
from headway.storage import write_json

pytestmark = pytest.mark.browser

LAYERS, HEADS, LENGTH = 3, 4, 150  # more positions than a picture has pixels
SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 32,
    "max_position_embeddings": LENGTH,
    "type_vocab_size": 2,
    "pad_token_id": 0,
}
HOSTILE = '"><script>document.title = "taken"</script><img src=x onerror=alert(1)>'
RIGHT, LEFT, DOWN, UP, END = "\ue014", "\ue012", "\ue015", "\ue013", "\ue010"


def tokenizer(text, truncation, max_length):
    ids = [ord(letter) % 60 for letter in text][:max_length]
    return {"input_ids": ids, "token_type_ids": [0] * len(ids)}


def written(model, folder, texts, name):
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
    analyze(model.eval(), tokenizer if texts else None, texts).save(folder)
    write_json(folder / "config.json", {"config": {"model": name, "weights": None}, "environment": {"torch": "2"}})
    return analysis_page(folder)


@pytest.fixture(scope="session")
def page(tmp_path_factory):
    """Of a BERT with a hostile name: everything but bias curves."""
    model = transformers.BertModel(transformers.BertConfig(**SIZES))
    return written(
        model, tmp_path_factory.mktemp("bert"), ["position belongs in the heads", "and so it is said"], HOSTILE
    )


@pytest.fixture(scope="session")
def bias_page(tmp_path_factory):
    """Of a headway encoder: bias curves, but no table, no texts, no segments."""
    model = EncoderModel(EncoderConfig(**SIZES, encoding="diet-rel:segments=none"))
    return written(model, tmp_path_factory.mktemp("own"), None, "own")


@pytest.fixture(scope="session")
def measures(page):
    return json.loads((page.parent / "measures.json").read_text())


@pytest.fixture(scope="session")
def arrays(page):
    with np.load(page.parent / "arrays.npz") as file:
        return {name: file[name] for name in file.files}


@pytest.fixture
def opened(browser, page):
    browser.open(page)
    return browser


def picture(browser, host="#scores"):
    return browser.run("return document.querySelector(arguments[0] + ' canvas').toDataURL()", host)


def chosen(browser):
    return browser.run(
        "const all = [...document.querySelectorAll('#grid button')];"
        "return all.map((one, n) => one.getAttribute('aria-selected') === 'true' ? n : -1).filter((n) => n >= 0)"
    )


def shown(browser, measure, column=1, table="#numbers"):
    return browser.text(f"{table} tr[data-measure={measure}] td:nth-of-type({column})")


def pointed(browser, row, column, host="#scores", size=LENGTH):
    """What the page says of the cell at a position while `size` positions from 0 on are shown."""
    browser.run("document.querySelector(arguments[0]).scrollIntoView({ behavior: 'instant', block: 'center' })", host)
    frame = browser.run(
        "const frame = document.querySelector(arguments[0] + ' canvas').getBoundingClientRect();"
        "return [frame.left, frame.top, frame.width]",
        host,
    )
    inner = frame[2] - 52 - 8
    x, y = frame[0] + 52 + (column + 0.5) / size * inner, frame[1] + 4 + (row + 0.5) / size * inner
    browser.command("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    return browser.text(f"{host} .readout")


@pytest.mark.parametrize("which", ["page", "bias_page"])
@pytest.mark.parametrize("width", [1440, 390])
def test_it_loads_quietly_and_fits(browser, which, width, request):
    path = request.getfixturevalue(which)
    browser.open(path, width=width, height=844)
    assert browser.console() == []
    assert [url for url in browser.requests() if not url.startswith(("data:", "blob:"))] == [path.as_uri()]
    assert not browser.find("#failure").is_displayed()
    assert browser.run("return document.documentElement.scrollWidth") <= width
    beyond = browser.run(
        "return [...document.querySelectorAll('main *')].filter((one) => !one.closest('.scroll, nav, svg')"
        " && one.getBoundingClientRect().right > innerWidth + 0.5).map((one) => one.outerHTML.slice(0, 80))"
    )
    assert beyond == []


def test_a_hostile_name_is_shown_and_does_nothing(opened):
    assert HOSTILE in opened.text("h1")
    assert HOSTILE in opened.driver.title
    assert opened.run("return document.querySelectorAll('img').length") == 0


def test_clicking_a_head_shows_it(opened, measures):
    before = picture(opened)
    for layer, head in ((2, 1), (0, 3)):
        opened.find(f"#grid [role=row]:nth-child({layer + 2}) button:nth-of-type({head + 1})").click()
        assert chosen(opened) == [layer * HEADS + head]
        assert opened.text("#head-title").startswith(
            f"Layer {layer}, head {head}: {measures['heads']['kinds'][layer][head]}"
        )
        assert picture(opened) != before
        for name in ("r2", "r2_without_first", "r2_carried"):
            assert shown(opened, name) == f"{measures['heads'][name][layer][head]:.3f}"
        for n, kernels in enumerate(("1", "3", "5"), 1):
            fit = measures["heads"]["fits"][kernels]
            assert shown(opened, "profile", n, "#fits") == f"{fit['r2_profile'][layer][head]:.3f}"
            assert shown(opened, "matrix", n, "#fits") == f"{fit['r2_matrix'][layer][head]:.3f}"
            assert f"S = {kernels} (R² {fit['r2_profile'][layer][head]:.3f})" in opened.text("#profile .legend")
        for name in ("previous", "next", "first", "local", "entropy"):
            assert shown(opened, name) == f"{measures['heads']['patterns'][name][layer][head]:.3f}"
            assert shown(opened, name, 2) == f"{measures['texts']['patterns'][name][layer][head]:.3f}"


def test_the_grid_has_every_head_and_any_measure(opened, measures):
    labels = opened.run(
        "return [...document.querySelectorAll('#grid button')].map((one) => one.getAttribute('aria-label'))"
    )
    wanted = np.ravel(measures["heads"]["r2"])
    assert [label.rsplit(" ", 1)[1] for label in labels] == [f"{value:.3f}" for value in wanted]
    opened.find("#measure option:nth-child(3)").click()
    letters = opened.run("return [...document.querySelectorAll('#grid button')].map((one) => one.textContent)")
    names = {"previous": "P", "next": "N", "first": "F", "local": "L", "broad": "B", "other": "·"}
    assert letters == [names[kind] for kind in np.ravel(measures["heads"]["kinds"])]


def test_sliders_and_arrow_keys_move_through_heads(opened):
    opened.press("#layer", RIGHT, RIGHT)
    opened.press("#head", RIGHT)
    assert chosen(opened) == [2 * HEADS + 1]
    assert opened.text("#layer-value") == "2"
    opened.press("#grid button[aria-selected=true]", UP)
    assert chosen(opened) == [HEADS + 1]
    opened.press("#grid button:focus", END)
    assert chosen(opened) == [HEADS + 3]
    opened.press("#grid button:focus", RIGHT, DOWN, LEFT, DOWN)  # not beyond the last head and layer
    assert chosen(opened) == [2 * HEADS + 2]
    assert opened.find("#head").get_attribute("value") == "2"
    assert opened.run("return document.activeElement.getAttribute('aria-selected')") == "true"
    outline = opened.run("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    assert opened.run("return document.querySelectorAll('#grid button[tabindex=\"0\"]').length") == 1


def test_zoom(opened, arrays):
    whole = picture(opened)
    assert opened.text("#scores .span") == ""
    opened.find("#scores button").click()
    assert opened.text("#scores .span") == "rows 0–74, columns 0–74"
    assert picture(opened) != whole
    opened.press("#scores canvas", "+")
    assert opened.text("#scores .span").startswith("rows 19–")
    opened.press("#scores canvas", UP, UP, UP, UP, LEFT, LEFT, LEFT, LEFT)
    span = opened.text("#scores .span")
    assert span.startswith("rows 3–") or span.startswith("rows 0–")
    opened.press("#scores canvas", "0")
    assert picture(opened) == whole
    opened.press("#scores canvas", "-")
    assert picture(opened) == whole  # there is nothing beyond the whole


def test_pointing_reads_what_was_measured(opened, arrays):
    edges = [n * LENGTH // 128 for n in range(128)] + [LENGTH]
    said = pointed(opened, 100, 20)
    row, column = (np.searchsorted(edges, place, side="right") - 1 for place in (100, 20))
    assert_allclose(
        number(said), arrays["heads.picture"][0, 0, row, column], atol=0.01 * np.ptp(arrays["heads.picture"][0, 0])
    )
    opened.find("#scores button").click()
    opened.find("#scores button").click()  # 37 or 38 positions, which the page has one by one
    opened.press("#scores canvas", UP, UP, UP, UP, UP, UP, LEFT, LEFT, LEFT, LEFT, LEFT, LEFT)
    size = int(opened.text("#scores .span").split(",")[0].split("–")[1]) + 1
    assert_allclose(
        number(pointed(opened, 9, 30, size=size)),
        arrays["heads.corner"][0, 0, 9, 30],
        atol=0.01 * np.ptp(arrays["heads.corner"][0, 0]),
    )
    assert "query position 9, key position 30:" in opened.text("#scores .readout")
    opened.find("#part option[value=rest]").click()
    profile = arrays["heads.mean"][0, 0]
    left = arrays["heads.corner"][0, 0, 9, 30] - profile[30 - 9 + LENGTH - 1]
    pointed(opened, 10, 30, size=size)
    assert_allclose(number(pointed(opened, 9, 30, size=size)), left, atol=0.01 * np.ptp(arrays["heads.corner"][0, 0]))


def number(said):
    return float(said.split(": ", 1)[1].split()[1].rstrip(",").replace("−", "-"))


def test_charts_are_read_with_arrow_keys(opened, arrays):
    opened.press("#profile svg", RIGHT, RIGHT, RIGHT)
    said = opened.text("#profile .readout")
    assert said.startswith("offset 3: mean ")
    assert_allclose(float(said.split()[3].replace("−", "-")), arrays["heads.mean"][0, 0, LENGTH - 1 + 3], rtol=0.01)
    opened.find("#reach button").click()
    points = opened.run("return document.querySelector('#profile .line.s1').getAttribute('points').split(' ').length")
    assert points == 2 * LENGTH - 1


def test_bias_curves_follow_the_head(browser, bias_page):
    browser.open(bias_page)
    with np.load(bias_page.parent / "arrays.npz") as file:
        curves = file["curves.mean"]
    browser.press("#layer", RIGHT)
    browser.press("#curve svg", LEFT)
    said = browser.text("#curve .readout")
    assert said.startswith("offset −1: head 0 ")
    assert_allclose(float(said.split()[4].replace("−", "-")), curves[1, 0, LENGTH - 2], rtol=0.01)
    assert browser.text("#curve-r2") == "1.000"
    notes = browser.run("return [...document.querySelectorAll('[data-missing]')].map((one) => one.dataset.missing)")
    assert sorted(notes) == ["segments", "table", "texts"]


CONTRASTS = """
const linear = (part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4);
const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
const light = (colour) => { const [r, g, b] = parts(colour).map(linear); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const behind = (one) => {
  for (let at = one; at; at = at.parentElement) {
    const colour = getComputedStyle(at).backgroundColor;
    if (parts(colour)[3] !== 0) return colour;
  }
};
const low = [];
for (const one of document.querySelectorAll("body *")) {
  const own = [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  if (!own || !one.checkVisibility() || one.closest("script, style, noscript, option, .skip")) continue;
  const style = getComputedStyle(one);
  if (parseFloat(style.fontSize) === 0) continue;
  const ink = one instanceof SVGElement ? style.fill : style.color, a = light(ink), b = light(behind(one));
  const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (contrast < 4.5) low.push([one.outerHTML.slice(0, 100), contrast]);
}
return low;
"""


@pytest.mark.parametrize("dark", [False, True])
def test_text_is_easy_to_read(browser, page, dark):
    browser.open(page, dark=dark)
    background = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(17, 21, 26)") == dark
    assert browser.run(CONTRASTS) == []
    browser.find("#measure option:nth-child(3)").click()  # letters of kinds on their colours
    assert browser.run(CONTRASTS) == []


def test_everything_has_a_name(opened):
    pictures = opened.run(
        "return [...document.querySelectorAll('canvas, .plot svg')].map((one) => one.getAttribute('aria-label'))"
    )
    assert len(pictures) > 10 and all(pictures)
    unnamed = opened.run(
        "return [...document.querySelectorAll('button, select, input')].filter((one) =>"
        " !(one.getAttribute('aria-label') || one.textContent.trim() || (one.labels && one.labels.length))).length"
    )
    assert unnamed == 0
    assert opened.run("return document.querySelectorAll('select, input').length") == 4
    assert opened.run("return [...document.querySelectorAll('select, input')].every((one) => one.labels.length === 1)")
    assert opened.run("return document.documentElement.lang") == "en"
    levels = opened.run("return [...document.querySelectorAll('h1, h2, h3')].map((one) => +one.tagName[1])")
    assert levels[0] == 1 and all(after - before <= 1 for before, after in pairwise(levels))
