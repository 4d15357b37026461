"""Pictures of what goes on inside, for `--kind`: logit lens, residual stream, experts, loss by position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.figures.panels.panel import Axis
from weft.figures.panels.plots import Plot
from weft.figures.panels.tables import Table
from weft.foundation.errors import WeftError
from weft.inference.decoding.conditioning import at_rest
from weft.inspection.analysis.lens import logit_lens, loss_by_position, residual_norms, streams
from weft.inspection.analysis.routing import routed
from weft.inspection.pictures.observations import Scene, fitted
from weft.inspection.pictures.panels import Asked, Panels, to_array
from weft.parts.experts import Experts
from weft.parts.stack import Stack

MOST = 64  # tokens whose table is drawn; of more, the last ones


def has_stream(scene: Scene) -> bool:
    """Whether the model is a stack of blocks, and its input is known well enough to show it again."""
    graph = scene.task == "classification" and bool(scene.tags)
    return any(isinstance(part, Stack) for part in scene.seen.module.modules()) and not graph


def has_lens(scene: Scene) -> bool:
    """Whether the stream can be read as an answer: tokens or classes."""
    return has_stream(scene) and scene.task not in ("forecast", "")


def has_experts(scene: Scene) -> bool:
    """Whether some feed-forward is a mixture of experts."""
    return any(isinstance(part, Experts) for part in scene.seen.module.modules())


def show_again(scene: Scene) -> Any:
    """One forward over the same input, for what is kept only while the model runs; gives the model's output."""
    module = scene.seen.module
    spec: Any = getattr(module, "spec", None)
    target, source = list(scene.inputs().values()), list(scene.inputs("source").values())
    family = getattr(spec, "family", "")
    with at_rest(module), torch.no_grad():
        if family in ("encoder-decoder", "recurrent-seq2seq"):
            return module(source[0][None], target[0][None])
        if family == "image-text":
            image = next((given for given in target if given.is_floating_point()), None)
            tokens = next(given for given in target if not given.is_floating_point())
            return module(tokens[None], images=None if image is None else image[None])
        if family == "series":
            return module(target[0].reshape(1, -1, spec.channels))
        return module(target[0][None])


def answer_names(scene: Scene) -> Sequence[str] | None:
    """Names of the classes that the model answers with; None where it answers with tokens."""
    task = getattr(scene.run, "task", None)
    return getattr(task, "classes", None) or getattr(task, "tags", None)


def spelled(scene: Scene, ids: Tensor) -> list[list[str]]:
    """Numbers of answers [R, C] as words."""
    names = answer_names(scene)
    tokeniser = getattr(getattr(scene.run, "task", None), "tokeniser", None)
    known: dict[int, str] = {}
    for number in set(ids.flatten().tolist()):
        if names is not None:
            known[number] = names[number]
        else:
            known[number] = str(number) if tokeniser is None else tokeniser.target.pieces([number])[0]
    return [[known[number] for number in row] for row in ids.tolist()]


def lens_panel(scene: Scene, asked: Asked) -> Table:
    """After each block, the answer that the model would give if it stopped there."""
    with streams(scene.run) as stream:
        show_again(scene)
        lens = logit_lens(stream, top=1)
    tokens, chances = lens.tokens[:, -MOST:, 0], to_array(lens.probabilities[:, -MOST:, 0])
    places = chances.shape[1]
    columns = ("the answer",) if places == 1 else fitted(scene.tokens, lens.tokens.shape[1])[-MOST:]
    words = tuple(tuple(row) for row in spelled(scene, tokens))
    note = "Darker is surer. The last row is the model's own answer."
    if lens.tokens.shape[1] > MOST:
        note += f" The last {MOST} of {lens.tokens.shape[1]:,} tokens."
    return Table(
        "Logit lens: the answer after each block",
        tuple(lens.names),
        columns,
        chances,
        words=words,
        row_name="after",
        column_name="at",
        note=note,
    )


def residuals_picture(scene: Scene, asked: Asked) -> Panels:
    """The length of each token's vector after each block."""
    with streams(scene.run) as stream:
        show_again(scene)
    norms = to_array(residual_norms(stream))
    labels = fitted(scene.tokens, norms.shape[1])
    some = sorted({0, int(norms[-1].argmax()), len(labels) - 1})
    curves = np.stack([norms.mean(1), *(norms[:, place] for place in some)])
    names = ("mean", *(f"{place} {labels[place].strip()}" for place in some))
    plot = Plot("Norms of the residual stream", np.arange(len(norms), dtype=np.float32), curves, names, "block", "norm")
    shown = norms[:, -MOST:]
    table = Table(
        "Norms of each token",
        tuple(stream.names),
        labels[-MOST:],
        shown,
        cells="numbers" if shown.size <= 200 else "colours",
        row_name="after",
        column_name="token",
    )
    return Panels([plot, table], [])


def routing_panel(scene: Scene, asked: Asked) -> Table:
    """Which experts each token goes to, and with what weight."""
    with routed(scene.run) as found:
        show_again(scene)
    tables, names = [], []
    for layer in found.layers:
        chosen, gates = found.chosen(layer)[0], found.gates(layer)[0].float()
        weights = torch.zeros(chosen.shape[0], found.experts[layer]).scatter_add(1, chosen.cpu(), gates.cpu())
        tables.append(to_array(weights))
        names.append(str(layer))
    if len({table.shape for table in tables}) != 1:
        raise WeftError("the layers have different numbers of experts: look at them one by one in Python")
    values = np.stack(tables)[:, -MOST:]
    rows = fitted(scene.tokens, tables[0].shape[0])[-MOST:]
    columns = tuple(f"expert {number}" for number in range(values.shape[2]))
    balance = float(max(found.shares(layer).max() for layer in found.layers))
    note = f"The busiest expert gets {balance:.0%} of the tokens; alike would be {1 / values.shape[2]:.0%}."
    layers = Axis("layer of experts", tuple(names), min(asked.layer or 0, len(names) - 1))
    return Table("Experts: where each token goes", rows, columns, values, (layers,), row_name="token", note=note)


def loss_panel(scene: Scene, asked: Asked) -> Plot:
    """How surprising each token was, given those before it."""
    ids = next(x for x in scene.inputs().values() if x.dim() == 1 and not x.is_floating_point())
    if len(ids) < 2:
        raise WeftError("one token has nothing before it: give a longer text")
    losses = to_array(loss_by_position(scene.run, ids))
    places = np.arange(1, len(ids), dtype=np.float32)
    mean = np.cumsum(losses) / places
    note = f"{float(losses.mean()):.3f} nats a token on average."
    names = ("each token", "mean so far")
    return Plot("Loss by position", places, np.stack([losses, mean]), names, "position", "nats", note)
