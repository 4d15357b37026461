"""/v1/tasks/...: a path for every task; inputs are answered one by one, so that none depends on its company."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from weft.foundation.errors import LengthError, WeftError
from weft.inference.decoding.conditioning import declared
from weft.serving.answers.events import answer_while_connected
from weft.serving.endpoints import task_inputs
from weft.serving.endpoints.documented import answers_of
from weft.serving.endpoints.task_paths import PATHS
from weft.serving.requests.tasks import (
    CaptionBody,
    FillMaskBody,
    ForecastBody,
    ImageBody,
    ScoreBody,
    SequenceBody,
    TagBody,
    TaskBody,
    TextLabelBody,
    TranscribeBody,
    TranslateBody,
)
from weft.serving.served.job_worker import JobWorker
from weft.serving.served.served_runs import ServedRun
from weft.serving.settings import Limits
from weft.serving.state import ServerState, record_of, state_of
from weft.serving.web.errors import JsonAnswer, invalid_request
from weft.tasks.support.inputs.input_rows import takes_texts
from weft.tasks.task import Answer

router = APIRouter(tags=["tasks"], prefix="/v1/tasks")
MakeInput = Callable[[Any, Path], Any]
TASK = answers_of("task")


def find_run(state: ServerState, name: str, path: str) -> ServedRun:
    """The run of a name, refused if this path is not for its task; without a name the only one that fits."""
    fits = [one for one in state.runs.by_name.values() if path in PATHS.get(one.task, ())]
    if not name and len(fits) == 1:
        return fits[0]
    found = state.runs.find(name)
    if found not in fits:
        paths = ", ".join(PATHS.get(found.task, ())) or "/v1/completions"
        raise invalid_request(
            f"model {found.name} is a run of task {found.task}: it answers at {paths}", "model", "wrong_task"
        )
    return found


async def answer_task(
    request: Request,
    body: TaskBody,
    inputs: Sequence[Any],
    make: MakeInput,
    told: Mapping[str, bool],
    options: Mapping[str, Any] | None = None,
) -> Response:
    """The answers to all inputs; `told`: what of an answer is given beside its output."""
    state = state_of(request)
    run = find_run(state, body.model, request.scope["path"])
    most = state.settings.limits.inputs
    if len(inputs) > most:
        raise invalid_request(f"{len(inputs)} inputs, but this server takes at most {most} per request", "input")
    record_of(request).more |= {"model": run.name, "inputs": len(inputs)}
    assert isinstance(run.worker, JobWorker)
    how = {"top": 0, **(options or {})} if run.run.task.generates else dict(options or {})
    expect_few_tokens(run, state.settings.limits, how.get("max_tokens"))
    work = run.worker.answer_each(inputs, lambda one: answer_one(run, one, make, how))
    found = await answer_while_connected(request, work)
    names = [name for name, wanted in told.items() if wanted]
    trees = [
        {"index": index, "output": answer.output, **{name: answer.more[name] for name in names if name in answer.more}}
        for index, answers in enumerate(found)
        for answer in answers
    ]
    return JsonAnswer({"object": "list", "model": run.name, "answers": trees})


def expect_few_tokens(run: ServedRun, limits: Limits, wanted: int | None) -> None:
    """Refuse more new tokens than this server or the model gives: one input is written to its end, whoever leaves."""
    if wanted is None:
        return
    most = min((one for one in (limits.tokens, declared(run.run.module).length) if one is not None), default=wanted)
    if wanted > most:
        raise invalid_request(f"{wanted} new tokens, but at most {most} are given", "max_tokens", "too_many_tokens")


def answer_one(run: ServedRun, given: Any, make: MakeInput, options: Mapping[str, Any]) -> list[Answer]:
    """The answers to one input, in the run's own thread; what is wrong with it is said without any path."""
    with TemporaryDirectory(prefix="weft-") as folder:
        value = make(given, Path(folder))
        try:
            return run.run.answer([value], **options)
        except WeftError as error:
            message = str(error).replace(f"{folder}/", "").replace(folder, "")
            code = "context_length_exceeded" if isinstance(error, LengthError) else None
            raise invalid_request(message, "input", code) from None


