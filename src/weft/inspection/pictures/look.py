"""Looking: an input shown to a run, and the picture of what it did; `weft look` and `seen.show()` draw by it."""

from __future__ import annotations

from typing import Any

from weft.checkpoints.sample_runs import address_of
from weft.figures.panels.pairs import QueryKeyPanel
from weft.figures.picture import Picture
from weft.foundation.errors import WeftError
from weft.inspection.analysis.scale import Progress
from weft.inspection.pictures.inputs import open_input
from weft.inspection.pictures.kinds.explain import explain_panel
from weft.inspection.pictures.kinds.registry import PICTURE_KINDS, SPEC_PICTURE_KINDS, PictureKind
from weft.inspection.pictures.look_options import LookOptions
from weft.inspection.pictures.observation import Observation
from weft.inspection.pictures.panels import pair_panel
from weft.inspection.pictures.task_picture import GENERIC, PICTURES


def observe(run: Any, given: Any, **how: Any) -> Observation:
    """Show an input to a run and watch: a text, a path, or `sample:NAME/N`; `how` goes to its `answer`."""
    picture = PICTURES[run.task.picture or GENERIC]
    with open_input(run, given, picture.example) as found:
        return picture.observe(run, found, how)


def kinds_of(observation: Observation) -> dict[str, PictureKind]:
    """The kinds of pictures that there are of an observation; the task's own first."""
    found = {name: kind for name, kind in PICTURE_KINDS.items() if kind.fits(observation)}
    if observation.picture is None:
        return found
    own = PICTURES[observation.picture]
    first = {own.kind: PictureKind("the picture that shows this task best", lambda _: True, own.draw)}
    return first | {name: kind for name, kind in found.items() if name != own.kind}


def picture_of(observation: Observation, options: LookOptions = LookOptions()) -> Picture:
    """The picture of an observation: the task's own, or another kind.

    A pair that is asked for is always shown, if need be below; `explain` unfolds one attention output besides.
    """
    kinds = kinds_of(observation)
    own = "attention" if observation.picture is None else PICTURES[observation.picture].kind
    kind = options.kind or own
    if kind in SPEC_PICTURE_KINDS:
        raise WeftError(f"--kind {kind} shows a model before training: weft look RUN|PRESET --kind {kind}, no input")
    if kind not in kinds:
        known = ", ".join(kinds)
        raise WeftError(f"this run has no picture of kind {kind!r}: choose --kind among {known}")
    found = kinds[kind].draw(observation, options)
    panels = list(found.panels)
    if options.pair is not None and not any(isinstance(panel, QueryKeyPanel) for panel in panels):
        if "pair" not in kinds:
            raise WeftError("this run has no self-attention in which two words meet: leave the pair out")
        panels.append(pair_panel(observation, options))
    if options.explain and kind != "explain":
        panels.append(explain_panel(observation, options))
    title = observation.name + (f" → {observation.said}" if observation.said else "")
    return Picture(title, tuple(panels), _words(observation), (*observation.left_out, *found.left_out))


def look(run: Any, given: Any, options: LookOptions = LookOptions()) -> Picture:
    """Show an input (a text, a path, `sample:NAME/N`) to a run, and give the picture of what it did."""
    return picture_of(observe(run, given), options)


def look_at_spec(spec: Any, name: str, options: LookOptions, progress: Progress | None = None) -> Picture:
    """The picture of a model's spec, before any training; `progress(share, status)` is told of long work."""
    if options.kind not in SPEC_PICTURE_KINDS:
        known = ", ".join(SPEC_PICTURE_KINDS)
        raise WeftError(
            f"{name} is not a run, so there is nothing to look into: train it first, or choose --kind {known}"
        )
    return SPEC_PICTURE_KINDS[options.kind].draw(spec, name, options, progress)


def _words(observation: Observation) -> str:
    folder = getattr(observation.run, "folder", None)
    family = getattr(getattr(observation.seen.module, "spec", None), "family", type(observation.seen.module).__name__)
    parts = [
        "" if folder is None else f"run {address_of(folder)}",
        "" if observation.task is None else f"task {observation.task.name}",
        f"model {family}",
    ]
    return ", ".join(filter(None, parts))
