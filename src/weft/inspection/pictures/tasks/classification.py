"""The picture of task classification: tokens by how much is looked at them, the classes, two words' query and key."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.data.readers.graphs import LabeledGraph
from weft.inspection.pictures.inputs import LookInput, SampleExample
from weft.inspection.pictures.look_options import LookOptions
from weft.inspection.pictures.observation import Observation, shortened, watched
from weft.inspection.pictures.panels import Panels, pair_panel
from weft.inspection.pictures.task_picture import TaskPicture
from weft.inspection.pictures.token_panels import read_tokens, token_panels


def observe_classification(run: Any, given: LookInput, how: dict[str, Any]) -> Observation:
    """A text with one answer, or the nodes of a graph with one each."""
    seen, answer = watched(run, given, how)
    more, picture = answer.more, run.task.picture
    if "tokens" in more:
        best = tuple(max(row.items(), key=lambda item: item[1]) for row in more["probabilities"])
        nodes, name = tuple(more["tokens"]), shortened(given.name)
        # The edges are no input of an embedding, so they are not recorded.
        return Observation(seen, picture, name, nodes, tags=best, truth=given.truth, repeatable=False)
    words, left_out = read_tokens(run, seen, str(given.value))
    return Observation(
        seen,
        picture,
        shortened(str(given.value)),
        words,
        said=str(answer.output),
        shares=more["probabilities"],
        truth=given.truth,
        left_out=left_out,
    )


def classification_picture(observation: Observation, options: LookOptions) -> Panels:
    """Tokens colored by attention, what the model says, who looks at whom, and two words' queries and keys."""
    found = token_panels(observation, options)
    return Panels([*found.panels, pair_panel(observation, options)], found.left_out)


def classification_example(run: Any, chosen: SampleExample) -> LookInput:
    """A labeled text or a graph."""
    row = chosen.row()
    if isinstance(row, LabeledGraph):
        edges = [[int(i), int(j)] for i, j in np.argwhere(np.triu(row.adjacency))]
        return LookInput({"nodes": list(row.nodes), "edges": edges}, chosen.title, row.labels)
    text, label = row
    return LookInput(text, text, label)


PICTURE = TaskPicture("tokens", observe_classification, classification_picture, classification_example, from_seen=True)
