"""Sequence to sequence with recurrence, with and without attention.

    encoder  h_t = f(x_t, h_(t-1));   context c;   decoder  s_t = g(y_(t-1), s_(t-1), c);   s_0 = tanh(W h_T)

- without attention c = h_T feeds every step: the whole sentence squeezed through one vector (Sutskever et al. 2014);
- wiring "before" (Bahdanau et al. 2015): query s_(t-1), c_t = sum_i a_(t,i) h_i, then s_t = g(y_(t-1), s_(t-1), c_t);
- wiring "after" (Luong et al. 2015): h_t = g(y_(t-1), h_(t-1)), query h_t, then [c_t; h_t] gives the output.

Teacher forcing: the target given starts with the start token; its outputs predict the next, up to the stop token.
"""

from __future__ import annotations

from typing import Literal, Self

import torch
import torch.nn.functional as F
from pydantic import PositiveInt, model_validator
from torch import Tensor, nn

from weft.foundation.errors import WeftError
from weft.models.output import Declaration, Memory, Output
from weft.models.part_specs import AttentionName, InitializationSpec, Share
from weft.models.stack_spec import ModelSpec, arrange_call, as_mask, expect_tokens
from weft.parts import observer
from weft.parts.embeddings import TokenEmbedding
from weft.parts.linear import linear
from weft.parts.masks import Everything, Mask, both, rules_of
from weft.parts.outputs import LanguageHead
from weft.parts.position_counter import PositionCounter
from weft.parts.recurrence import Hidden, Recurrent
from weft.parts.scores import SCORES, Score, build_score
from weft.parts.state import State, TensorState
from weft.parts.token_positions import TokenPositions


class RecurrentSeq2SeqSpec(ModelSpec):
    """Recurrent encoder (one or two directions) and decoder of the same cell.

    `attention` is a score of `weft.parts.scores`, or none for the fixed vector.
    """

    family: Literal["recurrent-seq2seq"] = "recurrent-seq2seq"
    vocabulary: PositiveInt = 256
    target_vocabulary: PositiveInt | None = None
    width: PositiveInt = 128
    hidden: PositiveInt = 128
    cell: Literal["rnn", "gru", "lstm"] = "gru"
    bidirectional: bool = True
    attention: AttentionName = "additive"
    wiring: Literal["before", "after"] = "before"
    dropout: Share = 0.0
    length: PositiveInt = 256
    initialization: InitializationSpec = InitializationSpec(scheme="xavier")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.attention != "none" and self.bidirectional and SCORES[self.attention].equal_widths:
            raise ValueError(
                f"attention {self.attention} compares vectors of one width, but the two-way encoder's are "
                f"{2 * self.hidden} and the decoder's {self.hidden}: "
                "set bidirectional to false, or attention to bilinear or additive"
            )
        return self

    @property
    def memory_width(self) -> int:
        """Of the encoder's states."""
        return self.hidden * (2 if self.bidirectional else 1)

    def build(self) -> RecurrentSeq2Seq:
        """The model, with torch's own random weights; `weft.build` initializes it."""
        score: Score | None = None
        if self.attention != "none":
            score = build_score(self.attention, self.hidden, self.memory_width)
        return RecurrentSeq2Seq(self, score)

    def declares(self) -> Declaration:
        """A causal, cached decoder that sees all of the source; order counts by recurrence."""
        targets = self.target_vocabulary or self.vocabulary
        return Declaration(self.family, True, True, "none", length=self.length, vocabulary=targets, seq2seq=True)


