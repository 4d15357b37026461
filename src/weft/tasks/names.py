"""The names of all tasks and the classes that do them; nothing heavy is read for these."""

from __future__ import annotations

TASKS = {
    "text": "TextTask",
    "translation": "TranslationTask",
    "classification": "ClassificationTask",
    "tagging": "TaggingTask",
    "images": "ImagesTask",
    "captions": "CaptionsTask",
    "forecast": "ForecastTask",
    "sequences": "SequencesTask",
}
# Uses that models are imported for, and not trained.
IMPORTED = {"embedding": "EmbeddingTask"}
