"""The picture of task sequences: the sequence, in motion where it is a skeleton, with attention in time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from weft.data.readers.sequences import read_channel_names, read_sequences
from weft.data.readers.sounds import log_mel
from weft.data.samples import BONES, JOINTS, SAMPLE_RATE
from weft.figures.panels.motion import MotionPanel, Up, guess_bones
from weft.figures.panels.panel import Panel
from weft.figures.panels.series import ChannelsPanel
from weft.inspection.pictures.inputs import LookInput, SampleExample
from weft.inspection.pictures.look_options import LookOptions
from weft.inspection.pictures.observation import Observation, watched
from weft.inspection.pictures.panels import Array, Panels, by_whom, head_axis, layer_axis, received, shares_panel
from weft.inspection.pictures.task_picture import TaskPicture


@dataclass(frozen=True)
class SequenceObservation(Observation):
    """Vectors in time [T, C] with the names of their channels; where they are joints x, y, z in turn, `bones` and which
    coordinate points up."""

    values: Array = field(default_factory=lambda: np.zeros((1, 1), np.float32))
    bones: tuple[tuple[int, int], ...] = ()
    joints: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    up: Up | None = None


def observe_sequence(run: Any, given: LookInput, how: dict[str, Any]) -> Observation:
    """A sequence as its file has it; steps that the model averages share a label."""
    seen, answer = watched(run, given, how)
    preparation = run.task.preparation
    values = read_sequences([given.value], labeled=False).values[0]
    stride = preparation.stride
    steps = -(-len(values) // stride)
    observation = SequenceObservation(
        seen,
        run.task.picture,
        given.name,
        tuple(str(step * stride) for step in range(steps)),
        said=str(answer.output),
        shares=answer.more["probabilities"],
        truth=given.truth,
        values=values,
        channels=_channels(given.value, values.shape[1]),
    )
    if preparation.vertical is None:
        return observation
    points = values.reshape(len(values), -1, 3)
    known = points.shape[1] == len(JOINTS)
    bones = BONES if known else guess_bones(points)
    return replace(observation, bones=tuple(bones), joints=JOINTS if known else (), up=preparation.vertical)


def _channels(path: str, count: int) -> tuple[str, ...]:
    """Names of channels: those of the file, where it names them all, else numbers."""
    names = read_channel_names(path)
    return names if len(names) == count else tuple(f"channel {number}" for number in range(count))


def sequence_picture(observation: Observation, options: LookOptions) -> Panels:
    """The sequence, in motion where it is a skeleton, with attention in time, and what the model says."""
    assert isinstance(observation, SequenceObservation)
    layers, layer = layer_axis(observation, "self", options)
    heads = head_axis(observation, "self", options)
    weights = received(observation, "self", layers, heads)
    extra = weights.shape[-1] - len(observation.tokens)
    attention, choices = weights[..., max(0, extra) :], (layer, heads)
    title = f"The sequence, and how much each step is looked at, by {by_whom(observation).replace('tokens', 'steps')}"
    if observation.up is not None:
        joints = observation.values.reshape(len(observation.values), -1, 3)
        drawn: Panel = MotionPanel(
            title, joints, observation.bones, attention, choices, observation.up, observation.joints
        )
    else:
        drawn = ChannelsPanel(title, observation.values, observation.channels, attention, choices)
    return Panels([drawn, shares_panel(observation)], [])


def sequence_example(run: Any, chosen: SampleExample) -> LookInput:
    """A sequence in a file, and its class; tones go the way of .wav files."""
    held = chosen.sample.validation
    chosen.expect(chosen.number < len(held.values))
    values = held.values[chosen.number]
    values = log_mel(values[:, 0], SAMPLE_RATE) if chosen.sample.name == "tones" else values
    path = chosen.folder / f"{chosen.number}.npz"
    np.savez(path, x=values[None], lengths=np.array([len(values)]))
    return LookInput(str(path), chosen.title, chosen.sample.classes[int(held.labels[chosen.number])])


PICTURE = TaskPicture("time", observe_sequence, sequence_picture, sequence_example)
