"""Kinds of pictures by their names for `--kind`: what each shows, whether an observation has it, how it is drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from weft.figures.panels.panel import Panel
from weft.figures.picture import Picture
from weft.inspection.analysis.scale import Progress
from weft.inspection.pictures.kinds import attention as attention_kinds
from weft.inspection.pictures.kinds import model as model_kinds
from weft.inspection.pictures.kinds import stream as stream_kinds
from weft.inspection.pictures.kinds.explain import explain_panel
from weft.inspection.pictures.kinds.scale import scale_picture
from weft.inspection.pictures.look_options import LookOptions
from weft.inspection.pictures.observation import Observation
from weft.inspection.pictures.panels import Panels, attention_panel, pair_panel

Draw = Callable[[Observation, LookOptions], Panels]


@dataclass(frozen=True)
class PictureKind:
    """A kind of picture: what it shows, whether there is such a thing in an observation, and how it is drawn."""

    words: str
    fits: Callable[[Observation], bool]
    draw: Draw


@dataclass(frozen=True)
class SpecPictureKind:
    """A kind of picture of a model's spec alone: no run and no input are needed."""

    words: str
    draw: Callable[[Any, str, LookOptions, Progress | None], Picture]


def _one(draw: Callable[[Observation, LookOptions], Panel]) -> Draw:
    return lambda observation, options: Panels([draw(observation, options)], [])


def all_attention(observation: Observation, options: LookOptions) -> Panels:
    """Every kind of attention that there is; a layer that one of them lacks is not asked of it."""
    panels: list[Panel] = []
    left_out: list[str] = []
    for kind in observation.kinds:
        given = options
        if options.layer is not None and options.layer not in (-1, *observation.layers(kind)):
            given = replace(options, layer=None, row=None)
        panel, words = attention_panel(observation, kind, given, room=len(observation.kinds))
        panels.append(panel)
        left_out += words
    return Panels(panels, left_out)


def _has_attention(observation: Observation) -> bool:
    return bool(observation.kinds)


def _has_self(observation: Observation) -> bool:
    return "self" in observation.kinds


def _has_layers(observation: Observation) -> bool:
    return bool({"self", "encoder"} & set(observation.kinds))


def _continues_input(observation: Observation) -> bool:
    return observation.continues_input


PICTURE_KINDS: dict[str, PictureKind] = {
    "attention": PictureKind("who looks at whom, by layer and head", _has_attention, all_attention),
    "alignment": PictureKind("source x target", attention_kinds.has_alignment, _one(attention_kinds.alignment_panel)),
    "pair": PictureKind("q.k of two words", _has_self, _one(pair_panel)),
    "rollout": PictureKind("heads averaged, layers multiplied", _has_layers, attention_kinds.rollout_picture),
    "flow": PictureKind("the most that can flow through all layers", _has_layers, attention_kinds.flow_picture),
    "statistics": PictureKind(
        "entropy, distance, largest weight of heads", _has_attention, attention_kinds.statistics_picture
    ),
    "effects": PictureKind(
        "which head does it: each switched off", model_kinds.has_effects, _one(model_kinds.effects_panel)
    ),
    "lens": PictureKind("the answer after each block", stream_kinds.has_lens, _one(stream_kinds.lens_panel)),
    "residuals": PictureKind("norms of the residual stream", stream_kinds.has_stream, stream_kinds.residuals_picture),
    "routing": PictureKind(
        "which experts each token goes to", stream_kinds.has_experts, _one(stream_kinds.routing_panel)
    ),
    "next": PictureKind("what is expected next, step by step", _continues_input, _one(stream_kinds.next_panel)),
    "loss": PictureKind("loss by position", _continues_input, _one(stream_kinds.loss_panel)),
    "reach": PictureKind("gradient that reaches each token", model_kinds.has_reach, model_kinds.reach_picture),
    "filters": PictureKind(
        "principal components of the patch filters", model_kinds.has_filters, _one(model_kinds.filters_panel)
    ),
    "positions": PictureKind("how alike positions are", model_kinds.has_positions, _one(model_kinds.positions_panel)),
    "explain": PictureKind("one attention output in all its numbers", _has_attention, _one(explain_panel)),
}
SPEC_PICTURE_KINDS: dict[str, SpecPictureKind] = {
    "scale": SpecPictureKind("what 1/sqrt(D_K) does to attention and to training", scale_picture),
}
