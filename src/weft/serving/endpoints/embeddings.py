"""/v1/embeddings: vectors of texts or token ids, as numbers or as little-endian float32 in base64."""

from __future__ import annotations

import base64
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
from fastapi import APIRouter, Request
from starlette.responses import Response

from weft.data.readers.images import IMAGE_SUFFIXES
from weft.foundation.errors import WeftError
from weft.serving.answers.events import answer_while_connected
from weft.serving.endpoints.documented import answers_of
from weft.serving.endpoints.tasks import find_run
from weft.serving.requests.embeddings import EmbeddingBody
from weft.serving.requests.uploads import write_image
from weft.serving.served.job_worker import JobWorker
from weft.serving.served.served_runs import ServedRun
from weft.serving.state import record_of, state_of
from weft.serving.web.errors import JsonAnswer, invalid_request
from weft.tasks.imported.embedding import EmbeddingTask
from weft.tasks.support.language.imported_text import ImportedTextTask

router = APIRouter(tags=["OpenAI"])
PATH = "/v1/embeddings"
LONGEST_TOKEN = 128
Vector = tuple[list[float], int]  # and the number of tokens that were read


@router.post(PATH, responses=answers_of("embeddings"))
async def embeddings(body: EmbeddingBody, request: Request) -> Response:
    """A vector of each text, each computed by itself; of images too, as data URLs, by runs that read them."""
    state = state_of(request)
    run = find_run(state, body.model, PATH)
    width = int(cast(Any, run.run.module.spec).width)
    if body.dimensions not in (None, width):
        raise invalid_request(f"this model gives {width} dimensions: leave dimensions out", "dimensions")
    most = state.settings.limits.inputs * 8
    if len(body.input) > most:
        raise invalid_request(f"{len(body.input)} inputs, but this server takes at most {most} per request", "input")
    record_of(request).more |= {"model": run.name, "inputs": len(body.input)}
    assert isinstance(run.worker, JobWorker)
    work = run.worker.answer_each(body.input, lambda one: embed(run, one))
    found = await answer_while_connected(request, work)
    total = sum(count for _, count in found)
    state.metrics.count_tokens(run.name, total, 0)
    record_of(request).more["prompt_tokens"] = total
    data = [
        {"object": "embedding", "index": index, "embedding": written(vector, body.encoding_format)}
        for index, (vector, _) in enumerate(found)
    ]
    usage = {"prompt_tokens": total, "total_tokens": total}
    return JsonAnswer({"object": "list", "data": data, "model": run.name, "usage": usage})


def written(vector: list[float], encoding: str) -> list[float] | str:
    """A vector as the client asked for it."""
    if encoding == "float":
        return vector
    return base64.b64encode(np.asarray(vector, dtype="<f4").tobytes()).decode()


def embed(run: ServedRun, given: Any) -> Vector:
    """The vector of one input, in the run's own thread."""
    task = run.run.task
    assert isinstance(task, ImportedTextTask)
    try:
        if isinstance(given, str) and task.takes_images and given[:11].lower() == "data:image/":
            with TemporaryDirectory(prefix="weft-") as folder:
                path = write_image(given, Path(folder), "input")
                return run.run.embed([path])[0].tolist(), 0
        ids = _ids(task, given)
        if isinstance(given, str):
            if task.takes_images and given.lower().endswith(IMAGE_SUFFIXES):  # it would be read as a file's name
                given += " "
            return run.run.embed([given])[0].tolist(), len(ids)
        if not isinstance(task, EmbeddingTask):
            raise invalid_request("this model takes texts, not token ids", "input")
        return task.embed_rows(run.run.module, [ids])[0].tolist(), len(ids)
    except WeftError as error:
        raise invalid_request(str(error), "input") from None


def _ids(task: ImportedTextTask, given: str | tuple[int, ...]) -> list[int]:
    """A text as tokens with their frame, refused where it would be cut."""
    if isinstance(given, str):
        if len(given) > LONGEST_TOKEN * task.length:
            raise _too_long(task, f"{len(given):,} characters")
        ids = task.tokenizer.encode(given)
    else:
        ids = list(given)
        if max(ids) >= task.tokenizer.vocabulary:
            raise invalid_request(
                f"token {max(ids)}, but the vocabulary has 0 to {task.tokenizer.vocabulary - 1}: send texts, or the "
                "tokens of this model",
                "input",
            )
    framed = task.frame.put(ids)
    if len(framed) > task.length:
        raise _too_long(task, f"{len(framed)} tokens")
    return framed


def _too_long(task: ImportedTextTask, what: str) -> Exception:
    return invalid_request(
        f"an input of {what}, but this model reads {task.length} tokens: cut it", "input", "context_length_exceeded"
    )
