"""Stills and notebook figures of every kind of panel: the values drawn are those given."""

from __future__ import annotations

import html
import re

import numpy as np
import pytest
from PIL import Image

from panels import TOKENS, H, L, T, attention, every_panel, numbers, shares
from weft.figures.charts.grids import draw_grid
from weft.figures.panels.attention_steps import AttentionStep, steps_text
from weft.figures.panels.maps import MEAN
from weft.figures.panels.motion import MotionPanel, guess_bones, project_sideways
from weft.figures.panels.overlays import highlight, stretch_colors
from weft.figures.panels.panel import Axis
from weft.figures.picture import Picture
from weft.foundation.errors import WeftError

PANELS = every_panel()


def test_all_kinds_in_one_still(tmp_path):
    picture = Picture("All", tuple(PANELS.values()), "words")
    figure = picture.figure()
    assert len(figure.subfigs) == len(PANELS) + 1
    drawn = {text.get_text() for box in figure.subfigs for text in box.texts}
    assert {panel.title for panel in PANELS.values()} <= drawn and {"All", "words"} <= drawn
    assert any(line.startswith("layer 1, head 1: a note") for line in drawn)
    with Image.open(picture.write(tmp_path / "all.png")) as image:
        assert image.size[0] > 1200 and image.size[1] > 4000


@pytest.mark.parametrize("name", PANELS)
def test_each_kind_writes_svg(tmp_path, name):
    text = Picture("One", (PANELS[name],)).write(tmp_path / "x.svg").read_text()
    assert "</svg>" in text and not re.search(r"(href|src)=.(?!#|data:)", text)


def heat_maps(panel) -> list[np.ndarray]:
    figure = Picture("", (panel,)).figure()
    return [np.asarray(image.get_array()) for axes in figure.axes for image in axes.images]


def test_the_matrix_of_a_still_is_the_chosen_map():
    panel = attention()
    assert any(found.shape == (T, T) and np.array_equal(found, panel.maps.values[1, 2]) for found in heat_maps(panel))
    assert any(np.array_equal(found, panel.maps.values[0, 3]) for found in heat_maps(panel.choose(0, 3)))
    assert len(heat_maps(panel)) == 1 + L * (H + 1)


def test_small_maps_of_many_layers_hold_the_chosen_one_and_say_which_are_left_out():
    from weft.figures.panels.attention import MOST_SMALL, AttentionPanel
    from weft.figures.panels.maps import DenseMaps

    tokens = ("a", "b", "c")

    def drawn(chosen, layers=MOST_SMALL + 11):
        axis, values = Axis("layer", tuple(map(str, range(layers))), chosen), shares(layers, 2, 3, 3)
        figure = Picture(
            "", (AttentionPanel("", tokens, tokens, axis, Axis("head", ("0", "1")), DenseMaps(values)),)
        ).figure()
        names = [text.get_text() for text in figure.axes[-1].texts if text.get_text().startswith("layer ")]
        said = [text.get_text() for text in figure.subfigs[-1].texts if text.get_text().startswith("Left out")]
        return names, said

    left_out = "Left out of these small maps: layers"
    assert drawn(0) == ([f"layer {n}" for n in range(12)], [f"{left_out} 12 to 22."])
    assert drawn(7) == ([f"layer {n}" for n in range(1, 13)], [f"{left_out} 0 and 13 to 22."])
    assert drawn(22) == ([f"layer {n}" for n in range(11, 23)], [f"{left_out} 0 to 10."])
    assert drawn(12, 13)[1] == ["Left out of these small maps: layer 0."] and drawn(11, 12)[1] == []


def test_lines_are_as_strong_as_weights():
    panel = attention()
    axes = Picture("", (panel,)).figure().axes[0]
    bold = [line for line in axes.lines if line.get_color() == "#bc4c00"]
    ends = {round(line.get_ydata()[1]): line.get_alpha() for line in bold}
    row = panel.weights(5)
    assert ends == {place: pytest.approx(float(weight)) for place, weight in enumerate(row) if weight >= 0.02}


def test_alignment_and_table_show_their_values():
    assert np.array_equal(heat_maps(PANELS["alignment"])[0], PANELS["alignment"].values[1])
    assert np.array_equal(heat_maps(PANELS["table"])[0], PANELS["table"].values)
    texts = [text.get_text() for axes in Picture("", (PANELS["table"],)).figure().axes for text in axes.texts]
    assert "w24" in texts


def test_bars_and_their_mark():
    axes = Picture("", (PANELS["bars"],)).figure().axes[0]
    assert [bar.get_width() for bar in axes.patches] == pytest.approx(PANELS["bars"].values[3].tolist())
    assert len({bar.get_facecolor() for bar in axes.patches}) == 2


