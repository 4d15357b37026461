"""Scenes: an input shown to a run under watch, with labels for its tokens, and what the model said of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.data.readers.images import read_image
from weft.data.readers.sequences import read_sequences
from weft.data.readers.series import read_series
from weft.data.samples import BONES, JOINTS
from weft.data.tokenizers.lexicon import split_words
from weft.figures.panels.motion import Up, guess_bones
from weft.foundation.errors import WeftError
from weft.inspection.pictures.inputs import SAMPLE, Given, opened, window_of
from weft.inspection.pictures.labels import input_labels
from weft.inspection.recording.attention_records import Kind, Rows
from weft.inspection.recording.calls import TextSide
from weft.inspection.recording.watch import Seen, watch

Array = NDArray[np.float32]
CLASS_TOKEN = "[class]"
SHOWN = 90  # letters of a title


@dataclass(frozen=True)
class Observation:
    """One text (or image, or series) as a model saw it.

    `tokens` label what was read on the side that answers, `source` what the encoder read, `written` what each row
    wrote. `said` is the answer in words, `shares` probabilities by name, `tags` an answer a token with its probability
    ("" for a token that has none: the later pieces of a word).
    """

    seen: Seen
    task: str
    name: str
    tokens: tuple[str, ...]
    source: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    said: str = ""
    shares: Mapping[str, float] = field(default_factory=dict)
    tags: tuple[tuple[str, float], ...] = ()
    truth: Any = None
    left_out: tuple[str, ...] = ()
    call: int = -1
    batch: int = 0

    @property
    def run(self) -> Any:
        """The Run or module that was watched."""
        return self.seen.subject

    def labels(self, kind: Kind) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Labels of rows and columns of the maps of one kind."""
        _, _, T, S = self.sizes(-1, kind)
        if kind == "encoder":
            return fitted(self.source or self.tokens, T), fitted(self.source or self.tokens, S)
        if kind in ("cross", "alignment"):
            return fitted(self.written or self.tokens, T), fitted(self.source, S)
        return fitted(self.tokens, T), fitted(self.tokens, S)

    @property
    def kinds(self) -> list[Kind]:
        """The kinds of attention that there are."""
        return self.seen.call(self.call).kinds

    def layers(self, kind: Kind) -> list[int]:
        """The layers that have attention of a kind."""
        return self.seen.call(self.call).layers(kind)

    def sizes(self, layer: int, kind: Kind) -> tuple[int, int, int, int]:
        """(B, H, T, S)."""
        return self.seen.sizes(layer, kind, self.call, self.batch)

    def attention(self, layer: int, kind: Kind, rows: Rows = None, batch: int | None = None) -> Tensor:
        """Weights of all heads, [H, rows, S]; one row as an index leaves its axis out."""
        return self.seen.attention(layer, None, rows, self.batch if batch is None else batch, kind, self.call)

    def scores(self, layer: int, kind: Kind, rows: Rows = None) -> Tensor:
        """What goes into the softmax, of the same shape."""
        return self.seen.scores(layer, None, rows, self.batch, kind, self.call)

    def vectors(self, layer: int, kind: Kind) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of all heads."""
        return self.seen.vectors(layer, self.batch, kind, self.call)

    def inputs(self, of: TextSide = "target") -> dict[str, Tensor]:
        """What went into the embeddings, by their paths."""
        return self.seen.inputs(self.batch, self.call, of)


@dataclass(frozen=True)
class ImageObservation(Observation):
    """An image [height, width, 3], cut into a grid of patches whose first is key number `first`."""

    pixels: NDArray[np.uint8] = field(default_factory=lambda: np.zeros((1, 1, 3), np.uint8))
    grid: tuple[int, int] = (1, 1)
    first: int = 0


@dataclass(frozen=True)
class SeriesObservation(Observation):
    """A history [T, C] in its own units, what the model says follows, with its band, and how many steps a patch has."""

    columns: tuple[str, ...] = ()
    history: Array = field(default_factory=lambda: np.zeros((1, 1), np.float32))
    ahead: Array = field(default_factory=lambda: np.zeros((1, 1), np.float32))
    low: Array | None = None
    high: Array | None = None
    patch: int = 1


@dataclass(frozen=True)
class SequenceObservation(Observation):
    """Vectors in time [T, C]; where they are joints x, y, z in turn, `bones` and which coordinate points up."""

    values: Array = field(default_factory=lambda: np.zeros((1, 1), np.float32))
    bones: tuple[tuple[int, int], ...] = ()
    joints: tuple[str, ...] = ()
    up: Up | None = None


def fitted(tokens: Sequence[str], count: int) -> tuple[str, ...]:
    """Labels for so many tokens: one more than given begins with the class token; others are numbered."""
    given = tuple(tokens)
    if len(given) == count:
        return given
    if len(given) == count - 1 and given:
        return (CLASS_TOKEN, *given)
    if len(given) > count:
        return given[:count]
    return (*given, *map(str, range(len(given), count)))


def observe(run: Any, given: Any, **how: Any) -> Observation:
    """Show an input to a run and watch: a text, a path, or `sample:NAME/N`; `how` goes to its `answer`."""
    task = run.task.name
    if task not in OBSERVERS:
        raise WeftError(f"nobody has drawn task {task} yet: choose a run of {', '.join(OBSERVERS)}")
    with opened(task, given) as found:
        return OBSERVERS[task](run, found, how)


def _watched(run: Any, given: Given, how: dict[str, Any]) -> tuple[Seen, Any]:
    with watch(run, keep=None) as seen:
        answers = run.answer([given.ask], **how)
    if len(answers) != 1:
        raise WeftError(f"{given.name} holds {len(answers)} inputs: look at one of them at a time")
    return seen, answers[0]


def _text(run: Any, given: Given, how: dict[str, Any]) -> Observation:
    """One forward over the prompt: every token's next one is in it."""
    tokenizer = run.task.tokenizer
    ids = run.task.prompt_ids(str(given.ask))
    most = run.module.spec.length
    left_out: tuple[str, ...] = ()
    if len(ids) > most:
        left_out = (f"The first {len(ids) - most:,} of {len(ids):,} tokens: this model reads {most:,} at once.",)
        ids = ids[-most:]
    device = next(run.module.parameters()).device
    with watch(run) as seen, torch.inference_mode():
        run.module(torch.tensor([ids], device=device))
    pieces = tuple(tokenizer.pieces(ids))
    return Observation(seen, "text", shortened("".join(pieces)), pieces, left_out=left_out)


