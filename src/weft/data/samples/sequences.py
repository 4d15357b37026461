"""Sequences: skeletons in motion, and short melodies as sound."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft.data.readers.sounds import write_sound
from weft.data.samples.sample_definition import ReferenceScore, Sample, numpy_generator, validation_size
from weft.foundation.arrays import Array

MOTIONS = ("walking", "running", "jumping", "waving")
JOINTS = (
    *("pelvis", "chest", "neck", "head", "left shoulder", "left elbow", "left wrist"),
    *("right shoulder", "right elbow", "right wrist", "left hip", "left knee", "left ankle", "left toe"),
    *("right hip", "right knee", "right ankle", "right toe"),
)
# Pairs of joints to draw a line between.
BONES = (
    *((0, 1), (1, 2), (2, 3), (2, 4), (4, 5), (5, 6), (2, 7), (7, 8), (8, 9)),
    *((0, 10), (10, 11), (11, 12), (12, 13), (0, 14), (14, 15), (15, 16), (16, 17)),
)
FRAMES_PER_SECOND = 20

SAMPLE_RATE = 8000
CONTOURS: dict[str, tuple[int, ...]] = {
    "rising": (0, 1, 2, 3),
    "falling": (3, 2, 1, 0),
    "arch": (0, 2, 3, 1),
    "valley": (3, 1, 0, 2),
}
CHORDS = {"major": (0, 4, 7), "minor": (0, 3, 7)}


@dataclass(frozen=True)
class SampleSequences:
    """Sequences of vectors, each [T, features] with its own T, and the class number of each.

    Where they are not `ordered`, steps are not moments in time, and nothing lies between two of them.
    """

    values: tuple[NDArray[np.float32], ...]
    labels: NDArray[np.int64]
    ordered: bool = True


def skeletons(seed: int, size: int) -> Sample[SampleSequences]:
    """Skeletons of 18 joints (meters, x y z in turn: [T, 54]) that walk, run, jump or wave, seen from any side."""
    why = "by construction: legs in turn (walk), wide with bent arms (run), together (jump), still under an arm (wave)"
    return _split("skeletons", seed, size, MOTIONS, why)


def tones(seed: int, size: int) -> Sample[SampleSequences]:
    """Melodies of four notes that rise, fall, arch or dip, and major and minor chords: waveforms at 8000 Hz [T, 1]."""
    why = "by construction: the notes' order or interval tells the class, and the noise is far below the notes"
    return _split("tones", seed, size, (*CONTOURS, *CHORDS), why)


def _split(name: str, seed: int, size: int, classes: tuple[str, ...], why: str) -> Sample[SampleSequences]:
    random = numpy_generator(seed, name)
    total = size + validation_size(size, len(classes))
    labels = np.concatenate([random.permutation(len(classes)) for _ in range(-(-total // len(classes)))])[:total]
    draw = _skeleton if name == "skeletons" else _tone
    values = tuple(draw(classes[label], random).astype(np.float32) for label in labels)
    train, validation = SampleSequences(values[:size], labels[:size]), SampleSequences(values[size:], labels[size:])
    return Sample(name, "sequences", train, validation, ReferenceScore("accuracy", 1.0, why), classes=classes)


@dataclass(frozen=True)
class _Pose:
    """Angles over time (radians; positive is forward), left and right; lift of the pelvis; forward speed."""

    thigh: tuple[Array, Array]
    knee: tuple[Array, Array]
    arm: tuple[Array, Array]
    elbow: tuple[Array, Array]
    sideways: tuple[Array, Array]
    lift: Array
    lean: float
    speed: float


def _skeleton(motion: str, random: np.random.Generator) -> Array:
    """One motion of one body, seen by one camera: T x 54."""
    frames = int(random.integers(40, 61))
    cycles = {"walking": (0.8, 1.1), "running": (1.3, 1.7), "jumping": (0.6, 0.9), "waving": (1.0, 1.8)}[motion]
    turns = random.uniform(*cycles) * np.arange(frames) / FRAMES_PER_SECOND + random.random()
    pose = _pose(motion, 2 * math.pi * turns, random)
    body = _joints(pose, frames) * random.uniform(0.8, 1.2)
    body[..., 0] += (pose.speed * np.arange(frames) / FRAMES_PER_SECOND)[:, None]
    body -= body.mean((0, 1)) * np.array([1.0, 1.0, 0.0])  # the camera follows the middle of the scene
    yaw, pitch = random.uniform(0, 2 * math.pi), random.uniform(-0.2, 0.2)
    around = np.array([[math.cos(yaw), -math.sin(yaw), 0], [math.sin(yaw), math.cos(yaw), 0], [0, 0, 1]])
    nod = np.array([[1, 0, 0], [0, math.cos(pitch), -math.sin(pitch)], [0, math.sin(pitch), math.cos(pitch)]])
    seen = body @ (nod @ around).T + random.normal(0, 0.008, body.shape)
    return np.asarray(seen.reshape(frames, -1))


def _pose(motion: str, phase: Array, random: np.random.Generator) -> _Pose:
    still = np.zeros_like(phase)
    opposite = phase + math.pi
    if motion == "jumping":
        crouch = np.maximum(np.sin(phase), 0) ** 2 * random.uniform(0.8, 1.1)
        flight = np.maximum(-np.sin(phase), 0)
        swing = 2.2 * flight - 0.8 * crouch
        return _Pose(
            *((crouch, crouch), (2 * crouch, 2 * crouch), (swing, swing), (still + 0.3, still + 0.3)),
            *((still, still), random.uniform(0.25, 0.45) * flight, 0.1, 0.0),
        )
    if motion == "waving":
        raised = random.uniform(2.2, 2.6)
        beat = 0.5 + random.uniform(0.45, 0.65) * np.sin(phase * 2)
        sides: tuple[Array, Array] = (still + raised, still + 0.08)
        elbows: tuple[Array, Array] = (beat, still + 0.1)
        if random.random() < 0.5:
            sides, elbows = sides[::-1], elbows[::-1]
        return _Pose((still, still), (still, still), (still, still), elbows, sides, still, 0.0, 0.0)
    fast = motion == "running"
    stride = random.uniform(0.6, 0.75) if fast else random.uniform(0.35, 0.5)
    bend, bent_arm = (1.5, random.uniform(1.3, 1.7)) if fast else (0.7, random.uniform(0.15, 0.35))
    lift = (0.2 if fast else 0.02) * np.abs(np.sin(phase))
    return _Pose(
        (stride * np.sin(phase), stride * np.sin(opposite)),
        (bend * np.maximum(np.cos(phase), 0.05), bend * np.maximum(np.cos(opposite), 0.05)),
        (0.9 * stride * np.sin(opposite), 0.9 * stride * np.sin(phase)),
        (still + bent_arm, still + bent_arm),
        *((still + 0.08, still + 0.08), lift, 0.2 if fast else 0.03),
        random.uniform(2.2, 3.2) if fast else random.uniform(0.9, 1.4),
    )


def _joints(pose: _Pose, frames: int) -> Array:
    """Places of the 18 joints (T x 18 x 3): x forward, y left, z up; a body of 1.75 m with feet near z = 0."""
    place = np.zeros((frames, len(JOINTS), 3))
    up = np.array([math.sin(pose.lean), 0.0, math.cos(pose.lean)])
    for joint, height in zip((1, 2, 3), (0.3, 0.5, 0.72), strict=True):
        place[:, joint] = height * up
    for side, (shoulder, hip, left) in enumerate(((4, 10, 1.0), (7, 14, -1.0))):
        place[:, shoulder] = 0.46 * up + np.array([0, 0.19 * left, 0])
        upper = _limb(pose.arm[side], pose.sideways[side] * left)
        # A raised arm bends its elbow sideways (a wave), a hanging one forward.
        waving = pose.sideways[side] > 1
        forward = _limb(pose.arm[side] + pose.elbow[side], pose.sideways[side] * left)
        outward = _limb(pose.arm[side], (pose.sideways[side] + pose.elbow[side]) * left)
        place[:, shoulder + 1] = place[:, shoulder] + 0.29 * upper
        place[:, shoulder + 2] = place[:, shoulder + 1] + 0.27 * np.where(waving[:, None], outward, forward)
        place[:, hip] = np.array([0, 0.1 * left, 0])
        shin = pose.thigh[side] - pose.knee[side]
        level = np.zeros(frames)
        place[:, hip + 1] = place[:, hip] + 0.44 * _limb(pose.thigh[side], level)
        place[:, hip + 2] = place[:, hip + 1] + 0.43 * _limb(shin, level)
        place[:, hip + 3] = place[:, hip + 2] + 0.17 * _limb(shin + math.pi / 2, level)
    lowest = place[:, [12, 16], 2].min(1)  # the lower foot stands on the ground, or hangs by the lift above it
    place[..., 2] += (pose.lift - lowest)[:, None]
    return place


def _limb(forward: Array, sideways: Array) -> Array:
    """Direction of a limb that hangs down at (0, 0)."""
    down = -np.cos(forward) * np.cos(sideways)
    return np.stack([np.sin(forward) * np.cos(sideways), np.sin(sideways), down], -1)


def _tone(kind: str, random: np.random.Generator) -> Array:
    """One melody or chord of one instrument: T x 1, within -1 and 1."""
    root = random.uniform(196, 392)
    brightness = random.uniform(0.1, 0.5)
    if kind in CHORDS:
        notes = [_note(root * 2 ** (step / 12), random.uniform(0.5, 0.9), brightness) for step in CHORDS[kind]]
        length = min(len(note) for note in notes)
        sound = np.sum([note[:length] for note in notes], axis=0)
    else:
        steps = np.cumsum([0, *random.integers(2, 5, 3)])
        beat = random.uniform(0.12, 0.22)
        sound = np.concatenate([_note(root * 2 ** (steps[k] / 12), beat, brightness) for k in CONTOURS[kind]])
    sound = sound / np.abs(sound).max() * random.uniform(0.4, 0.9)
    return np.asarray(np.clip(sound + random.normal(0, 0.01, sound.shape), -1, 1)[:, None])


def _note(frequency: float, seconds: float, brightness: float) -> Array:
    time = np.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    wave_form = sum(brightness**k * np.sin(2 * math.pi * (k + 1) * frequency * time) for k in range(4))
    ramp = np.minimum(1, np.minimum(time, time[::-1]) / 0.01)  # ten milliseconds, so that no note clicks
    return np.asarray(wave_form * ramp * np.exp(-1.5 * time))


def write_wavs(part: SampleSequences, classes: tuple[str, ...], folder: str | Path) -> list[Path]:
    """Write waveforms as folder/class/0000.wav (16 bit, 8000 Hz), as the task reads them; returns the paths."""
    paths = []
    for number, (values, label) in enumerate(zip(part.values, part.labels, strict=True)):
        path = Path(folder) / classes[int(label)] / f"{number:04d}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_sound(path, values[:, 0], SAMPLE_RATE)
        paths.append(path)
    return paths
