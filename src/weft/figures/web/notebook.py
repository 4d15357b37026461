"""Panels as plotly figures, for notebooks; plotly is imported only here, on first use."""

from __future__ import annotations

from html import escape
from itertools import product
from typing import Any

import numpy as np

from weft.figures.palette import plotly_colors, to_colors
from weft.figures.panels.attention import AttentionPanel
from weft.figures.panels.attention_steps import AttentionStepsPanel
from weft.figures.panels.bars import BarsPanel
from weft.figures.panels.motion import MotionPanel
from weft.figures.panels.overlays import OverlayPanel, TilesPanel, highlight
from weft.figures.panels.pairs import QueryKeyPanel
from weft.figures.panels.panel import Axis, Panel, visible_token
from weft.figures.panels.plots import PlotPanel
from weft.figures.panels.records import RecordsPanel
from weft.figures.panels.series import ChannelsPanel, ForecastPanel
from weft.figures.panels.tables import TablePanel, value_range
from weft.figures.panels.tokens import TokensPanel
from weft.foundation.arrays import Array
from weft.foundation.errors import WeftError

MOST_CHOICES = 200  # entries of a menu
LINES, LEAST = 40, 0.02  # tokens whose lines are drawn, and the least weight that gets one
STRENGTHS = (0.02, 0.1, 0.25, 0.5, 0.75)


def plotly_figure(panel: Panel) -> Any:
    """The panel as one plotly figure, with a menu of its choices."""
    try:
        import plotly.graph_objects as go
    except ImportError:
        raise WeftError("plotly is not installed: pip install 'weft[notebook]', or write an .html file") from None
    from weft.figures.web import notebook_series

    drawn = {
        AttentionPanel: _attention,
        TablePanel: _table,
        BarsPanel: _bars,
        TokensPanel: _tokens,
        QueryKeyPanel: _pair,
        OverlayPanel: _overlay,
        TilesPanel: _tiles,
        ForecastPanel: notebook_series.plot_forecast,
        ChannelsPanel: notebook_series.plot_channels,
        MotionPanel: notebook_series.plot_motion,
        AttentionStepsPanel: notebook_series.plot_attention_steps,
        PlotPanel: notebook_series.plot_curves,
        RecordsPanel: notebook_series.plot_records,
    }[type(panel)]
    figure = drawn(panel, go)  # type: ignore[operator]
    figure.update_layout(
        template="plotly_white", title=escape(panel.title, quote=False), margin={"l": 70, "r": 20, "t": 90, "b": 50}
    )
    return figure


def unique_labels(tokens: tuple[str, ...]) -> list[str]:
    """Tokens as distinct labels: plotly merges equal labels, and reads < as the start of a tag."""
    return [f"{number} {escape(visible_token(token), quote=False)}" for number, token in enumerate(tokens)]


def list_choices(axes: tuple[Axis, ...]) -> list[tuple[tuple[int, ...], str]]:
    """Every choice with its name, the chosen one first."""
    every = list(product(*(range(len(axis.options)) for axis in axes)))
    first = tuple(axis.chosen for axis in axes)
    ordered = [first, *(choice for choice in every if choice != first)][:MOST_CHOICES]
    return [
        (c, ", ".join(escape(axis.named(place), quote=False) for axis, place in zip(axes, c, strict=True)))
        for c in ordered
    ]


def add_menu(figure: Any, entries: list[tuple[str, dict[str, Any]]], traces: list[int] | None = None) -> None:
    """A menu whose entries change the data of traces."""
    if len(entries) < 2:
        return
    buttons = [
        {"label": name, "method": "restyle", "args": [change] if traces is None else [change, traces]}
        for name, change in entries
    ]
    place = {"x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"}
    figure.update_layout(updatemenus=[{"buttons": buttons, "showactive": True, **place}])