def test_long_texts_show_a_window_of_lines_and_numbered_ticks(tmp_path):
    tokens = tuple(f"t{number}" for number in range(131))
    values = shares(1, 1, 131, 131)
    from weft.figures.panels.attention import AttentionPanel
    from weft.figures.panels.maps import DenseMaps

    panel = AttentionPanel(
        "", tokens, tokens, Axis("layer", ("0",)), Axis("head", ("0",)), DenseMaps(values), focus=100
    )
    figure = Picture("", (panel,)).figure()
    names = {text.get_text() for text in figure.axes[0].texts}
    assert "t100" in names and "t5" not in names and len(names) <= 48
    ticks = [tick.get_text() for tick in figure.axes[1].get_xticklabels()]
    assert ticks and all(tick.isdecimal() for tick in ticks)


def test_the_glow_is_where_the_map_is_large():
    pixels = np.full((6, 4, 3), 100, dtype=np.uint8)
    found = highlight(pixels, np.array([[0.0, 1.0], [0.0, 0.0], [0.0, 0.0]], dtype=np.float32))
    assert found[0, 3, 0] > found[0, 0, 0] == found[5, 3, 0] == 60
    assert highlight(pixels, np.zeros((1, 1), np.float32)).shape == pixels.shape


def test_filters_are_stretched_about_gray():
    found = stretch_colors(np.array([[[[0.0], [2.0]], [[-2.0], [1.0]]]]))
    np.testing.assert_allclose(found[0, ..., 0], [[0.5, 1.0], [0.0, 0.75]])


def test_up_is_up():
    joints = numbers(3, 5, 3)
    for up, axis in (("x", 0), ("y", 1), ("z", 2)):
        panel = MotionPanel("", joints, ((0, 1),), shares(3), (), up)
        np.testing.assert_array_equal(panel.upright()[..., 2], joints[..., axis])
    assert project_sideways(joints).shape == (3, 5, 2)


def test_bones_of_an_unknown_skeleton():
    """A chain of joints at fixed distances, bending in time."""
    angles = np.cumsum(0.4 * numbers(29, 5, 2), 0)
    steps = np.stack([np.cos(angles[..., 0]), np.sin(angles[..., 0]), 0.3 * np.sin(angles[..., 1])], -1)
    joints = np.cumsum(steps / np.linalg.norm(steps, axis=-1, keepdims=True), 1)
    assert {tuple(sorted(bone)) for bone in guess_bones(joints)} == {(0, 1), (1, 2), (2, 3), (3, 4)}


def test_unfolded_steps_as_text():
    step = AttentionStep("scale", "e / sqrt(D_K)", "ScaledDot", np.array([[58.9, 57.2]]), ("it",), ("animal", "street"))
    text = steps_text([step])
    assert "1. scale" in text and "e / sqrt(D_K)" in text and "58.9" in text and "computed by ScaledDot" in text
    wide = steps_text([AttentionStep("v", "v", "p", numbers(20, 30))])
    assert "… 22 more" in wide and "… 8 more rows" in wide


def test_errors_name_the_remedy(tmp_path):
    with pytest.raises(WeftError, match=r"end the name in one of \.html, \.png"):
        Picture("", (PANELS["bars"],)).write(tmp_path / "x.txt")
    with pytest.raises(WeftError, match="choose a folder that can be written"):
        Picture("", (PANELS["bars"],)).write(tmp_path / "no" / "x.html")
    with pytest.raises(WeftError, match="nothing to see"):
        Picture("x", ())
    with pytest.raises(WeftError, match="a bone ends at joint 9"):
        MotionPanel("", numbers(3, 5, 3), ((0, 9),), shares(3), ())
    with pytest.raises(WeftError, match="choose a folder that can be written"):
        draw_grid([[0.0]], tmp_path / "no" / "x.png")


# --- notebooks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PANELS)
def test_each_kind_as_a_plotly_figure(name):
    pytest.importorskip("plotly")
    [figure] = Picture("", (PANELS[name],)).plots()
    assert figure.layout.title.text == PANELS[name].title and len(figure.data) >= 1
    assert len(figure.to_json()) > 100


def test_a_menu_changes_the_heat_map():
    pytest.importorskip("plotly")
    panel = attention()
    [figure] = Picture("", (panel,)).plots()
    heat = next(trace for trace in figure.data if trace.type == "heatmap")
    np.testing.assert_array_equal(np.asarray(heat.z), panel.maps.values[1, 2])
    buttons = figure.layout.updatemenus[0].buttons
    names = [button.label for button in buttons]
    assert names[0] == "layer 1, head 1" and f"layer 0, {MEAN}" in names and len(names) == L * (H + 1)
    change = buttons[names.index("layer 0, head 2")].args[0]["z"][-1]
    np.testing.assert_array_equal(np.asarray(change), panel.maps.values[0, 3])
    assert [html.unescape(label.split(" ", 1)[1]) for label in heat.x] == list(TOKENS)
    assert not any("<" in label for label in heat.x)
