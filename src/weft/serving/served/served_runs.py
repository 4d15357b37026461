"""The runs of a server: each under a name, with a worker; language models with what turns requests into prompts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from weft.data.tokenizers.token_table import TokenBytes
from weft.foundation.errors import WeftError
from weft.inference.engine.engine import Engine
from weft.runs.run import Run
from weft.serving.served.job_worker import JobWorker
from weft.serving.served.text_worker import TextWorker
from weft.serving.settings import EngineSettings
from weft.serving.web.errors import ApiError, invalid_request
from weft.tasks.support.language.chat_prompts import ChatPrompts

Found = TypeVar("Found")
PREPARING = 2  # threads that tokenize prompts and run templates


@dataclass
class ServedRun:
    """A run under its name."""

    name: str
    run: Run
    worker: TextWorker | JobWorker
    created: int

    @property
    def task(self) -> str:
        """Which kind of run it is."""
        return self.run.task.name


class ServedText(ServedRun):
    """A language model, with what its requests need."""

    worker: TextWorker

    def __init__(self, name: str, run: Run, settings: EngineSettings) -> None:
        def make_engine() -> Engine:
            return Engine(
                run.module,
                slots=settings.slots,
                queue_size=settings.slots + settings.queue,
                prefill_tokens=settings.prefill_tokens,
                length=settings.length,
                prefixes=settings.prefixes,
            )

        super().__init__(name, run, TextWorker(make_engine, settings.slots, settings.queue), int(time.time()))
        assert run.tokenizer is not None
        task = cast(Any, run.task)
        self.tokenizer, self.length = run.tokenizer, self.worker.engine.length
        self.exact = self.worker.engine.exact  # log-probabilities do not depend on other traffic
        self.vocabulary = int(self.worker.engine.declaration.vocabulary or 0)
        self.stops: tuple[int, ...] = task.prompt_format.stopping(self.tokenizer)
        self.prompt_ids: Callable[[str], list[int]] = task.prompt_ids
        self.bytes = TokenBytes(self.tokenizer)
        template = settings.chat_template
        can_chat = template is not None or task.prompt_format.can_chat(self.tokenizer)
        self.chat = ChatPrompts(self.tokenizer, task.prompt_format, template) if can_chat else None
        self.chat_stops = self.stops, ()
        if self.chat is not None:
            self.chat_stops = self.chat.stops()  # type: ignore[assignment]

    def expect_tokens(self, prompt: Sequence[int], param: str) -> None:
        """Refuse ids that the vocabulary has not."""
        if max(prompt) >= self.vocabulary:
            raise invalid_request(
                f"token {max(prompt)}, but the vocabulary of {self.name} has 0 to {self.vocabulary - 1}", param
            )

    def expect_room(self, prompt: Sequence[int], wanted: int, param: str) -> None:
        """Refuse a prompt that is too long for so many new tokens."""
        # The last token generated is never read.
        if len(prompt) + max(wanted, 1) - 1 > self.length:
            raise self.too_long(f"{len(prompt)} tokens and {wanted} new ones were asked for", param)

    def too_long(self, what: str, param: str) -> ApiError:
        """The error that clients know by its code."""
        message = f"this model reads at most {self.length} tokens, but {what}: shorten the prompt or ask for fewer"
        return invalid_request(message, param, "context_length_exceeded")


class ServedRuns:
    """Runs by name, and the threads that prepare prompts for all of them."""

    def __init__(self, served: Sequence[ServedRun]) -> None:
        self.by_name = {one.name: one for one in served}
        self._preparing = ThreadPoolExecutor(PREPARING, "weft prompts")

    def find(self, name: str) -> ServedRun:
        """The run of a name; the only one, where none is given."""
        if not name and len(self.by_name) == 1:
            return next(iter(self.by_name.values()))
        if not name:
            raise invalid_request(f"model is needed, one of {', '.join(self.by_name)}", "model")
        if name not in self.by_name:
            known = ", ".join(self.by_name)
            raise ApiError(404, f"there is no model {name!r:.80}: choose from {known}", "model", "model_not_found")
        return self.by_name[name]

    def find_text(self, name: str) -> ServedText:
        """The language model of a name; the only one, where none is given."""
        texts = [one for one in self.by_name.values() if isinstance(one, ServedText)]
        found = texts[0] if not name and len(texts) == 1 else self.find(name)
        if not isinstance(found, ServedText):
            raise invalid_request(
                f"model {found.name} is a run of task {found.task}, not a language model: see /v1/models for its path",
                "model",
                "wrong_task",
            )
        return found

    def start(self) -> None:
        """Called in the event loop."""
        for one in self.by_name.values():
            one.worker.start()

    @property
    def ready(self) -> bool:
        """Whether all would answer."""
        return all(one.worker.ready for one in self.by_name.values())

    async def prepare(self, work: Callable[[], Found]) -> Found:
        """What a function of tokenizers and templates gives, off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._preparing, work)

    def interrupt(self, reason: str) -> None:
        """End all that runs."""
        for one in self.by_name.values():
            one.worker.interrupt(reason)

    def close(self) -> None:
        """End all threads."""
        self.interrupt("the server is closed")
        self._preparing.shutdown(cancel_futures=True)
        for one in self.by_name.values():
            one.worker.close()


def serve_run(name: str, run: Run, settings: EngineSettings) -> ServedRun:
    """A run with the worker that suits its task."""
    if run.task.continues_input:
        return ServedText(name, run, settings)
    return ServedRun(name, run, JobWorker(settings.queue), int(time.time()))


def name_runs(given: Sequence[str]) -> list[tuple[str, str]]:
    """(name, folder) of RUN or NAME=RUN; a folder's own name is the run's."""
    pairs: list[tuple[str, str]] = []
    for one in given:
        name, equals, folder = one.partition("=")
        if not equals:
            name, folder = one.rstrip("/").rpartition("/")[2].removeprefix("sample:"), one
        if not name or not folder:
            raise WeftError(f"{one!r:.80} names no run: give a folder, or NAME=FOLDER")
        if any(name == known for known, _ in pairs):
            raise WeftError(f"two runs are called {name}: give one of them another name, as NAME={folder}")
        pairs.append((name, folder))
    return pairs
