"""Figures: the right ones for each model, with the numbers that were measured."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from numpy.testing import assert_allclose
from PIL import Image

from headway.bench.report import analysis_figures
from headway.bench.report.analysis.atlas import _join_pictures, draw_grid, draw_kinds, draw_profiles
from headway.bench.report.analysis.figures import draw_ranks, draw_table
from headway.bench.report.analysis.saved import read_saved

ALWAYS = {
    "heads_toeplitz_r2.png",
    "heads_kinds.png",
    "heads_scores.png",
    "heads_attention.png",
    "heads_profiles.svg",
    "first_token.svg",
}


@pytest.fixture(scope="module")
def files(bert_folder):
    return analysis_figures(bert_folder)


def test_a_model_has_the_figures_that_it_has_measures_for(files, own_folder):
    table = {"position_table.png", "position_cosines.svg"}
    assert {path.name for path in files} == ALWAYS | table | {"segment_attention.png", "ranks.svg"}
    assert {path.name for path in analysis_figures(own_folder)} == ALWAYS | {"bias_curves.svg"}


def test_pictures_are_pictures(files):
    for path in files:
        if path.suffix == ".png":
            with Image.open(path) as image:
                assert min(image.size) > 200
                assert len(image.convert("RGB").getcolors(1 << 24)) > 10
        else:
            assert path.read_text().rstrip().endswith("</svg>")


def test_the_same_measures_give_the_same_file(files, bert_folder):
    before = {path.name: path.read_bytes() for path in files}
    assert {path.name: path.read_bytes() for path in analysis_figures(bert_folder)} == before


def test_numbers_in_the_grid_are_the_measures(bert_folder):
    saved, figure = read_saved(bert_folder), Figure()
    draw_grid(figure, saved)
    written = [float(text.get_text()) for text in figure.axes[0].texts]
    assert_allclose(written, np.ravel(saved.measures["heads"]["r2"]), atol=0.0051)


def test_letters_of_kinds_are_the_measures(bert_folder):
    saved, figure = read_saved(bert_folder), Figure()
    draw_kinds(figure, saved)
    letters = [text.get_text().lower() for text in figure.axes[0].texts]
    assert letters == [kind[0] for kind in np.ravel(saved.measures["heads"]["kinds"])]


def test_the_table_has_its_seam_marked(bert_folder):
    saved = read_saved(bert_folder)
    saved.measures["table"]["seam"]["start"] = 20
    figure = Figure()
    draw_table(figure, saved)
    norms = next(axes for axes in figure.axes if axes.get_title().startswith("Length"))
    line, mark = norms.lines
    assert_allclose(line.get_ydata(), saved.arrays["table.norms"])
    assert set(mark.get_xdata()) == {20}


def test_profiles_and_fits_are_one_line_a_head(bert_folder):
    saved, figure = read_saved(bert_folder), Figure()
    draw_profiles(figure, saved)
    profiles, fits = figure.axes[0].collections
    assert len(profiles.get_segments()) == len(fits.get_segments()) == 6
    drawn = -profiles.get_segments()[4][:, 1]  # layer 1, head 1; up is less
    measured = saved.arrays["heads.mean"][1, 1]
    assert np.corrcoef(drawn, measured)[0, 1] > 0.999999


def test_ranks_show_every_part(bert_folder):
    saved, figure = read_saved(bert_folder), Figure()
    draw_ranks(figure, saved)
    average = saved.measures["texts"]["ranks"]["average"]
    drawn = {line.get_label(): line.get_ydata() for line in figure.axes[1].lines}
    for part in ("whole", "words", "positions"):
        assert_allclose(drawn[part], average[part]["effective"][0])


def test_tiles_stand_where_their_head_does():
    tiles = _join_pictures(np.arange(6.0).reshape(2, 3, 1, 1) * np.ones((2, 3, 25, 25)))
    assert tiles.shape == (54, 81)
    for layer in range(2):
        for head in range(3):
            block = tiles[27 * layer : 27 * (layer + 1), 27 * head : 27 * (head + 1)]
            assert set(block[~np.isnan(block)]) == {3.0 * layer + head}
