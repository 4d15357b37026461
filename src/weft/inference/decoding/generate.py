"""Generation: continue prompts token by token, many texts at once.

What a text becomes depends on its own prompt, seed and sampling only: not on the rest of the batch, the padding, the
cache or the chunks in which the prompt was read. Each prompt is read once; finished texts leave the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from weft.inference.decoding.conditioning import (
    ConditionedModel,
    MemoryConditioned,
    SourceInput,
    condition,
    declared,
    device_of,
    eval_mode,
)
from weft.inference.decoding.generated import FinishReason, GeneratedText, GeneratedToken, TokenProbabilities
from weft.inference.decoding.request import GenerationRequest
from weft.inference.decoding.sampling import (
    Sampling,
    UniformStreams,
    choice_probabilities,
    choose_tokens,
    expect_numbers,
    top_probabilities,
)
from weft.inference.decoding.sessions import DecodingSession, PrefillOptions, RewindableSession, start_session


def generate(model: nn.Module, request: GenerationRequest) -> list[GeneratedText]:
    """All samples of prompt 0, then those of prompt 1, ..."""
    loop = GenerationLoop(model, request)
    steps: list[list[GeneratedToken]] = [[] for _ in range(loop.rows)]
    for step in loop:
        steps[step.row].append(step)
    return [loop.gather(row, own) for row, own in enumerate(steps)]


def stream(
    model: nn.Module, request: GenerationRequest, session: RewindableSession | None = None
) -> Iterator[GeneratedToken]:
    """The tokens of `generate`, each as soon as it is chosen.

    `session`: one of this model that goes on from what it read before, for a single text; a chat's next turn.
    """
    return iter(GenerationLoop(model, request, session))


class GenerationLoop:
    """A batch of texts that is being generated; iterating gives each `GeneratedToken`, once."""

    def __init__(self, model: nn.Module, request: GenerationRequest, session: RewindableSession | None = None) -> None:
        declaration = declared(model)
        self.model, self.request, self.stop = model, request, frozenset(request.stop)
        self.limit = request.context_limit(declaration.length)
        self.vocabulary = declaration.vocabulary or 0
        self.prompts = [list(prompt)[-(self.limit or len(prompt)) :] for prompt in request.prompts]
        self.rows = len(self.prompts) * request.samples
        conditioned = session.conditioned if session is not None else self._condition()
        self.real = conditioned.memory.token_positions.real if isinstance(conditioned, MemoryConditioned) else None
        self.session: DecodingSession = session or start_session(conditioned, request.prefill)
        self.alignments: list[list[Tensor]] = [[] for _ in range(self.rows)]
        self.first_probabilities: list[TokenProbabilities] | None = None
        detokenizer = request.detokenizer
        self.texts = None if detokenizer is None else [detokenizer.stream(prompt) for prompt in self._contexts()]

    def _condition(self) -> ConditionedModel:
        request, prefill = self.request, self.request.prefill
        with eval_mode(self.model):
            return condition(
                self.model, len(self.prompts), request.source, request.images, prefill.side, prefill.native
            )

    def __iter__(self) -> Iterator[GeneratedToken]:
        with eval_mode(self.model):
            yield from self._run()

    def _contexts(self) -> list[list[int]]:
        """The tokens that each text begins with, one list per row."""
        return [list(prompt) for prompt in self.prompts for _ in range(self.request.samples)]

    def _run(self) -> Iterator[GeneratedToken]:
        device, sampling, max_tokens = device_of(self.model), self.request.sampling, self.request.max_tokens
        logits = self._prefill(device)
        live = list(range(self.rows))
        contexts = self._contexts()
        uniform = None if sampling.greedy else UniformStreams(self.request.text_seeds(), device)
        seen = self._seen(contexts, device)
        for count in range(1, max_tokens + 1):
            tokens, log_probabilities, choices = self._choose(logits, uniform, seen)
            self._note_alignment(live)
            going_on = []
            rows = zip(live, tokens.tolist(), expect_numbers(log_probabilities.tolist()), choices, strict=True)
            for index, (row, token, log_probability, probabilities) in enumerate(rows):
                contexts[row].append(token)
                step = self._step(row, token, log_probability, count == max_tokens, probabilities)
                if step.finish_reason is None:
                    going_on.append(index)
                yield step
            if not going_on:
                return
            if len(going_on) < len(live):
                kept = torch.tensor(going_on, device=device)
                live = [live[index] for index in going_on]
                tokens = tokens[kept]
                self.session.reorder(kept)
                if uniform is not None:
                    uniform.keep(going_on)
                seen = None if seen is None else seen[kept]
            logits = self._advance(tokens, live, contexts)

    def _step(
        self, row: int, token: int, log_probability: float, last: bool, probabilities: TokenProbabilities | None
    ) -> GeneratedToken:
        """Whether a token ends its text, and the text that it makes certain."""
        stop, text = token in self.stop, ""
        if self.texts is not None:
            text, stop = self.texts[row].step(token, stop, last)
        reason: FinishReason | None = "stop" if stop else "length" if last else None
        return GeneratedToken(row, token, log_probability, reason, text, probabilities)

    def _prefill(self, device: torch.device) -> Tensor:
        """Logits [rows, C] of the first tokens; each prompt is read once, however many samples continue it."""
        logits = self.session.begin(self.prompts)
        if self.request.top:
            self.first_probabilities = [top_probabilities(row, self.request.top) for row in logits]
        if self.request.samples == 1:
            return logits
        rows = torch.arange(len(self.prompts), device=device).repeat_interleave(self.request.samples)
        self.session.reorder(rows)
        return logits[rows]

    @torch.inference_mode()
    def _choose(
        self, logits: Tensor, uniform: UniformStreams | None, seen: Tensor | None
    ) -> tuple[Tensor, Tensor, Sequence[TokenProbabilities | None]]:
        """Tokens [B], their log-probabilities [B], and what each was chosen from if the request asks for it."""
        numbers = None if uniform is None else uniform.next()
        sampling, top = self.request.sampling, self.request.step_top
        tokens, log_probabilities = choose_tokens(logits, sampling, numbers, seen)
        choices = choice_probabilities(logits, tokens, top, sampling, seen) if top else [None] * len(tokens)
        if seen is not None:
            seen[torch.arange(len(tokens), device=tokens.device), tokens] = True
        return tokens, log_probabilities, choices

    def _advance(self, tokens: Tensor, live: list[int], contexts: list[list[int]]) -> Tensor:
        """One more step; where a text is full, its older half is dropped and all texts are read anew."""
        if self.limit is None or all(len(contexts[row]) <= self.limit for row in live):
            return self.session.advance(tokens)
        for row in live:
            if len(contexts[row]) > self.limit:
                contexts[row] = contexts[row][-max(1, self.limit // 2) :]
        return self.session.begin([contexts[row] for row in live])

    def _seen(self, contexts: list[list[int]], device: torch.device) -> Tensor | None:
        """True for the tokens of each context, [rows, C], where a repetition penalty needs them."""
        if self.request.sampling.repetition == 1.0:
            return None
        seen = torch.zeros(self.rows, self.vocabulary, dtype=torch.bool, device=device)
        for row, context in enumerate(contexts):
            seen[row, context] = True
        return seen

    def _note_alignment(self, live: list[int]) -> None:
        if self.session.alignment is not None:
            for index, row in enumerate(live):
                self.alignments[row].append(self.session.alignment[index])

    def gather(self, row: int, steps: list[GeneratedToken]) -> GeneratedText:
        """All tokens of a row as one text; its alignment is to real source tokens only."""
        prompt = row // self.request.samples
        alignments = self.alignments[row]
        if self.real is not None:
            alignments = [alignment[self.real[prompt]] for alignment in alignments]
        return GeneratedText.of(
            steps,
            self.stop,
            alignments,
            text=None if self.texts is None else "".join(step.text for step in steps),
            first_probabilities=None if self.first_probabilities is None else self.first_probabilities[prompt],
        )


def next_distribution(
    model: nn.Module,
    prompt: Sequence[int],
    top: int = 10,
    sampling: Sampling = Sampling(),
    *,
    source: SourceInput | None = None,
    images: Tensor | None = None,
) -> TokenProbabilities:
    """The likeliest next tokens and their probabilities, best first."""
    GenerationRequest([prompt], max_tokens=1).context_limit(declared(model).length)
    with eval_mode(model):
        logits = start_session(condition(model, 1, source, images), PrefillOptions()).begin([prompt])
    return top_probabilities(logits[0], top, sampling)