class RecurrentSeq2Seq(nn.Module):
    """`model(source, target)` trains; `encode` once and `decode` with a state to generate.

    Alignments a [B, T, S] are in `auxiliary["alignment"]` where there is attention.
    """

    def __init__(self, spec: RecurrentSeq2SeqSpec, score: Score | None) -> None:
        super().__init__()
        self.spec, self.score = spec, score
        targets = spec.target_vocabulary or spec.vocabulary
        feeds_context = score is None or spec.wiring == "before"
        self.source_embedding = TokenEmbedding(spec.vocabulary, spec.width)
        self.target_embedding = TokenEmbedding(targets, spec.width)
        self.encoder = Recurrent(spec.cell, spec.width, spec.hidden, spec.bidirectional)
        self.first = nn.Linear(spec.memory_width, spec.hidden)
        self.decoder = Recurrent(spec.cell, spec.width + (spec.memory_width if feeds_context else 0), spec.hidden)
        self.combine = None if feeds_context else nn.Linear(spec.memory_width + spec.hidden, spec.hidden)
        self.drop = nn.Dropout(spec.dropout)
        self.head = LanguageHead(spec.hidden, targets, bias=True)

    def encode(self, source: Tensor, positions: Tensor | None = None, mask: Mask | Tensor | None = None) -> Memory:
        """Source tokens [B, S] -> all hidden states [B, S, H] and the last one, h_T, as the summary."""
        expect_tokens(source)
        token_positions = _arrange_padding(source, positions, mask, None)
        hidden, end = self.encoder(self.drop(self.source_embedding(source)), token_positions)
        for one in observer.active:
            one.on_recurrent_encoding(self.encoder, hidden, token_positions)
        return Memory(hidden, token_positions, end[0])

    def decode(
        self,
        target: Tensor,
        memory: Memory,
        positions: Tensor | None = None,
        mask: Mask | Tensor | None = None,
        state: State | None = None,
    ) -> Output:
        """Target tokens [B, T] -> hidden [B, T, H], logits [B, T, C], alignment [B, T, S]."""
        expect_tokens(target)
        if memory.summary is None:
            raise WeftError("this memory is another model's: give what this model's encode() returned")
        token_positions = _arrange_padding(target, positions, mask, state)
        kept = state.layers[0] if state is not None else None
        start = kept.tensors if isinstance(kept, TensorState) else None
        y = self.drop(self.target_embedding(target))
        if state is None and token_positions.pads == "right":
            # Padding comes after every real token, so no state that counts has seen it.
            token_positions = TokenPositions.run(0, target.shape[1], target.device)
        run = self._plain if self.score is None else (self._before if self.combine is None else self._after)
        hidden, end, alignment, query = run(y, token_positions, memory, start or self._start(memory.summary))
        if self.score is not None and alignment is not None and query is not None:
            for one in observer.active:
                one.on_alignment(self.score, query, memory.hidden, memory.token_positions, state, alignment)
        if state is not None:
            state.counter.advance(token_positions)
            kept = TensorState()
            kept.keep(*end)
            state.layers[0] = kept
        return Output(self.drop(hidden), self.head, state, {} if alignment is None else {"alignment": alignment})

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        source_mask: Mask | Tensor | None = None,
        mask: Mask | Tensor | None = None,
    ) -> Output:
        """Teacher forcing: [B, S], [B, T] -> logits [B, T, C]."""
        return self.decode(target, self.encode(source, mask=source_mask), mask=mask)

    def _start(self, summary: Tensor) -> Hidden:
        """s_0 = tanh(W h_T); an LSTM's memory starts empty."""
        s = torch.tanh(self.first(summary))
        return (s, torch.zeros_like(s)) if self.spec.cell == "lstm" else (s,)

    def _plain(
        self, y: Tensor, token_positions: TokenPositions, memory: Memory, start: Hidden
    ) -> tuple[Tensor, Hidden, None, None]:
        """s_t = g([y_(t-1); c], s_(t-1)) with c = h_T, all steps in one run."""
        assert memory.summary is not None
        context = memory.summary[:, None].expand(-1, y.shape[1], -1)
        hidden, end = self.decoder(torch.cat((y, context), -1), token_positions, start)
        return hidden, end, None, None

    def _after(
        self, y: Tensor, token_positions: TokenPositions, memory: Memory, start: Hidden
    ) -> tuple[Tensor, Hidden, Tensor, Tensor]:
        """h_t = g(y_(t-1), h_(t-1)); c_t by query h_t; tanh(W [c_t; h_t]); all steps at once."""
        assert self.score is not None and self.combine is not None
        states, end = self.decoder(y, token_positions, start)
        scores = self.score(states[:, None], memory.hidden[:, None])[:, 0]
        weights = self.score.weigh(scores, _visible(memory)).to(y.dtype)
        both = torch.cat((weights @ memory.hidden, states), -1)
        return torch.tanh(self.combine(both)), end, weights, states

    def _before(
        self, y: Tensor, token_positions: TokenPositions, memory: Memory, start: Hidden
    ) -> tuple[Tensor, Hidden, Tensor, Tensor | None]:
        """c_t by query s_(t-1); s_t = g([y_(t-1); c_t], s_(t-1)); step by step: a query needs the state before."""
        assert self.score is not None
        prepared = self.score.prepare(memory.hidden[:, None])
        visible, real = _visible(memory), token_positions.real
        W_y, W_c = self.decoder.input_weight.split((y.shape[-1], memory.hidden.shape[-1]), dim=1)
        # W [y; c] = W_y y + W_c c: the first part is known for all steps. With many steps W_c is applied to all h_i
        # before, and not to each c_t = sum_i a_(t,i) h_i.
        mapped = linear(y, W_y.contiguous(), self.decoder.input_bias).unbind(1)
        before = 2 * len(mapped) >= memory.hidden.shape[1]
        values = linear(memory.hidden, W_c.contiguous()) if before else memory.hidden
        state, states, alignment = start, [], []
        for t, given in enumerate(mapped):
            scores = self.score.compare(state[0][:, None, None], prepared)[:, 0]
            weights = self.score.weigh(scores, visible).to(y.dtype)
            context = (weights @ values)[:, 0]
            new = self.decoder.update(given + (context if before else F.linear(context, W_c)), state)
            if real is not None:
                new = tuple(torch.where(real[:, t, None], n, o) for n, o in zip(new, state, strict=True))
            state = new
            states.append(state[0])
            alignment.append(weights)
        queries = torch.stack((start[0], *states[:-1]), 1) if observer.active else None
        return torch.stack(states, 1), state, torch.cat(alignment, 1), queries

    def make_state(self, batch: int = 1, capacity: int | None = None) -> State:
        """An empty state for the decoder; its size does not grow with the text, so `capacity` does not bound it."""
        counter = PositionCounter(batch, self.source_embedding.weight.device)
        return State(counter, {}, [TensorState()])

    def declares(self) -> Declaration:
        return self.spec.declares()


def _visible(memory: Memory) -> Tensor | None:
    return None if memory.token_positions.real is None else memory.token_positions.real[:, None, :]


def _arrange_padding(
    tokens: Tensor, positions: Tensor | None, mask: Mask | Tensor | None, state: State | None
) -> TokenPositions:
    """Where the tokens of a call stand; of masks, only padding takes effect here."""
    found = as_mask(mask)
    rules = [found] if isinstance(found, Everything) else rules_of(found)
    if rules:
        raise WeftError(
            f"{both(rules)!r} acts inside self-attention, which a recurrent seq2seq model has not: give padding only"
        )
    token_positions = arrange_call(tokens, positions, found, state)
    if token_positions.documents is not None:
        raise WeftError("a recurrent seq2seq model reads one source per row: give documents as rows of their own")
    return token_positions
