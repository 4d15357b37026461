"""Sequences of the running batch: prompts that are being read together, and texts that are being decoded."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from weft.inference.decoding.conditioning import ConditionedModel, MemoryConditioned
from weft.inference.decoding.detokenizer import TextStream
from weft.inference.decoding.generated import FinishReason, GeneratedToken
from weft.inference.decoding.sampling import TokenSampler
from weft.inference.engine.handles import GenerationHandle
from weft.inference.engine.requests import EngineRequest
from weft.models.output import Memory
from weft.parts.state import State


@dataclass(eq=False)
class PrefillBatch:
    """Prompts that are read together, in slots first, first + 1, ...; `at`: number of tokens read of each.

    Only a prompt that is alone is read in chunks.
    """

    handles: list[GenerationHandle]
    first: int
    conditioned: ConditionedModel
    state: State
    at: int = 0

    @property
    def requests(self) -> list[EngineRequest]:
        """Those of the handles."""
        return [handle.request for handle in self.handles]

    @property
    def memory(self) -> Memory | None:
        """That of the sources, if there are any."""
        return self.conditioned.memory if isinstance(self.conditioned, MemoryConditioned) else None


class RunningSequence:
    """A text that is being decoded: how its tokens are chosen, detokenized and counted."""

    def __init__(self, handle: GenerationHandle, vocabulary: int, device: torch.device) -> None:
        self.handle, request = handle, handle.request
        self.sampler = TokenSampler(request.sampling, request.seed, request.prompt, vocabulary, device)
        self.texts: TextStream | None = None
        self.stop = frozenset(request.stop)
        self.tokens: list[int] = []
        self.real = request.source.token_positions.real if isinstance(request.source, Memory) else None

    def append(self, token: int, log_probability: float, alignment: Tensor | None) -> bool:
        """Give the next token to the handle; whether the text goes on."""
        self.tokens.append(token)
        request = self.handle.request
        stop = token in self.stop
        last = len(self.tokens) == request.max_tokens
        text = ""
        if self.texts is None and request.detokenizer is not None:
            self.texts = request.detokenizer.stream(request.prompt)
        if self.texts is not None:
            text, stop = self.texts.step(token, stop, last)
        if alignment is not None:
            alignment = alignment[: request.source_length].clone()
            alignment = alignment if self.real is None else alignment[self.real[0]]
        reason: FinishReason | None = "stop" if stop else "length" if last else None
        return self.handle.give(GeneratedToken(0, token, log_probability, reason, text), alignment)