@router.post("/translate", responses=TASK)
async def translate(body: TranslateBody, request: Request) -> Response:
    """Translate texts; on request with the alignment of their tokens to those of the source."""
    told = {
        "tokens": body.tokens or body.alignment,
        "source_tokens": body.alignment,
        "alignment": body.alignment,
        "confidence": body.confidence,
        "probabilities": body.probabilities is not None,
    }
    options = {**body.options, "top": body.probabilities or 0}
    return await answer_task(request, body, task_inputs.as_list(body.input), task_inputs.text_input, told, options)


@router.post("/classify", responses=TASK)
async def classify(body: TextLabelBody, request: Request) -> Response:
    """The class of each text, or of each node of a graph."""
    told = {"probabilities": body.probabilities, "tokens": body.tokens}
    run = find_run(state_of(request), body.model, request.scope["path"])
    make = task_inputs.text_input if takes_texts(run.run.task) else task_inputs.graph_input
    return await answer_task(request, body, task_inputs.as_list(body.input), make, told)


@router.post("/tag", responses=TASK)
async def tag(body: TagBody, request: Request) -> Response:
    """The tags of the words of each sentence."""
    told = {"probabilities": body.probabilities, "tokens": body.tokens}
    return await answer_task(request, body, task_inputs.as_list(body.input), task_inputs.words_input, told)


@router.post("/image", responses=TASK)
async def image(body: ImageBody, request: Request) -> Response:
    """The class of each image; or the label that fits it best, where labels are given."""
    options = {"labels": tuple(body.labels)} if body.labels else {}
    told = {"probabilities": body.probabilities}
    return await answer_task(request, body, task_inputs.as_list(body.input), task_inputs.image_input, told, options)


@router.post("/caption", responses=TASK)
async def caption(body: CaptionBody, request: Request) -> Response:
    """What each image shows, or the answer to a question about it."""
    options = {**body.options, **({} if body.question is None else {"question": body.question})}
    told = {"tokens": body.tokens or body.alignment, "alignment": body.alignment, "confidence": body.confidence}
    return await answer_task(request, body, task_inputs.as_list(body.input), task_inputs.image_input, told, options)


@router.post("/forecast", responses=TASK)
async def forecast(body: ForecastBody, request: Request) -> Response:
    """What follows each history, by column; with the ends of its band on request."""
    told = {"low": body.bands, "high": body.bands}
    return await answer_task(request, body, task_inputs.several(body.input, 2), task_inputs.series_input, told)


@router.post("/sequence", responses=TASK)
async def sequence(body: SequenceBody, request: Request) -> Response:
    """The class of each sequence of vectors, or of each sound."""
    told = {"probabilities": body.probabilities}
    return await answer_task(request, body, _sequences(body.input), task_inputs.sequence_input, told)


@router.post("/transcribe", responses=TASK)
async def transcribe(body: TranscribeBody, request: Request) -> Response:
    """What is said in each sound."""
    told = {"tokens": body.tokens}
    return await answer_task(request, body, _sequences(body.input), task_inputs.sequence_input, told, body.options)


@router.post("/fill-mask", responses=TASK)
async def fill_mask(body: FillMaskBody, request: Request) -> Response:
    """Each text with its masks filled in."""
    told = {"probabilities": body.probabilities, "tokens": body.probabilities}
    return await answer_task(
        request, body, task_inputs.as_list(body.input), task_inputs.text_input, told, {"top": body.top}
    )


@router.post("/score", responses=TASK)
async def score(body: ScoreBody, request: Request) -> Response:
    """The score of each text or pair of texts."""
    return await answer_task(request, body, task_inputs.as_list(body.input), task_inputs.pair_input, {})


def _sequences(given: Any) -> list[Any]:
    """Sounds as strings, or sequences as rows of numbers."""
    strings = isinstance(given, str) or (isinstance(given, list) and any(isinstance(one, str) for one in given))
    return task_inputs.as_list(given) if strings else task_inputs.several(given, 2)
