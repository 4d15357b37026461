"""Curves, alignments and forecasts: what is drawn is what was given."""

from __future__ import annotations

from itertools import pairwise

import matplotlib
import numpy as np
import pytest
from PIL import Image

from weft.figures.canvas import drawable_text, save_figure
from weft.figures.charts.alignments import alignment_figure
from weft.figures.charts.curves import curve_figure, draw_curves, running_mean
from weft.figures.charts.forecasts import forecast_figure
from weft.foundation.errors import WeftError

LOSSES = [(10, 3.0), (20, 1.5), (30, 2.0), (40, float("nan")), (50, 1.75)]


def legend(figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].get_legend().get_texts()]


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).normal(size=shape)


def test_curves_mark_the_best_and_the_known():
    axes = (figure := curve_figure({"validation": LOSSES}, known=(1.25, "best possible"))).axes[0]
    curve, best, known = axes.lines
    np.testing.assert_array_equal(curve.get_xydata(), np.array(LOSSES))
    assert best.get_xydata().tolist() == [[20, 1.5]]
    assert set(known.get_ydata()) == {1.25} and known.is_dashed()
    assert legend(figure) == ["validation, best 1.5 at 20", "best possible 1.25"]


def test_higher_may_be_better():
    assert curve_figure({"accuracy": LOSSES}, better="higher").axes[0].lines[1].get_xydata().tolist() == [[10, 3.0]]


def test_a_noisy_curve_is_drawn_with_its_running_mean():
    batches = list(enumerate(numbers(1201)))
    axes = (figure := curve_figure({"training": batches, "validation": LOSSES})).axes[0]
    pale, smooth = axes.lines[:2]
    assert pale.get_alpha() < 1 and np.std(smooth.get_ydata()) < np.std(pale.get_ydata()) / 3
    assert legend(figure)[0] == "training"


def test_running_mean_by_hand():
    values = np.array([1.0, 3, np.nan, 5, 7])
    np.testing.assert_array_equal(running_mean(values, 2), [1, 2, 3, 5, 6])
    np.testing.assert_array_equal(running_mean(values[2:4], 1), [np.nan, 5])


def test_log_steps_leave_out_step_0():
    axes = curve_figure({"validation": [(0, 9.0), *LOSSES]}, log_x=True).axes[0]
    assert axes.get_xscale() == "log" and len(axes.lines[0].get_xdata()) == len(LOSSES)


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_curves_are_written(tmp_path, suffix):
    path = draw_curves(
        tmp_path / f"loss.{suffix}", {"training": LOSSES, "nothing": []}, title="$5 a_b $6 中", log_x=True
    )
    assert path.stat().st_size > 2000
    if suffix == "svg":
        again = draw_curves(tmp_path / "again.svg", {"training": LOSSES, "nothing": []}, "$5 a_b $6 中", log_x=True)
        assert path.read_bytes() == again.read_bytes()


def test_drawing_leaves_the_settings_alone(tmp_path):
    before = dict(matplotlib.rcParams)
    draw_curves(tmp_path / "loss.png", {"training": LOSSES})
    assert dict(matplotlib.rcParams) == before


def test_curve_refusals(tmp_path):
    for nothing in ({}, {"training": []}, {"training": [(1, float("nan"))]}):
        with pytest.raises(WeftError, match="no curve has a point"):
            curve_figure(nothing)
    with pytest.raises(WeftError, match="curve 'training' has shape 3: give pairs"):
        curve_figure({"training": [1.0, 2.0, 3.0]})
    with pytest.raises(WeftError, match=r"end the name in one of .png, .svg, .pdf"):
        draw_curves(tmp_path / "loss.gif", {"training": LOSSES})
    with pytest.raises(WeftError, match="choose a folder that can be written"):
        draw_curves(tmp_path / "nowhere" / "loss.png", {"training": LOSSES})


def test_legible():
    assert drawable_text("Katze_ß→") == "Katze_ß→"
    assert drawable_text("a\nb\tc") == "a↵b⇥c"
    assert drawable_text("x\U0010fffdy\ud800") == "x□y□"
    assert drawable_text("abcdefg", 5) == "abcd…" and drawable_text("abcde", 5) == "abcde"
    assert drawable_text("$x$") == r"\$x\$"