def _attention(panel: AttentionPanel, go: Any) -> Any:
    """Lines at the left, the matrix at the right."""
    from plotly.subplots import make_subplots

    figure = make_subplots(1, 2, column_widths=[0.4, 0.6], horizontal_spacing=0.14)
    every = list_choices(panel.axes())
    T, S = panel.maps.size
    first = _bundles(panel, every[0][0])
    for strength, (x, y) in zip(STRENGTHS, first, strict=True):
        style = {"width": 0.6 + 3 * strength, "color": f"rgba(9,105,218,{0.15 + 0.8 * strength:.2f})"}
        figure.add_scatter(x=x, y=y, mode="lines", line=style, hoverinfo="skip", showlegend=False, row=1, col=1)
    for place, tokens in ((0, panel.rows), (1, panel.columns)):
        shown = unique_labels(tokens)[:LINES]
        side = "middle left" if place == 0 else "middle right"
        figure.add_scatter(
            x=[place] * len(shown), y=list(range(len(shown))), text=shown, mode="text", textposition=side, row=1, col=1
        )
    whole = panel.maps.picture(*every[0][0]).shape == (T, S)
    given = {"x": unique_labels(panel.columns), "y": unique_labels(panel.rows)} if whole else {}
    hover = "%{y} looks at %{x}: %{z:.4f}<extra></extra>"
    heat = go.Heatmap(
        z=panel.maps.picture(*every[0][0]), colorscale=plotly_colors("share"), hovertemplate=hover, **given
    )
    figure.add_trace(heat, row=1, col=2)
    entries = []
    for choice, name in every:
        bundles = _bundles(panel, choice)
        entries.append(
            (
                name,
                {
                    "x": [*(x for x, _ in bundles), given.get("x")],
                    "y": [*(y for _, y in bundles), given.get("y")],
                    "z": [*(None for _ in bundles), panel.maps.picture(*choice)],
                },
            )
        )
    add_menu(figure, entries, [*range(len(STRENGTHS)), len(STRENGTHS) + 2])
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(visible=False, range=[-0.6, 1.6], row=1, col=1)
    figure.update_yaxes(visible=False, row=1, col=1)
    figure.update_layout(showlegend=False, height=max(420, 16 * min(T, 60) + 160))
    return figure


def _bundles(panel: AttentionPanel, choice: tuple[int, ...]) -> list[tuple[list[float | None], list[float | None]]]:
    """Per strength the lines of about this weight, with gaps between them."""
    found: list[tuple[list[float | None], list[float | None]]] = [([], []) for _ in STRENGTHS]
    for row in range(min(LINES, len(panel.rows))):
        weights = panel.maps.row(choice[0], choice[1], row)[:LINES]
        for column in np.flatnonzero(weights >= LEAST):
            x, y = found[int(np.searchsorted(STRENGTHS, weights[column], side="right")) - 1]
            x += [0, 1, None]
            y += [row, int(column), None]
    return found


def _table(panel: TablePanel, go: Any) -> Any:
    every = list_choices(panel.axes())
    hover = f"{panel.row_name} %{{y}}<br>{panel.column_name} %{{x}}<br>%{{z:.4f}}<extra></extra>"
    rows, columns = unique_labels(panel.rows), unique_labels(panel.columns)
    low, high = value_range(panel.values, panel.scale)
    heat = {"colorscale": plotly_colors(panel.scale), "zmin": low, "zmax": high, "hovertemplate": hover}
    if panel.words is not None:
        heat |= {
            "text": [[escape(visible_token(word), quote=False) for word in row] for row in panel.words],
            "texttemplate": "%{text}",
        }
    elif panel.cells == "numbers":
        heat |= {"texttemplate": "%{z:.3g}"}
    figure = go.Figure(go.Heatmap(z=panel.chosen(), x=columns, y=rows, **heat))
    if panel.gold is not None:
        down, across = np.nonzero(panel.gold)
        ring = {"symbol": "circle-open", "size": 9, "color": "#bc4c00"}
        figure.add_scatter(
            x=[columns[n] for n in across], y=[rows[n] for n in down], mode="markers", marker=ring, name="what is right"
        )
    add_menu(figure, [(name, {"z": [panel.values[choice]]}) for choice, name in every], [0])
    figure.update_yaxes(autorange="reversed")
    figure.update_layout(height=max(360, 24 * len(rows) + 200))
    return figure


