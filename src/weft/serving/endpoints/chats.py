"""/v1/chat/completions: messages, written by the model's own chat template, and the assistant's answer."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from weft.foundation.errors import WeftError
from weft.serving.answers.events import answer_while_connected, begin_stream, event
from weft.serving.answers.generation import Generation, TextPlan
from weft.serving.answers.written_text import Piece, TokenNames, chat_logprobs
from weft.serving.endpoints.completions import LONGEST_TOKEN, expect_within
from weft.serving.endpoints.documented import answers_of
from weft.serving.requests.chats import ChatBody
from weft.serving.served.served_runs import ServedText
from weft.serving.state import record_of, state_of
from weft.serving.web.errors import JsonAnswer, invalid_request

router = APIRouter(tags=["OpenAI"])
ANSWER_TOKENS = 1024  # of an answer at most, if no number is asked for


def plan_chat(run: ServedText, body: ChatBody, most: int | None) -> TextPlan:
    """The chat as tokens, checked; not in the event loop. `most`: tokens that this server gives."""
    if run.chat is None:
        raise invalid_request(
            f"model {run.name} was not trained to chat: use /v1/completions, or serve it with --chat-template plain",
            "model",
            "wrong_task",
        )
    letters = sum(len(message.content) for message in body.messages)
    if len(body.messages) > run.length or letters > LONGEST_TOKEN * run.length:
        raise run.too_long("the messages are longer than any of that many", "messages")
    try:
        prompt = run.chat.guarded_ids([message.to_tree() for message in body.messages])
    except WeftError as error:
        raise invalid_request(str(error), "messages") from None
    run.expect_room(prompt, body.most_tokens or 1, "messages")
    room = run.length - len(prompt) + 1  # the last token generated is never read
    tokens = body.most_tokens or min(room, ANSWER_TOKENS, most or room)
    return TextPlan([prompt], tokens, run.chat_stops, body.logprobs, body.top_logprobs or 0)


@router.post("/v1/chat/completions", responses=answers_of("chat"))
async def chat_completions(body: ChatBody, request: Request) -> Response:
    """Answer a chat: its messages through the model's template, then as a text that is continued."""
    state = state_of(request)
    run, limits = state.runs.find_text(body.model), state.settings.limits
    most = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    expect_within(limits, body.n, body.top_logprobs or 0, body.most_tokens, ("top_logprobs", most))
    if state.settings.log_prompts:
        record_of(request).more["messages"] = [message.to_tree() for message in body.messages]
    plan = await answer_while_connected(request, state.runs.prepare(lambda: plan_chat(run, body, limits.tokens)))
    answer = ChatAnswer(Generation(request, run, body, plan), body)
    if body.stream:
        return await begin_stream(request, answer.events())
    return JsonAnswer(await answer_while_connected(request, answer.whole()))


class ChatAnswer:
    """The answer to a chat, whole or as events."""

    def __init__(self, generation: Generation, body: ChatBody) -> None:
        self.generation, self.body = generation, body
        self.names = TokenNames(generation.run.bytes)
        self.id, self.created = f"chatcmpl-{secrets.token_hex(12)}", int(time.time())

    async def whole(self) -> dict[str, Any]:
        """All choices, each a message of the assistant."""
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": text.text, "refusal": None},
                "logprobs": self._scores(text),
                "finish_reason": text.finish_reason,
            }
            for index, text in enumerate(await self.generation.texts())
        ]
        return {**self._head("chat.completion"), "choices": choices, "usage": self.generation.usage}

    async def events(self) -> AsyncGenerator[bytes]:
        """Who speaks, what is said, why it ended, each as deltas; the numbers of tokens last, if asked for."""
        begun: set[int] = set()
        pieces = self.generation.pieces()
        try:
            async for index, piece in pieces:
                if index not in begun:
                    begun.add(index)
                    yield self._chunk(index, {"role": "assistant", "content": "", "refusal": None})
                if piece.text or piece.scored:
                    yield self._chunk(index, {"content": piece.text}, piece)
                if piece.finish_reason is not None:
                    yield self._chunk(index, {}, finish_reason=piece.finish_reason)
        finally:
            await pieces.aclose()
        if self.body.wants_usage:
            yield event({**self._head("chat.completion.chunk"), "choices": [], "usage": self.generation.usage})

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.generation.run.name}

    def _chunk(
        self, index: int, delta: dict[str, Any], piece: Piece | None = None, finish_reason: str | None = None
    ) -> bytes:
        scores = None if piece is None else self._scores(piece)
        choice = {"index": index, "delta": delta, "logprobs": scores, "finish_reason": finish_reason}
        more = {"usage": None} if self.body.wants_usage else {}
        return event({**self._head("chat.completion.chunk"), "choices": [choice], **more})

    def _scores(self, piece: Piece) -> dict[str, Any] | None:
        return chat_logprobs(self.names, piece.scored, self.body.top_logprobs or 0) if self.body.logprobs else None
