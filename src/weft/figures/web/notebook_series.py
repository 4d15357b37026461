"""Panels of series, motion and attention steps as plotly figures."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

from weft.figures.canvas import COLORS, GRAY
from weft.figures.palette import plotly_colors
from weft.figures.panels.attention_steps import AttentionStepsPanel, value_lines
from weft.figures.panels.motion import MotionPanel
from weft.figures.panels.panel import Axis
from weft.figures.panels.plots import PlotPanel
from weft.figures.panels.records import RecordsPanel
from weft.figures.panels.series import ChannelsPanel, ForecastPanel, standardize
from weft.foundation.arrays import Array


def plot_forecast(panel: ForecastPanel, go: Any) -> Any:
    """History and forecast above, attention over the history below, with a menu of column, layer and head."""
    from weft.figures.web.notebook import add_menu, list_choices

    figure = _two_rows(0.82)
    before, after = np.arange(1 - len(panel.history), 1), np.arange(len(panel.ahead) + 1)
    patches = panel.attention.shape[-1]
    middles = -panel.patch * (np.arange(patches, 0, -1) - 0.5) + 0.5
    every = list_choices(panel.axes())

    def given(choice: tuple[int, ...]) -> tuple[list[Array], Array]:
        column, *rest = choice
        past, ahead = panel.history[:, column], panel.ahead[:, column]
        curves = [past, np.concatenate([past[-1:], ahead])]
        if panel.low is not None and panel.high is not None:
            curves += [np.concatenate([past[-1:], end[:, column]]) for end in (panel.low, panel.high)]
        return curves, panel.attention[(min(column, len(panel.attention) - 1), *rest)][None]

    curves, strip = given(every[0][0])
    styles: list[tuple[str, Any, str, str | None]] = [
        ("history", before, GRAY, None),
        ("forecast", after, COLORS[0], None),
    ]
    styles += [(f"{panel.band}, low", after, COLORS[0], None), (f"{panel.band}, high", after, COLORS[0], "tonexty")]
    for (name, x, color, fill), y in zip(styles, curves, strict=False):
        line = {"color": color, "width": 0.5 if "band" in name else 1.5}
        figure.add_scatter(x=x, y=y, name=name, line=line, fill=fill, mode="lines", row=1, col=1)
    figure.add_trace(go.Heatmap(x=middles, z=strip, colorscale=plotly_colors("share"), showscale=False), row=2, col=1)
    entries = []
    for choice, name in every:
        ys, z = given(choice)
        entries.append((name, {"y": [*ys, None], "z": [*(None for _ in ys), z]}))
    add_menu(figure, entries)
    figure.update_layout(xaxis2_title="steps from now", height=480)
    figure.update_yaxes(visible=False, row=2, col=1)
    return figure


def plot_channels(panel: ChannelsPanel, go: Any) -> Any:
    """Channels above, attention over time below."""
    figure = _two_rows(0.75)
    if len(panel.names) <= len(COLORS):
        for number, name in enumerate(panel.names):
            figure.add_scatter(y=panel.values[:, number], name=name, mode="lines", row=1, col=1)
    else:
        scale = {"colorscale": plotly_colors("signed"), "zmin": -3, "zmax": 3, "showscale": False}
        figure.add_trace(go.Heatmap(z=standardize(panel.values).T, **scale), row=1, col=1)
    figure.add_trace(_strips(go, panel.attention, panel.choices, len(panel.values)), row=2, col=1)
    figure.update_layout(xaxis2_title="step", height=520)
    return figure


def plot_motion(panel: MotionPanel, go: Any) -> Any:
    """The skeleton in 3-D with a play button and a slider."""
    joints = panel.upright()
    weights = panel.attention[tuple(axis.chosen for axis in panel.choices)]
    shares = weights[np.minimum(np.arange(len(joints)) * len(weights) // len(joints), len(weights) - 1)]

    def body(step: int) -> Any:
        ends = [[*joints[step, [one, other]].tolist(), [None] * 3] for one, other in panel.bones]
        x, y, z = zip(*(end for bone in ends for end in bone), strict=True)
        strength = 0.3 + 0.7 * float(shares[step]) / (float(shares.max()) or 1.0)
        line = {"width": 7, "color": f"rgba(9,105,218,{strength:.2f})"}
        return go.Scatter3d(x=x, y=y, z=z, mode="lines", line=line, name=f"step {step}: {float(shares[step]):.3f}")

    steps = [str(step) for step in range(len(joints))]
    figure = go.Figure(body(0), frames=[go.Frame(data=[body(int(step))], name=step) for step in steps])
    low, high = joints.min((0, 1)), joints.max((0, 1))
    sides = {f"{axis}axis": {"range": [low[n], high[n]]} for n, axis in enumerate("xyz")}
    play = {"label": "play", "method": "animate", "args": [None, {"frame": {"duration": 60}}]}
    moments = [{"label": s, "method": "animate", "args": [[s], {"mode": "immediate"}]} for s in steps]
    figure.update_layout(
        scene={**sides, "aspectmode": "data"},
        updatemenus=[{"type": "buttons", "buttons": [play]}],
        sliders=[{"steps": moments}],
        height=620,
        showlegend=True,
    )
    return figure


def plot_attention_steps(panel: AttentionStepsPanel, go: Any) -> Any:
    """The steps as a table."""
    rows = [
        (step.name, step.formula, "<br>".join(line.replace(" ", "\u00a0") for line in value_lines(step)), step.part)
        for step in panel.steps
    ]
    cells = {"values": list(zip(*rows, strict=True)), "align": "left", "font": {"family": "monospace"}}
    head = {"values": ["step", "formula", "numbers", "computed by"], "align": "left"}
    figure = go.Figure(go.Table(header=head, cells=cells, columnwidth=[1, 2, 4, 2]))
    figure.update_layout(height=200 + 130 * len(rows))
    return figure


def plot_curves(panel: PlotPanel, go: Any) -> Any:
    """All curves in one plot."""
    figure = go.Figure()
    for name, values in zip(panel.names, panel.values, strict=True):
        figure.add_scatter(x=panel.places, y=values, name=name, mode="lines")
    figure.update_layout(xaxis_title=panel.x_label, yaxis_title=panel.y_label, height=420)
    return figure


def plot_records(panel: RecordsPanel, go: Any) -> Any:
    """The records as a table."""
    columns = [[escape(cell, quote=False) for cell in column] for column in zip(*panel.rows, strict=True)]
    colors = [["#bc4c00" if number in panel.marked else "black" for number in range(len(panel.rows))]]
    head = {"values": [escape(name, quote=False) for name in panel.head], "align": "left"}
    cells = {"values": columns, "align": "left", "font": {"color": colors * len(panel.head)}}
    figure = go.Figure(go.Table(header=head, cells=cells))
    figure.update_layout(height=200 + 24 * len(panel.rows))
    return figure


def _two_rows(share: float) -> Any:
    from plotly.subplots import make_subplots

    return make_subplots(2, 1, row_heights=[share, 1 - share], shared_xaxes=True, vertical_spacing=0.06)


def _strips(go: Any, attention: Array, axes: tuple[Axis, ...], steps: int) -> Any:
    from weft.figures.web.notebook import list_choices

    every = list_choices(axes)
    values = np.stack([attention[choice] for choice, _ in every])
    places = (np.arange(values.shape[1]) + 0.5) * steps / values.shape[1] - 0.5
    hover = "step %{x:.0f}, %{y}: %{z:.4f}<extra></extra>"
    names = [name for _, name in every]
    return go.Heatmap(
        x=places, y=names, z=values, colorscale=plotly_colors("share"), showscale=False, hovertemplate=hover
    )
