"""report.html says what was measured, whatever the model is called and whatever parts it lacks."""

import json
import re
import shutil

import numpy as np
import pytest
from numpy.testing import assert_allclose

from headway.bench.report import analysis_page
from headway.bench.report.analysis.contents import (
    CORNERS,
    PICTURES,
    choose_offsets,
    crop_pictures,
    pack_arrays,
    shrink_pictures,
)
from headway.bench.report.analysis.saved import Saved, read_saved
from headway.bench.report.analysis.summary import KIND_WORDS, findings, kind_counts
from headway.pretrained.analysis import KINDS, Thresholds
from headway.pretrained.analysis.text_measures import RELATIVE


def embedded(page, name):
    return json.loads(re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', page).group(1))


@pytest.fixture(scope="module")
def page(bert_folder):
    return analysis_page(bert_folder).read_text()


def test_the_measures_in_the_page_are_those_in_the_file(page, bert_folder):
    saved = json.loads((bert_folder / "measures.json").read_text())
    del saved["arrays"]
    assert embedded(page, "measures") == saved


def test_the_arrays_in_the_page_are_those_in_the_file(page, bert_folder, unpacked):
    packed = embedded(page, "arrays")
    with np.load(bert_folder / "arrays.npz") as arrays:
        for name, of, tolerance in (
            ("mean", "heads.mean", 1e-4),
            ("std", "heads.std", 0.005),
            ("picture", "heads.picture", 0.005),
            ("corner", "heads.corner", 0.005),
            ("attention", "heads.attention", 0.005),
            ("segmentAttention", "segments.attention", 0.005),
        ):
            wanted = arrays[of].reshape(-1, *arrays[of].shape[2:])
            assert_allclose(unpacked(packed, name), wanted, atol=tolerance * np.ptp(wanted), err_msg=name)
        for part, name in (("heads", "pattern"), ("texts", "textPattern")):
            offsets, shares = arrays[f"{part}.patterns.offsets"], arrays[f"{part}.patterns.by_offset"].reshape(6, -1)
            near = abs(offsets) <= 24
            assert (unpacked(packed, f"{name}Offsets")[0] == offsets[near]).all()
            assert_allclose(unpacked(packed, name), shares[:, near], atol=1e-4)
        assert_allclose(unpacked(packed, "norms")[0], arrays["table.norms"], rtol=1e-3)
        assert_allclose(unpacked(packed, "gram")[0], arrays["gram_picture"], atol=1e-3 * np.ptp(arrays["gram_picture"]))
        assert (unpacked(packed, "counts")[0] == arrays["table.cosines.counts"]).all()
        assert (unpacked(packed, "offsets")[0] == arrays["heads.offsets"]).all()


def test_nothing_is_fetched(page):
    assert not re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', page)
    assert "@import" not in page
    assert "url(" not in page
    assert not re.search(r"\b(fetch|XMLHttpRequest|WebSocket|EventSource|sendBeacon)\(", page)


def test_parts_that_are_there_are_not_excused(page):
    assert re.findall('data-missing="([^"]*)"', page) == ["curves"]
    assert "has no config.json" in page


def test_parts_that_are_missing_are_excused_in_one_line_each(own_folder, unpacked):
    text = analysis_page(own_folder).read_text()
    assert sorted(re.findall('data-missing="([^"]*)"', text)) == ["segments", "table", "texts"]
    assert "--text FILE" in text
    assert 'id="gram"' not in text
    assert 'id="curve"' in text
    assert unpacked(embedded(text, "arrays"), "curve").shape == (6, 79)


def test_a_causal_model_has_no_offsets_to_the_right(gpt2_folder, unpacked):
    packed = embedded(analysis_page(gpt2_folder).read_text(), "arrays")
    assert unpacked(packed, "offsets").max() == 0


def test_a_hostile_name_is_only_a_name(bert_folder, tmp_path, record):
    folder = shutil.copytree(bert_folder, tmp_path / "copy")
    record(folder, model='"><script>alert(1)</script><img src=x onerror=alert(2)>')
    text = analysis_page(folder).read_text()
    assert "<script>alert" not in text
    assert "<img" not in text
    assert "&lt;script&gt;alert(1)" in text


def test_what_was_asked_is_told(bert_folder, tmp_path, record):
    folder = shutil.copytree(bert_folder, tmp_path / "copy")
    record(folder)
    text = analysis_page(folder).read_text()
    for told in ("organisation/name", "headway analyze organisation/name", "1, 3, 5", "2.13.0"):
        assert f"<code>{told}</code>" in text
    record(folder, model="/somewhere/runs/diet-rel/model", weights="0123456789ab")
    assert "<h1>What the positions of diet-rel/model learned</h1>" in analysis_page(folder).read_text()


def test_rules_told_in_words_are_those_that_were_used(page):
    """The page states thresholds and tolerance; it may not import them, so they are held here."""
    used = Thresholds()
    assert (used.token, used.first, used.radius, used.local, used.broad) == (0.4, 0.4, 5, 0.5, 0.9)
    for words in ("40 %", "five tokens to either side", "half within", "90 %"):
        assert words in page
    assert RELATIVE == 1e-3 and "above a thousandth of the greatest" in page
    assert tuple(KIND_WORDS) == KINDS


def test_sentences_count_right(bert_folder):
    measures = read_saved(bert_folder).measures
    measures["heads"]["r2"] = [[0.95, 0.2, 0.3], [0.91, 0.4, 0.5]]
    measures["heads"]["kinds"] = [["previous", "previous", "broad"], ["other", "broad", "broad"]]
    measures["table"]["seam"]["start"] = 37
    measures["texts"]["same_token"] = {"share": [[0.1, 0.0, 0.2], [0.1, 0.5, 0.1]], "chance": 0.04}
    text = " ".join(findings(measures))
    assert "F_P of 2 of the 6 heads" in text
    assert "median over heads is 0.450" in text
    assert "heads attend 2 to the previous token, 3 to everything alike and 1 to none of these." in text
    assert "at position 37" in text
    assert (
        "in layer 1, head 1: 50 % of that head's attention, where attention to all tokens alike would give 4 %" in text
    )
    assert {row["kind"]: row["alone"] for row in kind_counts(measures)}["broad"] == 3


def test_files_of_two_analyses_are_refused(bert_folder, own_folder, tmp_path):
    shutil.copy(bert_folder / "measures.json", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"expected the arrays beside measures\.json"):
        analysis_page(tmp_path)
    shutil.copy(own_folder / "arrays.npz", tmp_path)
    with pytest.raises(ValueError, match="of one analysis, got two that differ"):
        analysis_page(tmp_path)


@pytest.mark.parametrize(("longest", "causal"), [(39, False), (512, False), (8191, False), (8191, True)])
def test_offsets_shown_are_all_near_ones_and_some_far(longest, causal):
    offsets = np.arange(-longest, 1 if causal else longest + 1)
    shown = offsets[choose_offsets(offsets)]
    assert set(range(-min(longest, 512), 1)) <= set(shown)
    assert shown[0] == offsets[0] and shown[-1] == offsets[-1]
    assert len(shown) <= 2100
    assert np.diff(shown).max() <= max(1, longest // 500)


def test_many_heads_have_smaller_pictures():
    pictures = np.random.default_rng(0).normal(size=(400, 128, 128))
    small = shrink_pictures(pictures)
    assert small.shape == (400, 64, 64) and small.size <= PICTURES
    assert_allclose(small[7, 3, 5], pictures[7, 6:8, 10:12].mean())
    corners = crop_pictures(pictures[:, :64, :64])
    assert corners.size <= CORNERS
    assert_allclose(corners, pictures[:, : corners.shape[1], : corners.shape[1]])


@pytest.mark.parametrize(("layers", "heads"), [(12, 12), (24, 16)])
def test_large_models_have_pages_of_a_few_megabytes(layers, heads):
    draw = np.random.default_rng(0)  # noise, which does not compress: the worst there is
    shapes = {"heads.mean": 1023, "heads.std": 1023, "heads.patterns.by_offset": 255}
    sides = {"heads.picture": 128, "heads.corner": 64, "heads.attention": 64, "segments.attention": 32}
    arrays = {name: draw.normal(size=(layers, heads, size)) for name, size in shapes.items()}
    arrays |= {name: draw.normal(size=(layers, heads, side, side)) for name, side in sides.items()}
    arrays |= {"heads.offsets": np.arange(-511, 512), "heads.patterns.offsets": np.arange(-127, 128)}
    measures = {"table": None, "texts": None, "segments": {}, "curves": None}
    packed = pack_arrays(Saved(None, measures, arrays, None, None, None))
    assert len(json.dumps(packed)) < 5.6e6
