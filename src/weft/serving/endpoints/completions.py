"""/v1/completions: prompts as texts or token ids, continued."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from weft.serving.answers.events import answer_while_connected, begin_stream, event
from weft.serving.answers.generation import Generation, TextPlan
from weft.serving.answers.written_text import Piece, TokenNames, completion_logprobs
from weft.serving.endpoints.documented import answers_of
from weft.serving.requests.completions import CompletionBody
from weft.serving.served.served_runs import ServedText
from weft.serving.settings import Limits
from weft.serving.state import record_of, state_of
from weft.serving.web.errors import JsonAnswer, invalid_request

router = APIRouter(tags=["OpenAI"])
LONGEST_TOKEN = 128  # characters; longer texts than that many per token are refused before they are tokenized


def expect_within(
    limits: Limits, texts: int, top: int, most_tokens: int | None, names: tuple[str, str] = ("logprobs", "max_tokens")
) -> None:
    """Refuse what this server does not give, by the parameter's name; `names`: those of `top` and `most_tokens`."""
    if texts > limits.texts:
        raise invalid_request(f"{texts} texts, but this server gives at most {limits.texts} per request", "n")
    if top > limits.top:
        raise invalid_request(f"{top} likeliest tokens, but this server tells at most {limits.top}", names[0])
    if limits.tokens is not None and most_tokens is not None and most_tokens > limits.tokens:
        raise invalid_request(
            f"{most_tokens} new tokens, but this server gives at most {limits.tokens}", names[1], "too_many_tokens"
        )


def plan_completion(run: ServedText, body: CompletionBody) -> TextPlan:
    """Prompts as tokens, checked; not in the event loop."""
    prompts: list[list[int]] = []
    for prompt in body.prompt:
        if isinstance(prompt, str):
            if len(prompt) > LONGEST_TOKEN * run.length:
                raise run.too_long(f"the prompt has {len(prompt):,} characters", "prompt")
            prompts.append(run.prompt_ids(prompt))
        else:
            run.expect_tokens(prompt, "prompt")
            prompts.append(list(prompt))
        run.expect_room(prompts[-1], body.max_tokens, "prompt")
    echoes = None
    if body.echo:
        echoes = [one if isinstance(one, str) else run.tokenizer.decode(one) for one in body.prompt]
    scores = body.logprobs is not None
    return TextPlan(prompts, body.max_tokens, (run.stops, ()), scores, body.logprobs or 0, echoes)


@router.post("/v1/completions", responses=answers_of("completion"))
async def completions(body: CompletionBody, request: Request) -> Response:
    """Continue a text, several texts, or token ids."""
    state = state_of(request)
    run = state.runs.find_text(body.model)
    expect_within(state.settings.limits, len(body.prompt) * body.n, body.logprobs or 0, body.max_tokens)
    if state.settings.log_prompts:
        record_of(request).more["prompt"] = list(body.prompt)
    plan = await answer_while_connected(request, state.runs.prepare(lambda: plan_completion(run, body)))
    answer = CompletionAnswer(Generation(request, run, body, plan), body)
    if body.stream:
        return await begin_stream(request, answer.events())
    return JsonAnswer(await answer_while_connected(request, answer.whole()))


class CompletionAnswer:
    """The answer to a request for completions, whole or as events."""

    def __init__(self, generation: Generation, body: CompletionBody) -> None:
        self.generation, self.body = generation, body
        self.names = TokenNames(generation.run.bytes)
        self.head = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": generation.run.name,
        }

    async def whole(self) -> dict[str, Any]:
        """All choices, each the text that continues its prompt."""
        choices = [self._choice(index, text) for index, text in enumerate(await self.generation.texts())]
        return {**self.head, "choices": choices, "usage": self.generation.usage}

    async def events(self) -> AsyncGenerator[bytes]:
        """A chunk per piece; the numbers of tokens last, if they are asked for."""
        more: dict[str, Any] = {"usage": None} if self.body.wants_usage else {}
        pieces = self.generation.pieces()
        try:
            async for index, piece in pieces:
                yield event({**self.head, "choices": [self._choice(index, piece)], **more})
        finally:
            await pieces.aclose()
        if self.body.wants_usage:
            yield event({**self.head, "choices": [], "usage": self.generation.usage})

    def _choice(self, index: int, piece: Piece) -> dict[str, Any]:
        scores = None
        if self.body.logprobs is not None:
            scores = completion_logprobs(self.names, piece.scored, self.body.logprobs)
        return {"index": index, "text": piece.text, "logprobs": scores, "finish_reason": piece.finish_reason}