def _bars(panel: BarsPanel, go: Any) -> Any:
    every = list_choices(panel.axes())

    def given(step: int) -> tuple[Array, list[str]]:
        return panel.values[step][::-1], unique_labels(panel.labels[step])[::-1]

    values, names = given(every[0][0][0])
    figure = go.Figure(go.Bar(x=values, y=names, orientation="h", hovertemplate="%{y}: %{x:.4f}<extra></extra>"))
    add_menu(figure, [(name, {"x": [given(c[0])[0]], "y": [given(c[0])[1]]}) for c, name in every])
    figure.update_layout(xaxis_title=panel.unit, height=26 * len(values) + 200)
    return figure


def _tokens(panel: TokensPanel, go: Any) -> Any:
    """One row of colors per choice, above the tokens."""
    every = list_choices(panel.axes())
    below = panel.below or ("",) * len(panel.tokens)
    names = [
        f"{name}<br>{text}" if text else name for name, text in zip(unique_labels(panel.tokens), below, strict=True)
    ]
    values = np.stack([panel.weights[choice] for choice, _ in every])
    low, high = value_range(values, panel.scale)
    style = {"colorscale": plotly_colors(panel.scale), "zmin": low, "zmax": high}
    hover = "%{x}<br>%{y}: %{z:.4f}<extra></extra>"
    figure = go.Figure(go.Heatmap(z=values, x=names, y=[name for _, name in every], hovertemplate=hover, **style))
    figure.update_yaxes(autorange="reversed")
    figure.update_layout(height=22 * len(every) + 220)
    return figure


def _pair(panel: QueryKeyPanel, go: Any) -> Any:
    from plotly.subplots import make_subplots

    figure = make_subplots(3, 1, subplot_titles=("query", "key", "products"), vertical_spacing=0.12)
    every = list_choices(panel.axes())

    def given(choice: tuple[int, ...]) -> list[Array]:
        q, k = panel.query[choice], panel.key[choice]
        return [q, k, q * k]

    for row, (values, color) in enumerate(zip(given(every[0][0]), ("#0969da", "#1a7f37", "#bc4c00"), strict=True), 1):
        figure.add_bar(y=values, marker_color=color, row=row, col=1)
    entries = []
    for choice, name in every:
        q, k, products = given(choice)
        words = f"{name}: q.k {float(products.sum()):.3g}, weight {float(panel.weights[choice]):.3f}"
        entries.append((words, {"y": [q, k, products]}))
    add_menu(figure, entries)
    figure.update_layout(showlegend=False, height=560)
    return figure


def _overlay(panel: OverlayPanel, go: Any) -> Any:
    every = list_choices(panel.axes())
    pictures = [(name, highlight(panel.pixels, panel.maps[choice])) for choice, name in every]
    figure = go.Figure(go.Image(z=pictures[0][1]))
    add_menu(figure, [(name, {"z": [picture]}) for name, picture in pictures])
    figure.update_layout(height=520)
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    return figure


def _tiles(panel: TilesPanel, go: Any) -> Any:
    """All tiles on one image."""
    count, height, width = panel.values.shape[:3]
    lines = -(-count // panel.across)
    sheet = np.full((lines * (height + 1), panel.across * (width + 1), 3), 255, dtype=np.uint8)
    limits = value_range(panel.values, panel.scale)
    for number, given in enumerate(panel.values):
        line, column = divmod(number, panel.across)
        colors = np.rint(255 * np.clip(given, 0, 1)) if given.ndim == 3 else to_colors(given, limits, panel.scale)
        y, x = line * (height + 1), column * (width + 1)
        sheet[y : y + height, x : x + width] = colors[..., :3]
    figure = go.Figure(go.Image(z=sheet))
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    figure.update_layout(height=110 * lines + 120)
    return figure
