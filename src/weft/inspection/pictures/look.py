"""Looking: an input shown to a run, and the picture of what it did; `weft look` and `seen.show()` draw by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from weft.figures.panels.pairs import Pair
from weft.figures.panels.panel import Panel
from weft.figures.picture import Picture
from weft.foundation.errors import WeftError
from weft.inspection.pictures import flows as kinds
from weft.inspection.pictures import inner as inside
from weft.inspection.pictures import model
from weft.inspection.pictures.explained import explain_panel
from weft.inspection.pictures.observations import Scene, scene_of
from weft.inspection.pictures.panels import Asked, Panels, attention_panel, pair_panel
from weft.inspection.pictures.task_pictures import TASKS, next_panel

Draw = Callable[[Scene, Asked], Panels]


@dataclass(frozen=True)
class View:
    """A kind of picture: what it shows, whether there is such a thing in a scene, and how it is drawn."""

    words: str
    fits: Callable[[Scene], bool]
    draw: Draw


def _one(draw: Callable[[Scene, Asked], Panel]) -> Draw:
    return lambda scene, asked: Panels([draw(scene, asked)], [])


def _attention(scene: Scene, asked: Asked) -> Panels:
    """Every kind of attention that there is."""
    panels: list[Panel] = []
    left_out: list[str] = []
    for kind in scene.kinds:
        given = asked if asked.layer is None or asked.layer in (-1, *scene.layers(kind)) else Asked(head=asked.head)
        panel, words = attention_panel(scene, kind, given, room=len(scene.kinds))
        panels.append(panel)
        left_out += words
    return Panels(panels, left_out)


def _has_self(scene: Scene) -> bool:
    return "self" in scene.kinds


def _has_layers(scene: Scene) -> bool:
    return bool({"self", "encoder"} & set(scene.kinds))


def _is_text(scene: Scene) -> bool:
    return scene.task == "text"


VIEWS: dict[str, View] = {
    "attention": View("who looks at whom, by layer and head", lambda scene: bool(scene.kinds), _attention),
    "alignment": View("source x target", kinds.has_alignment, _one(kinds.alignment_panel)),
    "pair": View("q.k of two words", _has_self, _one(pair_panel)),
    "rollout": View("heads averaged, layers multiplied", _has_layers, kinds.rollout_picture),
    "flow": View("the most that can flow through all layers", _has_layers, kinds.flow_picture),
    "statistics": View("entropy, distance, largest weight of heads", lambda s: bool(s.kinds), kinds.statistics_picture),
    "effects": View("which head does it: each switched off", model.has_effects, _one(model.effects_panel)),
    "lens": View("the answer after each block", inside.has_lens, _one(inside.lens_panel)),
    "residuals": View("norms of the residual stream", inside.has_stream, inside.residuals_picture),
    "routing": View("which experts each token goes to", inside.has_experts, _one(inside.routing_panel)),
    "next": View("what is expected next, step by step", _is_text, _one(lambda scene, _: next_panel(scene))),
    "loss": View("loss by position", _is_text, _one(inside.loss_panel)),
    "reach": View("gradient that reaches each token", model.has_reach, model.reach_picture),
    "filters": View("principal components of the patch filters", model.has_filters, _one(model.filters_panel)),
    "positions": View("how alike positions are", model.has_positions, _one(model.positions_panel)),
    "explain": View("one attention output in all its numbers", lambda s: bool(s.kinds), _one(explain_panel)),
}


def views_of(scene: Scene) -> dict[str, View]:
    """The kinds of pictures that there are of a scene; the task's own first."""
    found = {name: view for name, view in VIEWS.items() if view.fits(scene)}
    if scene.task in TASKS:
        name, draw = TASKS[scene.task]
        own = {name: View("the picture that shows this task best", lambda _: True, draw)}
        found = own | {other: view for other, view in found.items() if other != name}
    return found


def picture_of(scene: Scene, kind: str | None = None, asked: Asked | None = None, explain: bool = False) -> Picture:
    """The picture of a scene: the task's own, or another kind.

    A pair that is asked for is always shown, if need be below; `explain` unfolds one attention output besides.
    """
    asked = asked or Asked()
    views = views_of(scene)
    if kind is None and scene.task in TASKS and TASKS[scene.task][0] in views:
        kind = TASKS[scene.task][0]
    kind = kind or "attention"
    if kind not in views:
        known = ", ".join(views)
        raise WeftError(f"this run has no picture of kind {kind!r}: choose --kind among {known}")
    found = views[kind].draw(scene, asked)
    panels = list(found.panels)
    if asked.pair is not None and not any(isinstance(panel, Pair) for panel in panels):
        if "pair" not in views:
            raise WeftError("this run has no self-attention in which two words meet: leave the pair out")
        panels.append(pair_panel(scene, asked))
    if explain and kind != "explain":
        panels.append(explain_panel(scene, asked))
    title = scene.name + (f" → {scene.said}" if scene.said else "")
    return Picture(title, tuple(panels), _words(scene), (*scene.left_out, *found.left_out))


def look(run: Any, given: Any, kind: str | None = None, asked: Asked | None = None, explain: bool = False) -> Picture:
    """Show an input (a text, a path, `sample:NAME/N`) to a run, and give the picture of what it did."""
    return picture_of(scene_of(run, given), kind, asked, explain)


def _words(scene: Scene) -> str:
    folder = getattr(scene.run, "folder", None)
    family = getattr(getattr(scene.seen.module, "spec", None), "family", type(scene.seen.module).__name__)
    parts = [
        f"run {folder}" if folder is not None else "",
        f"task {scene.task}" if scene.task else "",
        f"model {family}",
    ]
    return ", ".join(filter(None, parts))
