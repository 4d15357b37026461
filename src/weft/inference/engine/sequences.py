"""Sequences of the running batch: texts that are being decoded, and what is said of prompts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from weft.inference.decoding.detokenizer import TextStream
from weft.inference.decoding.drafts import PromptLookup
from weft.inference.decoding.generated import FinishReason, GeneratedToken, PromptScore, TopTokens
from weft.inference.decoding.sampling import (
    Choice,
    TokenSampler,
    expect_numbers,
    log_probabilities,
    top_log_probabilities,
)
from weft.inference.decoding.verifier import Verifier
from weft.inference.engine.handles import GenerationHandle
from weft.models.output import Memory


def score_prompt(handle: GenerationHandle, at: int, logits: Tensor) -> None:
    """Note what the model says of the tokens after tokens at, at + 1, ... of a prompt, from the logits [n, C]."""
    request, scores = handle.request, handle.prompt_scores
    if at == 0:
        scores.append(PromptScore(request.prompt[0], None))
    following = request.prompt[at + 1 : at + 1 + len(logits)]
    logits = logits[: len(following)]
    found = log_probabilities(logits, torch.tensor(following, device=logits.device, dtype=torch.long)).tolist()
    tops = top_log_probabilities(logits, request.top)
    scores += map(PromptScore, following, expect_numbers(found), tops)


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

    def take(self, choices: Sequence[Choice], logits: Tensor, alignments: Tensor | None) -> bool:
        """Give the next tokens to the handle, chosen from logits [n, C], with the alignment [n, S] of each.

        Whether the text goes on.
        """
        tops = top_log_probabilities(logits[: len(choices)], self.handle.request.top)
        for n, (choice, top) in enumerate(zip(choices, tops, strict=True)):
            if not self._append(choice, top, None if alignments is None else alignments[n]):
                return False
        if self.speculates:
            self.verifier.take([choice.token for choice in choices])
        return True

    def _append(self, choice: Choice, top: TopTokens, alignment: Tensor | None) -> bool:
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
        return self.handle.give(GeneratedToken(0, token, choice.log_probability, reason, text, top=top), alignment)
