"""Kinds of pictures of the model itself, for `--kind`: patch filters, positions, gradients, effects of heads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.figures.panels.overlays import TilesPanel, stretch_colors
from weft.figures.panels.panel import Panel
from weft.figures.panels.plots import PlotPanel
from weft.figures.panels.tables import TablePanel
from weft.foundation.errors import WeftError
from weft.inspection.analysis.filters import patch_filters, position_similarity
from weft.inspection.analysis.reach import gradient_reach
from weft.inspection.interventions.effects import Effects, head_effects, logit_difference
from weft.inspection.pictures.kinds.stream import has_stream, show_again, spelled
from weft.inspection.pictures.look_options import LookOptions
from weft.inspection.pictures.observation import Observation
from weft.inspection.pictures.panels import Panels, find_token, odd_tag, to_array
from weft.inspection.recording.attention_records import Kind
from weft.parts.embeddings import PatchEmbedding

SHOWN = 128  # positions whose similarity is drawn
LONGEST = 256  # tokens; each output's gradient is a pass of its own


def has_filters(observation: Observation) -> bool:
    """Whether the model cuts images into patches."""
    return any(isinstance(part, PatchEmbedding) for part in observation.seen.module.modules())


def has_positions(observation: Observation) -> bool:
    """Whether there are position vectors to compare."""
    try:
        position_similarity(observation.seen.module, 2)
    except WeftError:
        return False
    return True


def filters_panel(observation: Observation, options: LookOptions) -> TilesPanel:
    """The first 28 principal components of the patch filters."""
    found = patch_filters(observation.seen.module)
    images = to_array(found.images).transpose(0, 2, 3, 1)
    names = tuple(f"{share:.1%}" for share in found.shares.tolist())
    channels = images.shape[-1]
    note = f"Of the variance of all filters they hold {float(found.shares.sum()):.0%}; gray is 0."
    if channels in (1, 3):
        return TilesPanel("Principal components of the patch filters", stretch_colors(images), names, 7, note=note)
    return TilesPanel("Principal components of the patch filters, first channel", images[..., 0], names, 7, note=note)


def positions_panel(observation: Observation, options: LookOptions) -> Panel:
    """How alike positions are: for an image, one picture per patch of all others."""
    found = position_similarity(observation.seen.module)
    if found.grid is not None:
        h, w = found.grid
        cells = [(row, column) for row in range(h) for column in range(w)]
        values = np.stack([to_array(found.of_cell(row, column)) for row, column in cells])
        names = tuple(f"{row},{column}" for row, column in cells)
        title = "Positions: how alike each patch's is to all others"
        return TilesPanel(title, values, names, w, note="Cosine similarity; each small picture is one patch's.")
    cosine = to_array(found.cosine[:SHOWN, :SHOWN])
    places = tuple(map(str, range(len(cosine))))
    note = "Cosine similarity" + (
        f" of the first {SHOWN} of {len(found.cosine):,}." if len(found.cosine) > SHOWN else "."
    )
    title = "Positions: how alike they are"
    return TablePanel(title, places, places, cosine, cells="colors", scale="signed", note=note)


def has_reach(observation: Observation) -> bool:
    """Whether gradients of outputs can be followed to single tokens, of the source too where there is one."""
    tokens = all(given.dim() == 1 for given in observation.inputs("source").values())
    return observation.generates and tokens and observation.task is not None and not observation.task.takes_images


def reach_picture(observation: Observation, options: LookOptions) -> Panels:
    """How much gradient of each output reaches each input token, and how it fades with distance."""
    # What was kept in inference mode cannot be differentiated through; a copy can.
    target = next(x for x in observation.inputs().values() if x.dim() == 1).clone()
    source = next((x.clone() for x in observation.inputs("source").values() if x.dim() == 1), None)
    if max(len(target), 0 if source is None else len(source)) > LONGEST:
        raise WeftError(f"{len(target):,} tokens are too many: each output is a pass back; look at {LONGEST} or fewer")
    found = gradient_reach(observation.run, target, source)
    rows = observation.tokens[: found.matrix.shape[0]]
    columns = observation.tokens if source is None else observation.source
    table = TablePanel(
        "Gradient of each output that reaches each token",
        rows,
        columns[: found.matrix.shape[1]],
        to_array(found.matrix),
        cells="colors",
        row_name="output after",
        column_name="token",
        note="|d log p(y_t) / d x_s|: how much a small change of token s would change output t.",
    )
    panels: list[Panel] = [table]
    values = found.by_distance() if source is None else found.by_place()
    words = "tokens back" if source is None else "source token"
    places = np.arange(len(values), dtype=np.float32)
    panels.append(
        PlotPanel("How far it reaches", places, to_array(values)[None], ("mean gradient",), words, "gradient")
    )
    return Panels(panels, [])


def has_effects(observation: Observation) -> bool:
    """Whether an answer can be measured again with a head switched off."""
    discrete = observation.classifies or observation.continues_input
    return discrete and "self" in observation.kinds and has_stream(observation)


@dataclass(frozen=True)
class HeadEffects:
    """What each head does for the answer at one place: the two likeliest answers, and the effects of all heads."""

    first: str
    second: str
    where: str
    effects: Effects

    def deciding(self) -> tuple[int, int]:
        """The place of the last layer, and the head there without which the answer loses most."""
        return len(self.effects.layers) - 1, int(self.effects.table[-1].argmin())


def measure_heads(observation: Observation, options: LookOptions) -> HeadEffects:
    """Switch off each head in turn; the measure is the lead of the likeliest answer over the next, in logits."""
    kind: Kind = "self"
    logits = show_again(observation).logits
    place, where = -1, ""
    if logits.dim() == 3:
        rows = observation.labels(kind)[0]
        given = find_token(rows, options.row) if options.row is not None else odd_tag(observation)
        place = len(rows) - 1 if given is None else given
        where = f" at {rows[place].strip()!r}"
        # A class token has a row in attention, but no answer.
        place -= len(rows) - logits.shape[1]
    row = logits[0] if logits.dim() == 2 else logits[0, place]
    best = row.topk(2).indices
    first, second = spelled(observation, best[None])[0]
    measure = logit_difference(int(best[0]), int(best[1]), place)
    return HeadEffects(
        first, second, where, head_effects(observation.run, lambda: show_again(observation), measure, kind)
    )


def effects_panel(observation: Observation, options: LookOptions) -> TablePanel:
    """By how much the answer changes when each head is switched off: which head does it."""
    found = measure_heads(observation, options)
    values = to_array(found.effects.table)
    note = (
        f"Logit of {found.first!r} minus logit of {found.second!r}{found.where} is {found.effects.before:.2f}; each "
        "cell is by how much it changes without that head. Orange heads speak for the answer, blue ones against it."
    )
    return TablePanel(
        f"Which head does it: {found.first!r} or {found.second!r}{found.where}",
        tuple(f"layer {layer}" for layer in found.effects.layers),
        tuple(f"head {head}" for head in range(values.shape[1])),
        values,
        scale="signed",
        note=note,
    )
