"""How Weft's own models are called."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from weft.foreign.subject import NotTestable, Subject, SubjectCall
from weft.models.build import build
from weft.models.decoder import Decoder
from weft.models.encoder import Encoder, VectorsSpec, WordsSpec
from weft.models.encoder_decoder import EncoderDecoder
from weft.models.image_text import ImageTextDecoder
from weft.models.output import Output
from weft.models.recurrent_seq2seq import RecurrentSeq2Seq
from weft.models.series import SeriesDecoder
from weft.models.sources import PatchSourceSpec, SourceSpec, VectorSourceSpec
from weft.models.two_tower import TextTower, TwoTowers
from weft.models.vision import VisionTransformer
from weft.parts.attention import SelfAttention, set_backend
from weft.parts.attention_context import AttentionContext
from weft.parts.masks import Documents, Mask, Real
from weft.parts.relative import AttentionPosition
from weft.parts.scores import Score

KINDS = (
    Decoder, Encoder, EncoderDecoder, ImageTextDecoder, RecurrentSeq2Seq, SeriesDecoder, TextTower, TwoTowers,
    VisionTransformer,
)  # fmt: skip


class WeftSubject(Subject):
    """A Weft model: it declares for itself, so nothing is assumed."""

    @staticmethod
    def of(module: nn.Module, example: Tensor | None = None) -> WeftSubject:
        """Wrap a model; content and source of its own kind are drawn where no example is given."""
        assert isinstance(module, KINDS)
        spec: Any = module.spec
        source: Tensor | None = None
        if isinstance(module, SeriesDecoder):
            example = torch.zeros(1, 1, spec.channels * spec.patch)
        elif isinstance(module, Encoder) and isinstance(spec.input, VectorsSpec):
            example = torch.zeros(1, 1, spec.input.channels)
        elif isinstance(module, Encoder) and isinstance(spec.input, WordsSpec):
            example = torch.zeros(1, 1, 1 + spec.input.longest, dtype=torch.long)
        elif isinstance(module, VisionTransformer):
            example = torch.zeros(1, spec.channels, spec.image, spec.image)
        elif isinstance(module, ImageTextDecoder):
            source = torch.zeros(1, spec.channels, spec.image, spec.image)
        elif isinstance(module, TwoTowers):
            source = torch.zeros(1, spec.image.channels, spec.image.image, spec.image.image)
        elif isinstance(module, EncoderDecoder):
            source = _source_example(spec.source)
        elif isinstance(module, RecurrentSeq2Seq):
            source = torch.zeros(1, 1, dtype=torch.long)
        # Encoders and vision models are asked for hidden states, which do not pass the head.
        beside = ("head",) if isinstance(module, (Encoder, VisionTransformer)) else ()
        return WeftSubject(module, module.declares(), (), example, source, beside=beside, library="weft")

    def _tokens(self, example: Tensor | None, vocabulary: int | None, shape: tuple[int, int], random: Any) -> Tensor:
        if self.declares.seq2seq:
            spec: Any = self.module.spec
            vocabulary = min(spec.vocabulary, vocabulary or spec.vocabulary)
        return super()._tokens(example, vocabulary, shape, random)

    def content(self, batch: int, length: int, random: torch.Generator) -> Tensor:
        """Random content; words come with as many characters as they may have."""
        spec: Any = self.module.spec
        if not (isinstance(self.module, Encoder) and isinstance(spec.input, WordsSpec)):
            return super().content(batch, length, random)
        words = torch.randint(0, spec.input.vocabulary, (batch, length, 1), generator=random)
        characters = torch.randint(0, spec.input.characters, (batch, length, spec.input.longest), generator=random)
        return torch.cat((words, characters), -1)

    def source(self, batch: int, length: int, random: torch.Generator) -> Tensor | None:
        """Random source; of an encoder-decoder one row per token, be it a patch of a series or of an image."""
        kind = self.module.spec.source if isinstance(self.module, EncoderDecoder) else None
        if not isinstance(kind, VectorSourceSpec) or self.source_example is None:
            return super().source(batch, length, random)
        return torch.randn(batch, length, self.source_example.shape[2], generator=random, dtype=torch.float64)

    def run(self, call: SubjectCall) -> Tensor:
        """[B, T, C]: logits, or hidden states of an encoder (without its class token)."""
        return self._call(call, None)

    def make_cache(self, batch: int) -> Any:
        if not self.declares.cached:
            raise NotTestable("it keeps no state: it sees all tokens at once")
        return self.module.make_state(batch)  # type: ignore[operator]

    def run_cached(self, call: SubjectCall, cache: Any) -> tuple[Tensor, Any]:
        """One call serves prefill and decoding."""
        return self._call(call, cache), cache

    def _call(self, call: SubjectCall, state: Any) -> Tensor:
        mask, module = _mask(call), self.module
        if isinstance(module, (EncoderDecoder, RecurrentSeq2Seq)):
            memory = module.encode(_whole(module, _given(call.source)), mask=call.source_real)
            return module.decode(call.content, memory, call.positions, mask, state).logits
        if isinstance(module, ImageTextDecoder):
            images = None if state is not None and state.counter.begun else call.source
            return module(call.content, call.positions, mask, state, images=images).logits
        if isinstance(module, TextTower):
            return module(call.content, call.positions, mask).hidden
        if isinstance(module, TwoTowers):
            # The summands of the logit that the row's image has with the text up to each token.
            texts = module.text_head(module.text(call.content, call.positions, mask).hidden)
            return module.similarity.scale.exp() * texts * module(images=_given(call.source)).logits[:, None]
        if isinstance(module, VisionTransformer):
            call.takes()
            return module(call.content).hidden
        if isinstance(module, SeriesDecoder):
            values = call.content.unflatten(-1, (module.spec.patch, -1)).flatten(1, 2)
            return module(values, call.positions, mask, state).logits.flatten(2)
        if isinstance(module, Encoder):
            out: Output = module(call.content, call.positions, mask)
            return out.hidden[:, 1:] if module.spec.class_token else out.hidden
        return module(call.content, call.positions, mask, state).logits

    def backends(self) -> tuple[str, ...]:
        """The three kernels; the fused one only where every score is a dot product and no position acts on values."""
        attentions = [m for m in self.module.modules() if isinstance(m, SelfAttention)]
        if not attentions:
            return ()
        positions = [m for m in self.module.modules() if isinstance(m, AttentionPosition)]
        fusable = all(part.score.fusable != "never" for part in attentions)
        fusable = fusable and not any(position.acts_on_values for position in positions)
        return ("explicit", "fused", "blocked") if fusable else ("explicit", "blocked")

    def set_backend(self, name: str) -> None:
        set_backend(self.module, name)  # type: ignore[arg-type]

    def declares_distributions(self) -> bool:
        """Unless every score leaves out the softmax."""
        scores = [part for part in self.module.modules() if isinstance(part, Score)]
        return not scores or any(score.normalized for score in scores)

    def attention_maps(self, call: SubjectCall) -> dict[str, Tensor]:
        """Recomputed from the queries and keys of each self-attention in one forward."""
        found: dict[str, Tensor] = {}
        paths = {
            m: name for name, m in self.module.named_modules() if isinstance(m, SelfAttention) and m.score.normalized
        }

        def look(part: SelfAttention, arguments: tuple[Any, ...], _: Any) -> None:
            x, context = arguments[0], arguments[1] if len(arguments) > 1 else None
            context = context or AttentionContext.of(x)
            query, key, _value = part.project(x)
            query, key = part.position(query, key, context)
            found[paths[part]] = part.weights(query, key, context)

        hooks = [part.register_forward_hook(look) for part in paths]
        try:
            self.run(call)
        finally:
            for hook in hooks:
                hook.remove()
        if not found:
            raise NotTestable("it has no self-attention")
        return found

    def loss_inputs(self) -> bool:
        return isinstance(self.module, (Decoder, EncoderDecoder, ImageTextDecoder, RecurrentSeq2Seq))

    def fresh(self, seed: int) -> nn.Module:
        return build(self.module.spec, seed=seed)  # type: ignore[arg-type]


def _mask(call: SubjectCall) -> Mask | None:
    given = [
        *([] if call.real is None else [Real(call.real)]),
        *([] if call.documents is None else [Documents(call.documents)]),
        *([] if call.mask is None else [call.mask]),
    ]
    if not given:
        return None
    mask = given[0]
    for other in given[1:]:
        mask = mask & other
    return mask


def _source_example(kind: SourceSpec) -> Tensor:
    """One source with a row per token."""
    if isinstance(kind, VectorSourceSpec):
        return torch.zeros(1, 1, kind.channels * kind.steps)
    if isinstance(kind, PatchSourceSpec):
        return torch.zeros(1, kind.side**2, kind.channels * (kind.image // kind.side) ** 2)
    return torch.zeros(1, 1, dtype=torch.long)


def _whole(module: EncoderDecoder | RecurrentSeq2Seq, source: Tensor) -> Tensor:
    """A source of one row per token as the model takes it."""
    kind = module.spec.source if isinstance(module, EncoderDecoder) else None
    if isinstance(kind, VectorSourceSpec):
        return source.unflatten(-1, (kind.steps, -1)).flatten(1, 2)
    if isinstance(kind, PatchSourceSpec):
        h, cell = kind.side, kind.image // kind.side
        cells = source.unflatten(2, (kind.channels, cell, cell)).unflatten(1, (h, h))
        return cells.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
    return source


def _given(source: Tensor | None) -> Tensor:
    if source is None:
        raise NotTestable("it needs a source")
    return source
