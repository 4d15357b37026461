"""Which paths answer for runs of which task."""

from __future__ import annotations

from weft.serving.served.served_runs import ServedRun, ServedText

PATHS: dict[str, list[str]] = {
    "translation": ["/v1/tasks/translate"],
    "classification": ["/v1/tasks/classify"],
    "tagging": ["/v1/tasks/tag"],
    "images": ["/v1/tasks/image"],
    "captions": ["/v1/tasks/caption"],
    "forecast": ["/v1/tasks/forecast"],
    "sequences": ["/v1/tasks/sequence"],
    "transcription": ["/v1/tasks/transcribe"],
    "fill-mask": ["/v1/tasks/fill-mask"],
    "regression": ["/v1/tasks/score"],
    "embedding": ["/v1/embeddings"],
    "image-text-embedding": ["/v1/embeddings", "/v1/tasks/image"],
}


def paths_of(run: ServedRun) -> list[str]:
    """The paths that a run answers at."""
    if isinstance(run, ServedText):
        return ["/v1/completions", *(["/v1/chat/completions"] if run.chat is not None else [])]
    return PATHS.get(run.task, [])