def _translation(run: Any, given: Given, how: dict[str, Any]) -> Observation:
    """The whole generation, a row a token written."""
    seen, answer = _watched(run, given, how)
    tokenizer = run.task.tokenizer
    written = (*answer.more["tokens"], *tokenizer.target.pieces([run.task.ends.stop]))
    start = tokenizer.target.pieces([run.task.ends.start])
    return Observation(
        seen,
        "translation",
        shortened(given.name),
        (*start, *answer.more["tokens"]),
        source=tuple(answer.more["source_tokens"]),
        written=written,
        said=str(answer.output),
        truth=given.truth,
    )


def _classification(run: Any, given: Given, how: dict[str, Any]) -> Observation:
    seen, answer = _watched(run, given, how)
    more = answer.more
    if "tokens" in more:  # the nodes of a graph, an answer each
        best = [max(row.items(), key=lambda item: item[1]) for row in more["probabilities"]]
        tokens = tuple(more["tokens"])
        return Observation(
            seen, "classification", shortened(given.name), tokens, said="", tags=tuple(best), truth=given.truth
        )
    words, left_out = _read(run, seen, str(given.ask))
    return Observation(
        seen,
        "classification",
        shortened(str(given.ask)),
        words,
        said=str(answer.output),
        shares=more["probabilities"],
        truth=given.truth,
        left_out=left_out,
    )


