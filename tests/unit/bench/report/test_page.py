"""The skeleton of pages: escaping, numbers, and nothing from outside."""

import json

import pytest
from jinja2 import UndefinedError

from headway.bench.report.page import number, percent, script_json, symbols, write_page

HOSTILE = "</script><script>alert(1)</script><!--<script>"


def test_json_in_a_script_cannot_end_it():
    text = script_json({"name": HOSTILE})
    assert "<" not in text
    assert json.loads(text) == {"name": HOSTILE}


def test_json_of_what_is_not_a_number_is_refused():
    with pytest.raises(ValueError, match="not JSON compliant"):
        script_json([float("nan")])


@pytest.mark.parametrize(("value", "written"), [(0.1234, "0.123"), (-2.5, "−2.500"), (None, "–"), (0.0, "0.000")])
def test_numbers(value, written):
    assert number(value) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [(0.0, "0 %"), (1.0, "100 %"), (0.474, "47 %"), (0.999, "over 99 %"), (0.001, "under 1 %"), (None, "–")],
)
def test_shares_are_not_rounded_to_all_or_nothing(value, written):
    assert percent(value) == written


def test_symbols_are_lowered_and_the_rest_is_escaped():
    assert symbols("F_P & E_P E_Pᵀ") == "F<sub>P</sub> &amp; E<sub>P</sub> E<sub>P</sub>ᵀ"
    assert symbols("<b>F_P</b>") == "&lt;b&gt;F<sub>P</sub>&lt;/b&gt;"
    assert symbols("MY_PATH A_Po") == "MY_PATH A_Po"


def test_a_page_stands_alone(tmp_path):
    path = write_page(tmp_path / "new" / "page.html", "base.html.jinja", scripts=["data.js"], data={"numbers": [1, 2]})
    text = path.read_text()
    assert '<script type="application/json" id="numbers">[1,2]</script>' in text
    assert "async function unpack" in text
    assert "default-src 'none'" in text


def test_a_value_that_a_template_needs_must_be_given(tmp_path):
    with pytest.raises(UndefinedError):
        write_page(tmp_path / "page.html", "analysis.html.jinja")
    assert not list(tmp_path.iterdir())
