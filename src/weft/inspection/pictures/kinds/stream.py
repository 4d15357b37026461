"""Kinds of pictures of what happens inside, for `--kind`: logit lens, residual stream, experts, next tokens, loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.figures.panels.bars import BarsPanel
from weft.figures.panels.panel import Axis
from weft.figures.panels.plots import PlotPanel
from weft.figures.panels.tables import TablePanel
from weft.foundation.errors import WeftError
from weft.inference.decoding.conditioning import eval_mode
from weft.inspection.analysis.lens import logit_lens, loss_by_position, residual_norms, streams
from weft.inspection.analysis.routing import routed
from weft.inspection.pictures.look_options import LookOptions
from weft.inspection.pictures.observation import Observation, fitted
from weft.inspection.pictures.panels import Panels, to_array
from weft.parts.experts import Experts
from weft.parts.stack import Stack

TOKENS_DRAWN = 64  # tokens whose table is drawn; of more, the last ones
TOP = 8  # next tokens that are shown
BLOCK = 256  # positions whose next tokens are computed at once


def has_stream(observation: Observation) -> bool:
    """Whether the model is a stack of blocks that can run on the same input again."""
    return observation.repeatable and any(isinstance(part, Stack) for part in observation.seen.module.modules())


def has_lens(observation: Observation) -> bool:
    """Whether the stream can be read as an answer: tokens or classes."""
    return has_stream(observation) and (observation.classifies or observation.generates)


def has_experts(observation: Observation) -> bool:
    """Whether some feed-forward is a mixture of experts."""
    return any(isinstance(part, Experts) for part in observation.seen.module.modules())


def show_again(observation: Observation) -> Any:
    """One forward over the same input, for what is kept only while the model runs; gives the model's output."""
    module = observation.seen.module
    spec: Any = getattr(module, "spec", None)
    target, source = list(observation.inputs().values()), list(observation.inputs("source").values())
    family = getattr(spec, "family", "")
    with eval_mode(module), torch.no_grad():
        if family in ("encoder-decoder", "recurrent-seq2seq"):
            return module(_whole_source(spec, source[0])[None], target[0][None])
        if family == "image-text":
            image = next((given for given in target if given.is_floating_point()), None)
            tokens = next(given for given in target if not given.is_floating_point())
            return module(tokens[None], images=None if image is None else image[None])
        if family == "series":
            return module(target[0].reshape(1, -1, spec.channels))
        return module(target[0][None])


def _whole_source(spec: Any, source: Tensor) -> Tensor:
    """A source as the model takes it: a series step by step, not patch by patch."""
    kind = getattr(getattr(spec, "source", None), "kind", "tokens")
    return source.reshape(-1, spec.source.channels) if kind == "series" else source


def spelled(observation: Observation, ids: Tensor) -> list[list[str]]:
    """Numbers of answers [R, C] as words."""
    task = observation.task
    names = None if task is None else task.answers
    tokenizer = None if task is None else task.tokenizer
    known: dict[int, str] = {}
    for number in set(ids.flatten().tolist()):
        if names:
            known[number] = names[number]
        else:
            known[number] = str(number) if tokenizer is None else tokenizer.target.pieces([number])[0]
    return [[known[number] for number in row] for row in ids.tolist()]


def lens_panel(observation: Observation, options: LookOptions) -> TablePanel:
    """After each block, the answer that the model would give if it stopped there."""
    with streams(observation.run) as stream:
        show_again(observation)
        lens = logit_lens(stream, top=1)
    tokens, chances = lens.tokens[:, -TOKENS_DRAWN:, 0], to_array(lens.probabilities[:, -TOKENS_DRAWN:, 0])
    places = chances.shape[1]
    columns = ("the answer",) if places == 1 else fitted(observation.tokens, lens.tokens.shape[1])[-TOKENS_DRAWN:]
    words = tuple(tuple(row) for row in spelled(observation, tokens))
    note = "Darker is surer. The last row is the model's own answer."
    if lens.tokens.shape[1] > TOKENS_DRAWN:
        note += f" The last {TOKENS_DRAWN} of {lens.tokens.shape[1]:,} tokens."
    return TablePanel(
        "Logit lens: the answer after each block",
        tuple(lens.names),
        columns,
        chances,
        words=words,
        row_name="after",
        column_name="at",
        note=note,
    )


