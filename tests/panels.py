"""One panel of each kind, of prime sizes, for tests of stills, pages and notebooks."""

from __future__ import annotations

import numpy as np

from weft.figures.panels.attention import AttentionPanel
from weft.figures.panels.attention_steps import AttentionStep, AttentionStepsPanel
from weft.figures.panels.bars import BarsPanel
from weft.figures.panels.maps import collect_maps
from weft.figures.panels.motion import MotionPanel
from weft.figures.panels.overlays import OverlayPanel, TilesPanel
from weft.figures.panels.pairs import QueryKeyPanel
from weft.figures.panels.panel import Axis, Panel
from weft.figures.panels.plots import PlotPanel
from weft.figures.panels.records import RecordsPanel
from weft.figures.panels.series import ChannelsPanel, ForecastPanel
from weft.figures.panels.tables import TablePanel
from weft.figures.panels.tokens import TokensPanel

L, H, T = 2, 3, 7
TOKENS = ("the", "animal", "</script>", "🙂", "שלום", "it", "<b>&amp;")


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def shares(*shape: int, seed: int = 0) -> np.ndarray:
    e = np.exp(2 * numbers(*shape, seed=seed))
    return e / e.sum(-1, keepdims=True)


def layers() -> Axis:
    return Axis("layer", tuple(map(str, range(L))), 1)


def heads() -> Axis:
    return Axis("head", ("mean", *map(str, range(H))), 2)


def attention(tokens: tuple[str, ...] = TOKENS, columns: tuple[str, ...] | None = None) -> AttentionPanel:
    columns = tokens if columns is None else columns
    values = shares(L, H, len(tokens), len(columns))
    maps = collect_maps(L, heads().options, (len(tokens), len(columns)), lambda layer, a, b: values[layer][:, a:b])
    return AttentionPanel("Attention", tokens, columns, layers(), heads(), maps, "a note", min(5, len(tokens) - 1))


def every_panel() -> dict[str, Panel]:
    words = tuple(tuple(f"w{row}{column}" for column in range(T)) for row in range(3))
    steps = tuple(
        AttentionStep(
            name, "e_j = q · k_j", "stack.blocks.0.mixer", numbers(2, 3), ("a", "b"), ("x", "y", "z"), "words"
        )
        for name in ("scores", "weights")
    )
    body = numbers(11, 5, 3)
    return {
        "attention": attention(),
        "cross": attention(TOKENS, ("uno", "due", "tre")),
        "table": TablePanel(
            "Table", ("a", "b", "c"), TOKENS, numbers(3, T), (), words, scale="signed", row_name="after"
        ),
        "alignment": TablePanel(
            "Alignment", TOKENS, ("x", "y", "z"), shares(L, T, 3), (layers(),), cells="colors", gold=np.eye(T, 3)
        ),
        "bars": BarsPanel(
            "Bars", Axis("after", TOKENS, 3), (("a", "b", " c", "\n", "</script>"),) * T, shares(T, 5), ("a",) * T
        ),
        "tokens": TokensPanel("Tokens", TOKENS, shares(L, H + 1, T), (layers(), heads()), tuple("NOVADXY")),
        "pair": QueryKeyPanel(
            "Pair",
            Axis("way", ("a at b", "b at a")),
            layers(),
            Axis("head", ("0", "1", "2")),
            numbers(2, L, H, 13),
            numbers(2, L, H, 13, seed=1),
            numbers(2, L, H),
            shares(2, L, H),
        ),
        "overlay": OverlayPanel(
            "Overlay",
            (numbers(17, 19, 3) * 30 + 120).clip(0, 255).astype(np.uint8),
            shares(L, H + 1, 5, 3),
            (layers(), heads()),
        ),
        "tiles": TilesPanel("Tiles", shares(11, 5, 5, 3), tuple(map(str, range(11))), 4),
        "similarity": TilesPanel("Similarity", numbers(6, 2, 3), tuple(map(str, range(6))), 3),
        "forecast": ForecastPanel(
            "Forecast",
            ("u", "v"),
            numbers(35, 2),
            numbers(11, 2),
            numbers(11, 2) - 1,
            numbers(11, 2) + 1,
            shares(2, L, H + 1, 5),
            (layers(), heads()),
            7,
        ),
        "channels": ChannelsPanel(
            "Channels", numbers(23, 3), ("x", "y", "z"), shares(L, H + 1, 23), (layers(), heads())
        ),
        "many": ChannelsPanel(
            "Many", numbers(23, 13), tuple(map(str, range(13))), shares(L, H + 1, 12), (layers(), heads())
        ),
        "motion": MotionPanel(
            "Motion", body, ((0, 1), (1, 2), (2, 3), (3, 4)), shares(L, H + 1, 11), (layers(), heads())
        ),
        "steps": AttentionStepsPanel("Steps", steps),
        "records": RecordsPanel(
            "Records",
            ("", "planned", "happened"),
            (("steps", "7", "5"), ("</script>", "<b>&amp;", "שלום")),
            (1,),
            "note",
        ),
        "plot": PlotPanel("Plot", np.arange(5.0), numbers(2, 5), ("one", "other"), "layer", "norm"),
    }
