"""The texts of one request while they are generated: submitted together, read as they come, ended together."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from starlette.requests import Request

from weft.foundation.errors import LengthError, WeftError
from weft.foundation.seeds import derive
from weft.inference.decoding.detokenizer import Detokenizer
from weft.inference.decoding.generated import GeneratedToken
from weft.inference.engine.engine import EngineRequest
from weft.serving.answers.written_text import Piece, ScoredToken, WrittenText, score_prompt
from weft.serving.requests.sampling_fields import SamplingBody
from weft.serving.served.served_runs import ServedText
from weft.serving.served.tickets import Ticket
from weft.serving.state import client_of, record_of, state_of
from weft.serving.web.errors import invalid_request


@dataclass(frozen=True)
class TextPlan:
    """Prompts of a request, and what is to be done with each; `echoes`: their texts, where they are given back.

    `stops`: ids, and strings besides those of the request. `top`: likeliest tokens of each place.
    """

    prompts: Sequence[Sequence[int]]
    most_tokens: int
    stops: tuple[Sequence[int], Sequence[str]]
    scores: bool = False
    top: int = 0
    echoes: Sequence[str] | None = None


class Generation:
    """All texts of a request: `index` = prompt x n + sample. Iterating gives (index, piece) as they come."""

    def __init__(self, request: Request, run: ServedText, body: SamplingBody, plan: TextPlan) -> None:
        self.run, self.plan, self.n = run, plan, body.n
        self.metrics, self.record = state_of(request).metrics, record_of(request)
        self.began = time.monotonic()
        self.written = [
            WrittenText(run, prompt, plan.stops[0], plan.scores) for prompt in plan.prompts for _ in range(body.n)
        ]
        try:
            self.tickets = run.worker.submit(_engine_requests(run, body, plan, client_of(request).name))
        except LengthError as error:
            raise invalid_request(str(error), "messages", "context_length_exceeded") from None
        except WeftError as error:
            raise invalid_request(str(error)) from None
        self.record.more |= {"model": run.name, "prompt_tokens": self.prompt_tokens, "texts": len(self.tickets)}

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts, each counted once."""
        return sum(map(len, self.plan.prompts))

    @property
    def completion_tokens(self) -> int:
        """Generated so far, tokens that end a text included."""
        return sum(one.count for one in self.written)

    @property
    def usage(self) -> dict[str, int]:
        """As clients read it."""
        prompt, generated = self.prompt_tokens, self.completion_tokens
        return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}

    async def pieces(self) -> AsyncGenerator[tuple[int, Piece]]:
        """(index, piece) of all texts as they come, an echoed prompt with the first. Leaving it ends all texts."""
        waits = {asyncio.ensure_future(ticket.next()): n for n, ticket in enumerate(self.tickets)}
        last = [0.0] * len(self.tickets)
        try:
            while waits:
                done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                for future in sorted(done, key=waits.__getitem__):
                    n = waits.pop(future)
                    piece = self._piece(n, future.result())
                    self._time(last, n, self.written[n].count)
                    if piece.finish_reason is not None:
                        self._finish(self.tickets[n])
                    else:
                        waits[asyncio.ensure_future(self.tickets[n].next())] = n
                    if not piece.empty:
                        yield n, piece
        finally:
            for future in waits:
                if not future.cancel() and not future.cancelled():
                    future.exception()  # one failure is told; of others that nobody asks for, asyncio would complain
            self.close()

    async def texts(self) -> list[Piece]:
        """All texts, each whole."""
        found = [Piece() for _ in self.written]
        async for index, piece in self.pieces():
            found[index].add(piece)
        return found

    def _piece(self, n: int, tokens: Sequence[GeneratedToken]) -> Piece:
        """What these tokens add to text n; the first ones come after the prompt, if it is echoed."""
        written = self.written[n]
        begins = written.count == 0 and self.plan.echoes is not None
        text, scored = self._echo(n) if begins else ("", [])
        piece = written.take(tokens) if tokens else Piece(finish_reason="length")
        return Piece(text + piece.text, [*scored, *piece.scored], piece.finish_reason)

    def _echo(self, n: int) -> tuple[str, list[ScoredToken]]:
        """The prompt of text n, with the scores of its tokens where they are asked for."""
        assert self.plan.echoes is not None
        text = self.plan.echoes[n // self.n]
        if not self.plan.scores:
            return text, []
        scored, length = score_prompt(self.run, self.tickets[n].prompt_scores)
        self.written[n].certain = self.written[n].length = length
        return text, scored

    def _time(self, last: list[float], n: int, count: int) -> None:
        now = time.monotonic()
        if self.record.first_token is None:
            self.record.first_token = self.record.seconds
            self.metrics.first_token.add(self.record.first_token, model=self.run.name)
        if count > 1 and last[n]:
            self.metrics.between.add(now - last[n], model=self.run.name)
        last[n] = now

    def _finish(self, ticket: Ticket) -> None:
        self.run.worker.took(time.monotonic() - self.began)
        ticket.close()

    def close(self) -> None:
        """Nobody reads on: slots become free, and what was done is counted. Once."""
        if not self.tickets:
            return
        for ticket in self.tickets:
            ticket.close()
        self.tickets = []
        self.record.more["completion_tokens"] = self.completion_tokens
        self.metrics.count_tokens(self.run.name, self.prompt_tokens, self.completion_tokens)


def _engine_requests(run: ServedText, body: SamplingBody, plan: TextPlan, client: str) -> list[EngineRequest]:
    """One per text. Sample 0 has the request's own seed, the others have seeds derived from it and their number."""
    seed = secrets.randbits(62) if body.seed is None else body.seed
    ids, strings = plan.stops
    return [
        EngineRequest(
            prompt,
            body.sampling,
            max_tokens=plan.most_tokens,
            stop=ids,
            seed=seed if sample == 0 else derive(seed, "sample", sample),
            detokenizer=Detokenizer(run.tokenizer, (*body.stop, *strings)),
            top=plan.top,
            score_prompt=plan.echoes is not None and (plan.scores or plan.most_tokens == 0),
            cache_key=client,
        )
        for prompt in plan.prompts
        for sample in range(body.n)
    ]