def _read(run: Any, seen: Seen, text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(what the model read of a text, what of it is left out)."""
    tokenizer, most = run.task.tokenizer, run.module.spec.length
    whole = split_words(text) or [""] if tokenizer is None else tokenizer.encode(text)
    words = whole[:most] if tokenizer is None else input_labels(run, seen.inputs())
    left_out = (f"All but the first {most:,} of {len(whole):,} tokens.",) if len(whole) > len(words) else ()
    return tuple(map(str, words)), left_out


def _embedding(run: Any, given: Given, how: dict[str, Any]) -> Observation:
    """What an encoder reads when it gives a text its vector."""
    seen, _ = _watched(run, given, how)
    words, left_out = _read(run, seen, str(given.ask))
    return Observation(seen, "embedding", shortened(str(given.ask)), words, left_out=left_out)


def _tagging(run: Any, given: Given, how: dict[str, Any]) -> Observation:
    seen, answer = _watched(run, given, how)
    words = tuple(answer.more["tokens"])
    tags = list(zip(answer.output, answer.more["probabilities"], strict=True))
    part = run.task.reading.part([words], [np.arange(len(words))]).cut(run.module.spec.length)
    shown = part.answers(0)  # the words of the first call; a longer sentence takes several
    left_out = (f"All but the first {len(shown):,} of {len(words):,} words.",) if len(words) > len(shown) else ()
    tokens = words[: len(shown)] if run.task.tokenizer is None else tuple(input_labels(run, seen.inputs(call=0)))
    placed = tuple(tags[word] if word >= 0 else ("", 0.0) for word in part.labels[0].tolist())
    title = shortened(" ".join(words))
    return Observation(seen, "tagging", title, tokens, tags=placed, truth=given.truth, left_out=left_out, call=0)


def _images(run: Any, given: Given, how: dict[str, Any]) -> Observation:
    seen, answer = _watched(run, given, how)
    spec, task = run.module.spec, run.task
    pixels = read_image(given.ask, task.fitting or task.side, task.channels)
    pixels = np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels
    cells = tuple(f"{row},{column}" for row in range(spec.side) for column in range(spec.side))
    return ImageObservation(
        seen,
        "images",
        given.name,
        (*class_tokens(spec), *cells),
        said=str(answer.output),
        shares=answer.more["probabilities"],
        truth=given.truth,
        pixels=pixels,
        grid=(spec.side, spec.side),
        first=spec.extra,
    )


def class_tokens(spec: Any) -> tuple[str, ...]:
    """What stands before an image's patches: the class token, and registers."""
    return (CLASS_TOKEN, *(f"[register {number}]" for number in range(spec.extra - 1)))[: spec.extra]


def _captions(run: Any, given: Given, how: dict[str, Any]) -> Observation:
    seen, answer = _watched(run, given, how)
    task, spec = run.task, run.module.spec
    side = round(spec.prefix**0.5)
    words = tuple(answer.more["tokens"])
    cells = () if task.options.blind else tuple(f"{row},{column}" for row in range(side) for column in range(side))
    start, stop = (task.tokenizer.pieces([end])[0] for end in (task.ends.start, task.ends.stop))
    return ImageObservation(
        seen,
        "captions",
        given.name,
        (*cells, start, *words),
        written=(*words, stop),
        said=str(answer.output),
        truth=given.truth,
        pixels=read_image(given.ask, task.side),
        grid=(side, side),
    )


def _forecast(run: Any, given: Given, how: dict[str, Any]) -> Observation:
    """The history that the model read, and its answer, both in the columns' own units."""
    known = run.task.known
    if isinstance(given.ask, str) and given.ask.startswith(SAMPLE):
        given = replace(given, ask=window_of(given.ask, known.seed, known.context, run.task.options.horizon))
    seen, answer = _watched(run, given, how)
    values = read_series([given.ask], known.columns).values if isinstance(given.ask, str) else given.ask
    values = np.asarray(values, dtype=np.float64).reshape(-1, len(known.columns))
    length = min(known.context, len(values) // known.patch * known.patch)

    def table(by_name: Mapping[str, Sequence[float]]) -> Array:
        return np.array([by_name[name] for name in known.columns], dtype=np.float32).T

    patches = length // known.patch
    return SeriesObservation(
        seen,
        "forecast",
        given.name,
        tuple(
            f"{known.patch * (place - patches) + 1} to {known.patch * (place + 1 - patches)}"
            for place in range(patches)
        ),
        columns=tuple(known.columns),
        history=values[-length:].astype(np.float32),
        ahead=table(answer.output),
        low=table(answer.more["low"]) if "low" in answer.more else None,
        high=table(answer.more["high"]) if "high" in answer.more else None,
        patch=known.patch,
        call=0,  # a model that predicts few steps at once runs again for the later ones
    )


def _sequences(run: Any, given: Given, how: dict[str, Any]) -> Observation:
    seen, answer = _watched(run, given, how)
    preparation = run.task.preparation
    values = read_sequences([given.ask], labeled=False).values[0]
    stride = preparation.stride
    steps = -(-len(values) // stride)
    observation = SequenceObservation(
        seen,
        "sequences",
        given.name,
        tuple(str(step * stride) for step in range(steps)),
        said=str(answer.output),
        shares=answer.more["probabilities"],
        truth=given.truth,
        values=values,
    )
    if preparation.vertical is None:
        return observation
    points = values.reshape(len(values), -1, 3)
    known = points.shape[1] == len(JOINTS)
    bones = BONES if known else guess_bones(points)
    return replace(observation, bones=tuple(bones), joints=JOINTS if known else (), up=preparation.vertical)


def shortened(text: str, most: int = SHOWN) -> str:
    """The text in one line, cut after so many letters."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


OBSERVERS: dict[str, Callable[[Any, Given, dict[str, Any]], Observation]] = {
    "text": _text,
    "translation": _translation,
    "classification": _classification,
    "tagging": _tagging,
    "embedding": _embedding,
    "images": _images,
    "captions": _captions,
    "forecast": _forecast,
    "sequences": _sequences,
}