def residuals_picture(observation: Observation, options: LookOptions) -> Panels:
    """The length of each token's vector after each block."""
    with streams(observation.run) as stream:
        show_again(observation)
    norms = to_array(residual_norms(stream))
    labels = fitted(observation.tokens, norms.shape[1])
    some = sorted({0, int(norms[-1].argmax()), len(labels) - 1})
    curves = np.stack([norms.mean(1), *(norms[:, place] for place in some)])
    names = ("mean", *(f"{place} {labels[place].strip()}" for place in some))
    plot = PlotPanel(
        "Norms of the residual stream", np.arange(len(norms), dtype=np.float32), curves, names, "block", "norm"
    )
    shown = norms[:, -TOKENS_DRAWN:]
    table = TablePanel(
        "Norms of each token",
        tuple(stream.names),
        labels[-TOKENS_DRAWN:],
        shown,
        cells="numbers" if shown.size <= 200 else "colors",
        row_name="after",
        column_name="token",
    )
    return Panels([plot, table], [])


def routing_panel(observation: Observation, options: LookOptions) -> TablePanel:
    """Which experts each token goes to, and with what weight."""
    with routed(observation.run) as found:
        show_again(observation)
    tables, names = [], []
    for layer in found.layers:
        chosen, gates = found.chosen(layer)[0], found.gates(layer)[0].float()
        weights = torch.zeros(chosen.shape[0], found.experts[layer]).scatter_add(1, chosen.cpu(), gates.cpu())
        tables.append(to_array(weights))
        names.append(str(layer))
    if len({table.shape for table in tables}) != 1:
        raise WeftError("the layers have different numbers of experts: look at them one by one in Python")
    values = np.stack(tables)[:, -TOKENS_DRAWN:]
    rows = fitted(observation.tokens, tables[0].shape[0])[-TOKENS_DRAWN:]
    columns = tuple(f"expert {number}" for number in range(values.shape[2]))
    balance = float(max(found.shares(layer).max() for layer in found.layers))
    note = f"The busiest expert gets {balance:.0%} of the tokens; alike would be {1 / values.shape[2]:.0%}."
    layers = Axis("layer of experts", tuple(names), min(options.layer or 0, len(names) - 1))
    return TablePanel("Experts: where each token goes", rows, columns, values, (layers,), row_name="token", note=note)


def next_panel(observation: Observation, options: LookOptions) -> BarsPanel:
    """The likeliest next tokens after each token, with the one that truly came."""
    module, task = observation.model, observation.task
    tokenizer = None if task is None else task.tokenizer
    ids = next((x for x in observation.inputs().values() if x.dim() == 1 and not x.is_floating_point()), None)
    if ids is None or not observation.continues_input:
        raise WeftError("next tokens are a language model's: choose another --kind")
    with torch.inference_mode():
        output = module(ids[None])
        found = [output.head(part).float().softmax(-1).topk(TOP) for part in output.hidden[0].split(BLOCK)]
    values = to_array(torch.cat([part.values for part in found]))
    best = torch.cat([part.indices for part in found])
    names: dict[int, str] = {}
    for token in {*best.flatten().tolist(), *ids.tolist()}:
        names[token] = str(token) if tokenizer is None else tokenizer.pieces([token])[0]
    labels = tuple(tuple(names[token] for token in row) for row in best.tolist())
    steps = Axis(
        "after", tuple(f"{n} {token}" for n, token in enumerate(observation.tokens)), len(observation.tokens) - 1
    )
    came = (*(names[token] for token in ids.tolist()[1:]), None)
    return BarsPanel("What the model expects next", steps, labels, values, came)


def loss_panel(observation: Observation, options: LookOptions) -> PlotPanel:
    """How surprising each token was, given those before it."""
    ids = next(x for x in observation.inputs().values() if x.dim() == 1 and not x.is_floating_point())
    if len(ids) < 2:
        raise WeftError("one token has nothing before it: give a longer text")
    losses = to_array(loss_by_position(observation.run, ids))
    places = np.arange(1, len(ids), dtype=np.float32)
    mean = np.cumsum(losses) / places
    note = f"{float(losses.mean()):.3f} nats per token on average."
    names = ("each token", "mean so far")
    return PlotPanel("Loss by position", places, np.stack([losses, mean]), names, "position", "nats", note)
