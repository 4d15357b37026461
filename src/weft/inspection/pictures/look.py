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
from weft.inspection.pictures.observations import Observation, observe
from weft.inspection.pictures.panels import LookOptions, Panels, attention_panel, pair_panel
from weft.inspection.pictures.task_pictures import TASKS, next_panel

Draw = Callable[[Observation, LookOptions], Panels]


@dataclass(frozen=True)
class PictureKind:
    """A kind of picture: what it shows, whether there is such a thing in a observation, and how it is drawn."""

    words: str
    fits: Callable[[Observation], bool]
    draw: Draw


def _one(draw: Callable[[Observation, LookOptions], Panel]) -> Draw:
    return lambda observation, options: Panels([draw(observation, options)], [])


def _attention(observation: Observation, options: LookOptions) -> Panels:
    """Every kind of attention that there is."""
    panels: list[Panel] = []
    left_out: list[str] = []
    for kind in observation.kinds:
        given = (
            options
            if options.layer is None or options.layer in (-1, *observation.layers(kind))
            else LookOptions(head=options.head)
        )
        panel, words = attention_panel(observation, kind, given, room=len(observation.kinds))
        panels.append(panel)
        left_out += words
    return Panels(panels, left_out)


def _has_self(observation: Observation) -> bool:
    return "self" in observation.kinds


def _has_layers(observation: Observation) -> bool:
    return bool({"self", "encoder"} & set(observation.kinds))


def _is_text(observation: Observation) -> bool:
    return observation.task == "text"


PICTURE_KINDS: dict[str, PictureKind] = {
    "attention": PictureKind(
        "who looks at whom, by layer and head", lambda observation: bool(observation.kinds), _attention
    ),
    "alignment": PictureKind("source x target", kinds.has_alignment, _one(kinds.alignment_panel)),
    "pair": PictureKind("q.k of two words", _has_self, _one(pair_panel)),
    "rollout": PictureKind("heads averaged, layers multiplied", _has_layers, kinds.rollout_picture),
    "flow": PictureKind("the most that can flow through all layers", _has_layers, kinds.flow_picture),
    "statistics": PictureKind(
        "entropy, distance, largest weight of heads", lambda s: bool(s.kinds), kinds.statistics_picture
    ),
    "effects": PictureKind("which head does it: each switched off", model.has_effects, _one(model.effects_panel)),
    "lens": PictureKind("the answer after each block", inside.has_lens, _one(inside.lens_panel)),
    "residuals": PictureKind("norms of the residual stream", inside.has_stream, inside.residuals_picture),
    "routing": PictureKind("which experts each token goes to", inside.has_experts, _one(inside.routing_panel)),
    "next": PictureKind(
        "what is expected next, step by step", _is_text, _one(lambda observation, _: next_panel(observation))
    ),
    "loss": PictureKind("loss by position", _is_text, _one(inside.loss_panel)),
    "reach": PictureKind("gradient that reaches each token", model.has_reach, model.reach_picture),
    "filters": PictureKind("principal components of the patch filters", model.has_filters, _one(model.filters_panel)),
    "positions": PictureKind("how alike positions are", model.has_positions, _one(model.positions_panel)),
    "explain": PictureKind("one attention output in all its numbers", lambda s: bool(s.kinds), _one(explain_panel)),
}


def kinds_of(observation: Observation) -> dict[str, PictureKind]:
    """The kinds of pictures that there are of a observation; the task's own first."""
    found = {name: view for name, view in PICTURE_KINDS.items() if view.fits(observation)}
    if observation.task in TASKS:
        name, draw = TASKS[observation.task]
        own = {name: PictureKind("the picture that shows this task best", lambda _: True, draw)}
        found = own | {other: view for other, view in found.items() if other != name}
    return found


def picture_of(
    observation: Observation, kind: str | None = None, options: LookOptions | None = None, explain: bool = False
) -> Picture:
    """The picture of a observation: the task's own, or another kind.

    A pair that is asked for is always shown, if need be below; `explain` unfolds one attention output besides.
    """
    options = options or LookOptions()
    kinds = kinds_of(observation)
    if kind is None and observation.task in TASKS and TASKS[observation.task][0] in kinds:
        kind = TASKS[observation.task][0]
    kind = kind or "attention"
    if kind not in kinds:
        known = ", ".join(kinds)
        raise WeftError(f"this run has no picture of kind {kind!r}: choose --kind among {known}")
    found = kinds[kind].draw(observation, options)
    panels = list(found.panels)
    if options.pair is not None and not any(isinstance(panel, Pair) for panel in panels):
        if "pair" not in kinds:
            raise WeftError("this run has no self-attention in which two words meet: leave the pair out")
        panels.append(pair_panel(observation, options))
    if explain and kind != "explain":
        panels.append(explain_panel(observation, options))
    title = observation.name + (f" → {observation.said}" if observation.said else "")
    return Picture(title, tuple(panels), _words(observation), (*observation.left_out, *found.left_out))


def look(
    run: Any, given: Any, kind: str | None = None, options: LookOptions | None = None, explain: bool = False
) -> Picture:
    """Show an input (a text, a path, `sample:NAME/N`) to a run, and give the picture of what it did."""
    return picture_of(observe(run, given), kind, options, explain)


def _words(observation: Observation) -> str:
    folder = getattr(observation.run, "folder", None)
    family = getattr(getattr(observation.seen.module, "spec", None), "family", type(observation.seen.module).__name__)
    parts = [
        f"run {folder}" if folder is not None else "",
        f"task {observation.task}" if observation.task else "",
        f"model {family}",
    ]
    return ", ".join(filter(None, parts))
