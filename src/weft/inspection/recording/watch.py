"""Watching: what attention looked at in any forward or generation, without changing a bit of it.

The fastest kernel computes the output as ever; the recorder keeps references to the same queries, keys and values, and
maps are computed for the layers, heads and rows asked for: O(rows x S) memory, nothing T x S before it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor

from weft.figures.web.page import Page, svg_matrix
from weft.foundation.errors import WeftError
from weft.inspection.recording.attention_names import Declared, is_own
from weft.inspection.recording.attention_records import Kind, Rows
from weft.inspection.recording.calling import module_of
from weft.inspection.recording.calls import RecordedCall, TextSide, named_layers
from weft.inspection.recording.recorder import Recorder

if TYPE_CHECKING:
    from weft.inspection.analysis.statistics import Statistics

MAP_SIDE_DRAWN = 48  # rows and columns up to which a notebook draws a map at once
CALLS_KEPT = 16  # number of calls that are kept by default; a whole generation counts as one


@contextmanager
def watch(
    subject: Any, *, layers: Sequence[int] | None = None, keep: int | None = CALLS_KEPT, attention: Declared = ()
) -> Iterator[Seen]:
    """Record what attention does inside: `with weft.watch(run) as seen: run.predict("The animal was too tired")`.

    `layers`: keep only these (default: all); `keep`: number of last calls that are kept (None: all). The tokens of one
    generation are one call. Everything is as it was on leaving, also after an error; watching may be nested.

    `attention`: classes or names of your own parts that compute softmax(Q K^T) V by hand, where their names do not say
    attention: `weft.watch(model, attention=Head)`. Each softmax over keys in such a part, of scores [B, H, T, S],
    [B, T, S] or [T, S], is its map.

    Weft's own parts are watched in every thread, compiled ones uncompiled; for modules of other libraries torch
    functions and methods are patched meanwhile, which acts only in the thread that watches.
    """
    seen = Seen(subject, layers, keep, attention)
    with seen.recorder.recording():
        yield seen


class Seen:
    """What was seen. Rows are queries (T), columns are keys (S); `call=-1` is the last call, `batch` one text of it.

    Kinds: "self" (of a decoder, where there are two stacks), "encoder" (self-attention of the encoder of an
    encoder-decoder), "cross", "alignment" (recurrent attention). Without a kind: self, or the first one recorded.
    """

    def __init__(
        self, subject: Any, layers: Sequence[int] | None = None, keep: int | None = CALLS_KEPT, attention: Declared = ()
    ) -> None:
        self.subject, self.module = subject, module_of(subject)
        self.recorder = Recorder(self.module, layers, keep, attention)

    def __repr__(self) -> str:
        return f"<Seen of {type(self.module).__name__}: {'; '.join(self._facts().values())}>"

    def _repr_html_(self) -> str:
        """In a notebook: what was seen, and the last layer's mean map of the last call where it is small."""
        page = Page(f"Seen of {type(self.module).__name__}")
        page.table(("", ""), list(self._facts().items()))
        if self.calls and self.call().kinds:
            _, _, T, S = self.sizes()
            if 0 < T <= MAP_SIDE_DRAWN and 0 < S <= MAP_SIDE_DRAWN:
                mean = self.attention().mean(0).tolist()
                page.figure(svg_matrix(mean), f"{self.part()}, mean of its heads: query (down), key (across).")
        return page.fragment()

    def _facts(self) -> dict[str, str]:
        """What was seen in words; nothing is computed for it."""
        if not self.calls:
            if self.recorder.runs or self.recorder.without_attention:
                return {"calls": f"nothing recorded: {self._unwatched()}"}
            return {"calls": "nothing yet: run the model inside `with weft.watch(...) as seen:`"}
        last, count = self.call(), len(self.calls)
        texts, steps = len(last.texts()), len(last.steps)
        facts = {
            "calls": f"{count} call{'s'[: count > 1]}, the last of {texts} text{'s'[: texts > 1]}"
            + (f" in {steps} steps" if steps > 1 else "")
        }
        for kind in last.kinds:
            layers = last.layers(kind)
            facts[kind] = f"{kind} attention in layer{'s'[: len(layers) > 1]} {named_layers(layers)}"
        if self.recorder.unclaimed:
            facts["not watched"] = self._unwatched()
        facts["next"] = "seen.attention(layer, head), seen.statistics(), seen.show()"
        return facts

    @property
    def calls(self) -> list[RecordedCall]:
        """All calls kept, oldest first: forwards or whole generations; see `recording.calls.RecordedCall`."""
        return list(self.recorder.calls)

    def call(self, call: int = -1) -> RecordedCall:
        """One call; -1 is the last."""
        calls = self.calls
        if not calls:
            if self.recorder.runs or self.recorder.without_attention:
                raise WeftError(f"nothing was recorded: {self._unwatched()}")
            raise WeftError("nothing was watched yet: run the model inside `with watch(...) as seen:`")
        if not -len(calls) <= call < len(calls):
            raise WeftError(f"there is no call {call} of {len(calls)} kept: choose 0 to {len(calls) - 1}, or -1")
        return calls[call]

    def _unwatched(self) -> str:
        """Why attention may have run unseen, and what makes it visible."""
        declared, unclaimed = "weft.watch(model, attention={})", self.recorder.unclaimed
        if unclaimed:
            kind, path = next(iter(unclaimed.items()))
            where = f" ({path})" if path else ""
            return f"a softmax ran in {kind}{where}: if that is attention, declare it: {declared.format(kind)}"
        if self.recorder.names.own or is_own(self.module):
            return "none of its parts is an attention that can be watched"
        return (
            "none of its parts is an attention that can be watched: compute the weights by torch's softmax or "
            f"scaled_dot_product_attention, and declare the part's class: {declared.format('Head')}"
        )

    @property
    def kinds(self) -> list[Kind]:
        """The kinds of attention of the last call: self, alignment, cross, encoder."""
        return self.call().kinds

    @property
    def layers(self) -> list[int]:
        """The layers of the last call's first kind that have attention."""
        return self.call().layers()

    def sizes(
        self, layer: int = -1, kind: Kind | None = None, call: int = -1, batch: int = 0
    ) -> tuple[int, int, int, int]:
        """(B, H, T, S): texts, heads, rows and columns of one layer's maps."""
        return self.call(call).sizes(layer, kind, batch)

    def part(self, layer: int = -1, kind: Kind | None = None, call: int = -1) -> str:
        """The path of the part that computed it, such as stack.blocks.2.mixer."""
        return self.call(call).layer_record(layer, kind).path

    def attention(
        self,
        layer: int = -1,
        head: int | None = None,
        rows: Rows = None,
        batch: int = 0,
        kind: Kind | None = None,
        call: int = -1,
    ) -> Tensor:
        """A = softmax(E + M): (T, S) for one head, (H, T, S) for all; `rows` an index, a slice or indices.

        Of a generation, the whole map: rows of the prompt and of each token written. A single row given as an index
        has no axis of its own. Layer -1 is the last.
        """
        return self.call(call).maps(layer, kind, head, rows, batch, "weights")

    def scores(
        self,
        layer: int = -1,
        head: int | None = None,
        rows: Rows = None,
        batch: int = 0,
        kind: Kind | None = None,
        call: int = -1,
    ) -> Tensor:
        """E before the softmax, position's bias included, -inf where a key is hidden; shapes as `attention`."""
        return self.call(call).maps(layer, kind, head, rows, batch, "scores")

    def vectors(
        self, layer: int = -1, batch: int = 0, kind: Kind | None = None, call: int = -1
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (H, T, K), keys (H, S, K) and values (H, S, V) as attention used them, after norms and rotation."""
        return self.call(call).vectors(layer, kind, batch)

    def inputs(self, batch: int = 0, call: int = -1, of: TextSide = "target") -> dict[str, Tensor]:
        """The inputs of each embedding for one text, by path: tokens [T], an image, numbers; `of` target or source.

        Those of a generation are joined; the last token written is never read, so it is not among them.
        """
        return self.call(call).inputs(batch, of)

    def statistics(self, kind: Kind | None = None, batch: int = 0, call: int = -1) -> Statistics:
        """Entropy, mean distance and column mass of all layers and heads at once, computed block by block."""
        from weft.inspection.analysis.statistics import statistics

        return statistics(self.call(call), kind, batch)

    def show(self, **options: Any) -> Any:
        """The picture in a notebook or the browser; options as `weft.inspection.pictures.show.show` takes them."""
        from weft.inspection.pictures.show import show

        return show(self, **options)
