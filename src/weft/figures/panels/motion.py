"""A skeleton in motion, with the attention over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from weft.figures.canvas import COLORS, GRAY
from weft.figures.palette import color_map
from weft.figures.panels.panel import WIDTH, Axis, Panel, Sheet, expect_shape
from weft.figures.panels.series import MOST_STRIPS, draw_strips
from weft.figures.web.array_encoding import encode_array
from weft.foundation.arrays import Array
from weft.foundation.errors import WeftError
from weft.foundation.spec import Tree

Up = Literal["x", "y", "z"]
POSES = 8
TALL = 1.9  # inches per pose


@dataclass(frozen=True)
class MotionPanel(Panel):
    """Joints [T, J, 3], bones as pairs of joints, and the attention over time, [choices ..., T'].

    `up` is the coordinate that points up. T' may be shorter than T (strides).
    """

    title: str
    joints: Array
    bones: tuple[tuple[int, int], ...]
    attention: Array
    choices: tuple[Axis, ...]
    up: Up = "z"
    names: tuple[str, ...] = ()
    note: str = ""

    kind = "motion"

    def __post_init__(self) -> None:
        expect_shape("joints", self.joints, None, None, 3)
        expect_shape("attention in time", self.attention, *(len(axis.options) for axis in self.choices), None)
        most = max((max(bone) for bone in self.bones), default=0)
        if most >= self.joints.shape[1]:
            raise WeftError(f"a bone ends at joint {most}, but there are {self.joints.shape[1]} joints")

    def axes(self) -> tuple[Axis, ...]:
        return self.choices

    def payload(self) -> Tree:
        """Joints with z up, bones and attention."""
        return {
            "joints": encode_array(self.upright()),
            "bones": [list(bone) for bone in self.bones],
            "attention": encode_array(self.attention),
            "names": list(self.names),
        }

    def upright(self) -> Array:
        """Joints with z up."""
        order = {"x": (1, 2, 0), "y": (2, 0, 1), "z": (0, 1, 2)}[self.up]
        return np.asarray(self.joints[..., order])

    def height(self) -> float:
        return TALL + 0.45 + 0.2 * min(MOST_STRIPS, int(np.prod(self.attention.shape[:-1])))

    def draw(self, sheet: Sheet) -> None:
        """Poses evenly spread over time, darker where attention is larger."""
        joints = self.upright()
        weights = self.attention[tuple(axis.chosen for axis in self.choices)]
        steps = np.unique(np.linspace(0, len(joints) - 1, POSES).round().astype(int))
        flat = project_sideways(joints)
        low, high = flat.min((0, 1)), flat.max((0, 1))
        room = (high - low).max() * 0.05
        top = float(weights.max()) or 1.0
        across = (WIDTH - 1.7) / len(steps)
        for place, step in enumerate(steps):
            axes = sheet.axes(1.6 + place * across, 0.05, across, TALL)
            share = float(weights[min(len(weights) - 1, int(step * len(weights) / len(joints)))]) / top
            color = color_map("share")(0.35 + 0.65 * share)
            for one, other in self.bones:
                ends = flat[step, [one, other]]
                axes.plot(ends[:, 0], ends[:, 1], color=color, linewidth=1 + 1.6 * share, solid_capstyle="round")
            axes.scatter(flat[step, :, 0], flat[step, :, 1], s=5, color=color, zorder=3)
            axes.set_xlim(low[0] - room, high[0] + room)
            axes.set_ylim(low[1] - room, high[1] + room)
            axes.set_aspect("equal")
            axes.set_axis_off()
            axes.text(0.5, -0.02, f"step {step}", transform=axes.transAxes, ha="center", va="top", fontsize=8)
        sheet.text(0, 0.3, "darker: looked\nat more", fontsize=8, color=COLORS[0])
        sheet.text(0, TALL + 0.1, "in time", fontsize=8, color=GRAY)
        draw_strips(sheet, TALL + 0.35, self.attention, self.choices)


def project_sideways(joints: Array) -> Array:
    """[T, J, 3] -> [T, J, 2]: the side view in which the body is widest, z up; the view follows the body."""
    level = joints[..., :2] - joints[..., :2].mean(1, keepdims=True)
    spread = np.linalg.svd(level.reshape(-1, 2), full_matrices=False)[2][0]
    return np.stack([level @ spread, joints[..., 2]], -1)


def guess_bones(joints: Array) -> tuple[tuple[int, int], ...]:
    """Bones of an unknown skeleton: the spanning tree of joints whose distances are short and vary least."""
    J = joints.shape[1]
    apart = np.linalg.norm(joints[:, :, None] - joints[:, None], axis=-1)
    cost = apart.mean(0) + 3 * apart.std(0)
    joined, found = [0], []
    while len(joined) < J:
        left = [joint for joint in range(J) if joint not in joined]
        table = cost[np.ix_(joined, left)]
        one, other = np.unravel_index(int(table.argmin()), table.shape)
        found.append((joined[int(one)], left[int(other)]))
        joined.append(left[int(other)])
    return tuple(found)
