"""Sequences of the running batch: prompts that are being read together, and texts that are being decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.inference.decoding.conditioning import ConditionedModel, MemoryConditioned
from weft.inference.decoding.detokenizer import TextStream
from weft.inference.decoding.drafts import PromptLookup
from weft.inference.decoding.generated import FinishReason, GeneratedToken
from weft.inference.decoding.sampling import Choice, TokenSampler
from weft.inference.decoding.verifier import Verifier
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
    """A text that is being decoded: how its tokens are proposed, chosen, detokenized and counted.

    `speculates`: the text's own n-grams propose how it goes on.
    """

    def __init__(
        self, handle: GenerationHandle, vocabulary: int, device: torch.device, speculates: bool = False
    ) -> None:
        self.handle, request = handle, handle.request
        self.sampler = TokenSampler(request.sampling, request.seed, request.prompt, vocabulary, device)
        self.verifier, self.speculates = Verifier(PromptLookup(), request.prompt), speculates
        self.texts: TextStream | None = None
        self.stop = frozenset(request.stop)
        self.tokens: list[int] = []
        self.real = request.source.token_positions.real if isinstance(request.source, Memory) else None

    @property
    def most_ahead(self) -> int:
        """Number of tokens that may be proposed: the last one is never read."""
        return self.handle.request.max_tokens - len(self.tokens) - 1 if self.speculates else 0

    @property
    def proposal(self) -> list[int]:
        """The tokens that are judged in this step."""
        return self.verifier.proposal.tokens

    def take(self, choices: Sequence[Choice], alignments: Tensor | None) -> bool:
        """Give the next tokens to the handle, with the alignment [n, S] of each; whether the text goes on."""
        for n, choice in enumerate(choices):
            if not self._append(choice, None if alignments is None else alignments[n]):
                return False
        if self.speculates:
            self.verifier.take([choice.token for choice in choices])
        return True

    def _append(self, choice: Choice, alignment: Tensor | None) -> bool:
        token, request = choice.token, self.handle.request
        self.tokens.append(token)
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
        return self.handle.give(GeneratedToken(0, token, choice.log_probability, reason, text), alignment)
