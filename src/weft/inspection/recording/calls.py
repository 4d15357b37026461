"""Calls: the attentions of one forward, or of a whole generation, whose steps are joined into one map.

A generation is many steps: the prompt, then one token each. Rows of the batch may be repeated, dropped or reordered
between them (beam search, texts that end); each text is followed back through all steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from weft.foundation.errors import WeftError
from weft.inspection.recording.attention_records import (
    KINDS,
    AttentionRecord,
    Kind,
    PartAttentionRecord,
    PendingAttentionRecord,
    Rows,
)
from weft.parts.stack import Stack
from weft.parts.token_positions import TokenPositions

TextSide = Literal["source", "target"]
What = Literal["weights", "scores"]


@dataclass(eq=False)
class StackInput:
    """What a stack was given with a state: vectors [B, T, D], their positions, the memory; `begun`: not the first call.

    With it the attention of a step that was computed as a whole can be found by running the stack's parts.
    """

    stack: Stack
    x: Tensor
    token_positions: TokenPositions
    memory: tuple[Tensor, TokenPositions] | None = None
    begun: bool = False


@dataclass(eq=False)
class RecordedStep:
    """One pass through a stack: the number of rows, which row of the step before each continues, and the inputs.

    `parents`: row -> row of the step before (None: the same). `taken_back`: number of last tokens that did not stay.
    """

    rows: int
    side: TextSide
    parents: list[int] | None = None
    inputs: dict[str, Tensor] = field(default_factory=dict)
    real: Tensor | None = None
    stack_input: StackInput | None = None
    length: int = 0
    taken_back: int = 0


@dataclass(eq=False)
class LayerRecord:
    """All records of one layer in one call, each with the number of its step."""

    kind: Kind
    layer: int
    path: str
    records: list[tuple[int, AttentionRecord]] = field(default_factory=list)


@dataclass(eq=False)
class _Piece:
    """The rows of one text in one record, and the row of the whole map at which they begin."""

    record: AttentionRecord
    b: int
    rows: Tensor
    first: int
    taken_back: int = 0

    @property
    def end(self) -> int:
        return self.first + len(self.rows)


class RecordedCall:
    """A forward or a whole generation: what each layer's attention was given."""

    def __init__(self) -> None:
        self.steps: list[RecordedStep] = []
        self.layer_records: dict[tuple[Kind, int], LayerRecord] = {}
        self.met: set[object] = set()
        self._again: dict[int, tuple[int, RecordedCall]] = {}

    def begin(self, step: RecordedStep) -> int:
        """Add a step and return its number."""
        self.steps.append(step)
        return len(self.steps) - 1

    def add(self, kind: Kind, layer: int, path: str, step: int, record: AttentionRecord) -> None:
        self.layer_records.setdefault((kind, layer), LayerRecord(kind, layer, path)).records.append((step, record))

    def forget(self, count: int) -> None:
        """The last `count` tokens were taken back."""
        for step in reversed(self.steps):
            if step.side == "target" and count:
                some = min(count, step.length - step.taken_back)
                step.taken_back += some
                count -= some

    def fork(self, steps: int) -> RecordedCall:
        """Another call that shares the first steps."""
        other = RecordedCall()
        other.steps, other.met = self.steps[:steps], set(self.met)
        for key, own in self.layer_records.items():
            records = [(step, record) for step, record in own.records if step < steps]
            other.layer_records[key] = LayerRecord(own.kind, own.layer, own.path, records)
        return other

    @property
    def kinds(self) -> list[Kind]:
        present = {kind for kind, _ in self.layer_records}
        return [kind for kind in KINDS if kind in present]

    def layers(self, kind: Kind | None = None) -> list[int]:
        """The layers that have attention of a kind."""
        kind = self.choose(kind)
        return sorted(layer for own, layer in self.layer_records if own == kind)

    def choose(self, kind: Kind | None = None) -> Kind:
        """The kind asked for, or the first one recorded."""
        if not self.kinds:
            raise WeftError("none of the layers kept has attention: watch other layers, or all of them")
        if kind is None:
            return self.kinds[0]
        if kind not in self.kinds:
            raise WeftError(f"there is no {kind!r} attention here: choose one of {', '.join(self.kinds)}")
        return kind

    def layer_record(self, layer: int, kind: Kind | None = None) -> LayerRecord:
        """One layer's records; -1 is the last layer."""
        kind = self.choose(kind)
        layers = self.layers(kind)
        found = layers[layer] if -len(layers) <= layer < 0 else layer
        if found not in layers:
            raise WeftError(f"there is no layer {layer} of {kind} attention: choose {named_layers(layers)}")
        return self.layer_records[kind, found]

    def texts(self) -> list[list[int]]:
        """For each text, its row in every step until it ended, in the order in which texts began."""
        ended: list[list[int]] = []
        alive: list[list[int]] = [[row] for row in range(self.steps[0].rows)] if self.steps else []
        for step in self.steps[1:]:
            if step.parents is None and step.rows == len(alive):
                for row, path in enumerate(alive):
                    path.append(row)
                continue
            share = max(1, step.rows)
            parents = step.parents or [row * len(alive) // share for row in range(step.rows)]
            going_on = set(parents)
            ended += [path for row, path in enumerate(alive) if row not in going_on]
            alive = [[*alive[parent], row] for row, parent in enumerate(parents)]
        return sorted(ended + alive)

    def text(self, batch: int) -> list[int]:
        """The row of one text in every step."""
        texts = self.texts()
        if not -len(texts) <= batch < len(texts):
            raise WeftError(f"there is no text {batch} in this call of {len(texts)}: choose 0 to {len(texts) - 1}")
        return texts[batch]

    def sizes(self, layer: int = -1, kind: Kind | None = None, batch: int = 0) -> tuple[int, int, int, int]:
        """(B, H, T, S) of one layer; T and S are those of one text."""
        pieces = self._pieces(self.layer_record(layer, kind), batch)
        return len(self.texts()), pieces[0].record.sizes[1], pieces[-1].end, _width(pieces)

    def maps(self, layer: int, kind: Kind | None, head: int | None, rows: Rows, batch: int, what: What) -> Tensor:
        """Weights or scores, (T, S) for one head and (H, T, S) for all, of the rows asked for."""
        pieces = self._pieces(self.layer_record(layer, kind), batch)
        first = pieces[0].record
        heads = _heads(head, first.sizes[1]).to(first.device)
        asked = pick(rows, pieces[-1].end).to(first.device)
        S, tokens = _width(pieces), _positions(pieces)
        found, order = [], []
        for piece in pieces:
            inside = ((asked >= piece.first) & (asked < piece.end)).nonzero().flatten()
            if len(inside) or piece is pieces[0]:
                own = piece.rows[asked[inside] - piece.first]
                compute = piece.record.weights if what == "weights" else piece.record.scores
                empty = 0.0 if what == "weights" else float("-inf")
                order.append(inside)
                found.append(_placed(compute(piece.b, heads, own), piece, tokens, S, empty))
        whole = found[0] if len(found) == 1 else torch.cat(found, 1)[:, torch.cat(order).argsort()]
        whole = whole[:, 0] if isinstance(rows, int) else whole
        return whole[0] if head is not None else whole

    def vectors(self, layer: int, kind: Kind | None, batch: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (H, T, K), keys (H, S, K), values (H, S, V) of one text."""
        pieces = self._pieces(self.layer_record(layer, kind), batch)
        S, tokens = _width(pieces), _positions(pieces)
        found = [(piece, piece.record.vectors(piece.b)) for piece in pieces]
        queries = torch.cat([query[:, piece.rows] for piece, (query, _, _) in found], 1)
        _, keys, values = found[-1][1]
        if tokens is None:
            return ordinary(queries), ordinary(keys[:, :S]), ordinary(values[:, :S])
        placed = [keys.new_zeros(keys.shape[0], S, x.shape[2]) for x in (keys, values)]
        for piece, (_, keys, values) in found:
            index = _index_of(piece, tokens)
            for whole, part in zip(placed, (keys, values), strict=True):
                whole[:, index[index >= 0]] = part[:, index >= 0]
        return queries, placed[0], placed[1]

    def value_bias(self, layer: int, kind: Kind | None, head: int, row: int, batch: int) -> Tensor | None:
        """What a position adds to one row of Y in one head, (V); None where it acts on scores alone."""
        pieces = self._pieces(self.layer_record(layer, kind), batch)
        piece = next(piece for piece in pieces if piece.first <= row < piece.end)
        own = piece.rows[row - piece.first : row - piece.first + 1]
        added = piece.record.value_bias(piece.b, torch.tensor([head], device=own.device), own)
        return None if added is None else ordinary(added[0, 0])

    def record(self, layer: int, kind: Kind | None = None, batch: int = 0) -> AttentionRecord:
        """The first record of one text, which says how queries are compared with keys."""
        return self._pieces(self.layer_record(layer, kind), batch)[0].record

    def inputs(self, batch: int = 0, of: TextSide = "target") -> dict[str, Tensor]:
        """What went into each embedding for one text, by its path: tokens [T], an image, numbers [T, C]."""
        path = self.text(batch)
        found: dict[str, list[Tensor]] = {}
        for step, b in zip(self.steps, path, strict=False):
            for name, given in step.inputs.items() if step.side == of else ():
                row = given[b if given.shape[0] > 1 else 0]
                if step.real is not None and given.dim() == 2 and step.real.shape[1] >= row.shape[0]:
                    marks = step.real[b if step.real.shape[0] > 1 else 0][-row.shape[0] :]
                    row = row[marks]
                stays = row[: row.shape[0] - step.taken_back] if step.taken_back and row.dim() == 1 else row
                found.setdefault(name, []).append(stays)
        return {name: ordinary(rows[0] if len(rows) == 1 else torch.cat(rows)) for name, rows in found.items()}

    def _run_again(self, batch: int, path: list[int]) -> RecordedCall:
        """One text run again by the stack's parts; computed at the first use and kept until the text grows."""
        length, found = self._again.get(batch, (0, None))
        if found is None or length != len(self.steps):
            steps = zip(self.steps, path, strict=False)
            given = [(step.stack_input, b, step.taken_back) for step, b in steps if step.stack_input is not None]
            self._again[batch] = (len(self.steps), found := run_again(given))
        return found

    def _pieces(self, own: LayerRecord, batch: int) -> list[_Piece]:
        path = self.text(batch)
        if any(isinstance(record, PendingAttentionRecord) for step, record in own.records if step < len(path)):
            record = self._run_again(batch, path).layer_records[own.kind, own.layer].records[0][1]
            return [_Piece(record, 0, torch.arange(record.sizes[2], device=record.device), 0)]
        pieces: list[_Piece] = []
        first = 0
        for step, record in own.records:
            if step < len(path):
                rows = record.real_rows(path[step])
                rows = rows[: len(rows) - self.steps[step].taken_back]
                pieces.append(_Piece(record, path[step], rows, first, self.steps[step].taken_back))
                first += len(rows)
        return pieces


def ordinary(x: Tensor) -> Tensor:
    """A copy of a tensor made in inference mode, which autograd may use; other tensors as they are."""
    return x.clone() if x.is_inference() else x


@torch.no_grad()
def run_again(given: list[tuple[StackInput, int, int]]) -> RecordedCall:
    """One text once more, by the parts: what its stack was given in each step, its row, the number of tokens undone."""
    from weft.inspection.recording.recorder import Recorder

    stack = given[0][0].stack
    if given[0][0].begun:
        raise WeftError("this text was begun before it was watched: watch from its first token on")
    vectors, positions = [], []
    for one, b, taken_back in given:
        place = one.token_positions.positions[b if one.token_positions.positions.shape[0] > 1 else 0]
        real = (place >= 0).nonzero().flatten()
        real = real[: len(real) - taken_back]
        vectors.append(one.x[b, real])
        positions.append(place[real])
    x, where = torch.cat(vectors)[None], torch.cat(positions)
    in_order = bool((where[1:] - where[:-1] == 1).all())
    token_positions = TokenPositions.run(int(where[0]), len(where), x.device) if in_order else TokenPositions.of(where)
    last, b, _ = given[-1]
    row = torch.tensor([b], device=x.device)
    memory = None if last.memory is None else (last.memory[0][row], last.memory[1].reorder(row))
    recorder = Recorder(stack, None, 1)
    with recorder.recording_alone():
        stack.forward(x, token_positions, memory=memory)
    return recorder.calls[0]


def pick(rows: Rows, T: int) -> Tensor:
    """The numbers of the rows asked for: an index, a slice, several indices, or all."""
    if rows is None:
        return torch.arange(T)
    if isinstance(rows, slice):
        return torch.arange(T)[rows]
    asked = torch.as_tensor([rows] if isinstance(rows, int) else rows, dtype=torch.long).cpu()
    wrong = asked[(asked < -T) | (asked >= T)]
    if len(wrong):
        raise WeftError(f"there is no row {int(wrong[0])} in a map of {T} rows: choose 0 to {T - 1}")
    return asked % T if T else asked


def _heads(head: int | None, H: int) -> Tensor:
    if head is None:
        return torch.arange(H)
    if not -H <= head < H:
        raise WeftError(f"there is no head {head} in a layer of {H}: choose 0 to {H - 1}")
    return torch.tensor([head % H])


def _placed(found: Tensor, piece: _Piece, tokens: Tensor | None, S: int, empty: float) -> Tensor:
    """Rows of one record with all S columns of the whole map, each key in the column of its token."""
    if tokens is None and found.shape[-1] >= S:
        return found[..., :S]
    whole = found.new_full((*found.shape[:2], S), empty)
    if tokens is None:
        whole[..., : found.shape[-1]] = found
        return whole
    index = _index_of(piece, tokens)
    columns = index[index >= 0].expand(*found.shape[:2], -1)
    return whole.scatter_reduce(2, columns, found[..., index >= 0], "amax")


def _width(pieces: list[_Piece]) -> int:
    """S: all keys; in a generation with ragged rows or a ring buffer, one per token."""
    last = pieces[-1]
    cache_write = last.record.context.cache_write if isinstance(last.record, PartAttentionRecord) else None
    if cache_write is None:
        return max(piece.record.sizes[3] for piece in pieces)
    return last.end if cache_write.slots is not None else last.record.sizes[3] - last.taken_back


def _positions(pieces: list[_Piece]) -> Tensor | None:
    """The position of each row, where keys are found by it (a ring buffer); None where keys are in order."""
    if pieces[-1].record.columns(pieces[-1].b) is None:
        return None
    records = [(piece, piece.record) for piece in pieces]
    return torch.cat(
        [record.positions(piece.b)[piece.rows] for piece, record in records if isinstance(record, PartAttentionRecord)]
    )


def _index_of(piece: _Piece, tokens: Tensor) -> Tensor:
    """For each key of a ring buffer, the number of the last token at its position; -1 where there was none."""
    positions = piece.record.columns(piece.b)
    assert positions is not None
    known = tokens[: piece.end]
    index = known.new_full((max(int(positions.max()), int(known.max()), 0) + 1,), -1)
    index[known] = torch.arange(len(known), device=known.device)
    return torch.where(positions >= 0, index[positions.clamp(min=0)], -1)


def named_layers(layers: list[int]) -> str:
    """Numbers of layers in words: `0 to 5`, or `0, 2, 3`."""
    if layers == list(range(layers[0], layers[-1] + 1)) and len(layers) > 1:
        return f"{layers[0]} to {layers[-1]}"
    return ", ".join(map(str, layers))
