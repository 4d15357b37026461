"""The picture of task captions: for each word of a caption, where in the image it looked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.data.readers.images import read_image
from weft.figures.panels.overlays import OverlayPanel
from weft.figures.panels.panel import Axis
from weft.foundation.errors import WeftError
from weft.inspection.pictures.inputs import LookInput, SampleExample
from weft.inspection.pictures.look_options import LookOptions
from weft.inspection.pictures.observation import ImageObservation, Observation, watched
from weft.inspection.pictures.panels import Array, Panels, head_axis, layer_axis, to_array
from weft.inspection.pictures.task_picture import TaskPicture
from weft.inspection.pictures.tasks.images import saved_image
from weft.inspection.recording.attention_records import Kind


def observe_caption(run: Any, given: LookInput, how: dict[str, Any]) -> Observation:
    """The image's patches, the question if there is one, then the words as they are written."""
    seen, answer = watched(run, given, how)
    task, spec = run.task, run.module.spec
    asked = task.asked_image(given.value, how.get("question"))
    crosses = spec.family == "encoder-decoder"
    side = spec.source.side if crosses else round(spec.prefix**0.5)
    words = tuple(answer.more["tokens"])
    cells = () if task.options.blind else tuple(f"{row},{column}" for row in range(side) for column in range(side))
    start, stop = (task.tokenizer.pieces([end])[0] for end in (task.ends.start, task.ends.stop))
    return ImageObservation(
        seen,
        run.task.picture,
        f"{given.name}: {asked.question}" if asked.question else given.name,
        (*(() if crosses else cells), *task.question_pieces(asked.question), start, *words),
        source=cells if crosses else (),
        written=(*words, stop),
        said=str(answer.output),
        truth=given.truth,
        pixels=read_image(asked.image, task.side),
        grid=(side, side),
    )


def caption_picture(observation: Observation, options: LookOptions) -> Panels:
    """For each word of a caption, where in the image it looked."""
    assert isinstance(observation, ImageObservation)
    cells = observation.grid[0] * observation.grid[1]
    kind: Kind = "cross" if "cross" in observation.kinds else "self"
    layers, layer = layer_axis(observation, kind, options)
    heads = head_axis(observation, kind, options)
    _, _, T, _ = observation.sizes(-1, kind)
    # The row that writes the first word is that of the start token, after patches and question.
    first = len(observation.tokens) - len(observation.written)
    if kind == "self" and cells >= T:
        raise WeftError("this model was trained blind, without images: there is nowhere to look")
    words = observation.written[: T - first]
    maps = []
    for number in layers:
        each = to_array(observation.attention(number, kind, slice(first, first + len(words))))[..., :cells]
        both = [each.mean(0, keepdims=True), each] if heads.options[0] == "mean" else [each]
        maps.append(np.concatenate(both) if len(heads.options) > 1 else both[0])
    values = np.stack(maps).transpose(2, 0, 1, 3)
    values = values.reshape(*values.shape[:3], *observation.grid)
    # The last token only ends the text.
    named = [any(map(str.isalnum, word)) and place < len(observation.written) - 1 for place, word in enumerate(words)]
    shown = most_structured(values[:, layer.chosen, heads.chosen].reshape(len(words), -1), named)
    title = f"Where it looks for each word of: {observation.said}"
    note = f"What is right: {observation.truth}" if isinstance(observation.truth, str) else ""
    return Panels(
        [OverlayPanel(title, observation.pixels, values, (Axis("word", words, shown), layer, heads), note)], []
    )


def most_structured(maps: Array, named: Sequence[bool]) -> int:
    """The word, among those named, whose map [cells] is most concentrated and most its own.

    sum_c p_c log(p_c / u_c) + p_c log(p_c / m_c), p the word's map as shares of what it looks at in the image, u even
    shares, m the mean of all words' maps: where all look at the same patch, a word that does not tells more.
    """
    shares = (maps + 1e-12) / (maps + 1e-12).sum(1, keepdims=True)
    told = (shares * (np.log(shares * shares.shape[1]) + np.log(shares / shares.mean(0)))).sum(1)
    return int(np.argmax(np.where(named, told, -1.0))) if any(named) else 0


def caption_example(run: Any, chosen: SampleExample) -> LookInput:
    """An image and its caption, or a question about it and the answer."""
    path, held = saved_image(chosen), chosen.sample.validation
    value = {"image": path, "question": held.questions[chosen.number]} if held.questions else path
    return LookInput(value, chosen.title, held.texts[chosen.number])


PICTURE = TaskPicture("words", observe_caption, caption_picture, caption_example)