def test_alignment_has_the_source_on_top_and_the_target_left(tmp_path):
    weights = np.abs(numbers(5, 7))
    source, target = ["the", "cat", "sat", "on", "the", "mat", "</s>"], ["die", " Katze", "$1$", "\U0010fffd", ""]
    axes = (figure := alignment_figure(weights, source, target, title="head 3")).axes[0]
    np.testing.assert_array_equal(axes.images[0].get_array(), weights)
    assert [label.get_text() for label in axes.get_xticklabels()] == source
    assert [label.get_text() for label in axes.get_yticklabels()] == ["die", "␣Katze", r"\$1\$", "□", "∅"]
    assert axes.xaxis.get_ticks_position() != "bottom" and axes.get_xticklabels()[0].get_rotation() == 90
    with Image.open(save_figure(figure, tmp_path / "alignment.png")) as image:
        assert image.width > 300 and image.height > 200


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (29, 2), (61, 53), (2, 97)])
def test_alignment_labels_do_not_overlap(tmp_path, rows, columns):
    figure = alignment_figure(numbers(rows, columns) ** 2, ["Wort"] * columns, ["word"] * rows)
    save_figure(figure, tmp_path / "alignment.png")
    axes = figure.axes[0]
    for labels, side in ((axes.get_yticklabels(), "y"), (axes.get_xticklabels(), "x")):
        boxes = sorted(
            (getattr(box, side + "0"), getattr(box, side + "1"))
            for box in (label.get_window_extent() for label in labels)
        )
        assert all(end <= start + 0.5 for (_, end), (start, _) in pairwise(boxes))
        assert labels[0].get_fontsize() >= (10 if max(rows, columns) < 31 else 7)


def test_alignment_refuses_other_shapes():
    with pytest.raises(WeftError, match="weights of shape 5x7 for 7 target and 5 source tokens"):
        alignment_figure(numbers(5, 7), list("abcde"), list("abcdefg"))
    with pytest.raises(WeftError, match="weights of shape 0"):
        alignment_figure([], [], [])


def test_forecast_shows_history_forecast_band_and_truth(tmp_path):
    history, forecast, truth = numbers(211, 3), numbers(13, 3), numbers(13, 3)
    figure = forecast_figure(history, forecast, forecast - 2, forecast + 2, truth, ["load", "$heat$", "中"], "ETT")
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["load", r"\$heat\$", drawable_text("中")]
    for number, axes in enumerate(figure.axes):
        lines = {line.get_label(): line for line in axes.lines}
        np.testing.assert_array_equal(lines["history"].get_ydata(), history[-39:, number])
        assert lines["history"].get_xdata()[-1] == 0
        np.testing.assert_array_equal(lines["forecast"].get_ydata(), [history[-1, number], *forecast[:, number]])
        np.testing.assert_array_equal(lines["truth"].get_ydata()[1:], truth[:, number])
        assert lines["forecast"].get_xdata()[-1] == 13
        corners = axes.collections[0].get_paths()[0].vertices
        assert corners[:, 1].max() == pytest.approx(max(history[-1, number], *(forecast[:, number] + 2)))
    assert save_figure(figure, tmp_path / "forecast.png").stat().st_size > 5000


def test_forecast_of_one_and_of_many_columns(tmp_path):
    figure = forecast_figure(numbers(29), numbers(5))
    assert len(figure.axes) == 1 and not figure.axes[0].collections
    figure = forecast_figure(numbers(29, 11), numbers(5, 11), title="load")
    assert len(figure.axes) == 8 and figure.get_suptitle() == "load, 8 of 11 columns"
    save_figure(figure, tmp_path / "forecast.svg")


def test_forecast_refusals():
    with pytest.raises(WeftError, match="forecast has shape 5x2, but steps x 3 is needed"):
        forecast_figure(numbers(29, 3), numbers(5, 2))
    with pytest.raises(WeftError, match="truth has shape 7x3, but 5 x 3 is needed"):
        forecast_figure(numbers(29, 3), numbers(5, 3), truth=numbers(7, 3))
    with pytest.raises(WeftError, match="give both low and high"):
        forecast_figure(numbers(29, 3), numbers(5, 3), low=numbers(5, 3))
    with pytest.raises(WeftError, match="2 names for 3 columns"):
        forecast_figure(numbers(29, 3), numbers(5, 3), names=["a", "b"])
    with pytest.raises(WeftError, match="history has shape 0x1"):
        forecast_figure([], [1.0])
