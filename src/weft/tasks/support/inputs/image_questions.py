"""Questions about images as inputs: how users give them, tables of them, and the simplest answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from weft.data.readers.captions import question_places
from weft.data.readers.files import DataError
from weft.data.readers.tables import TableOptions, open_table
from weft.foundation.errors import WeftError
from weft.foundation.spec import Tree
from weft.tasks.support.inputs.image_inputs import ImageInputs
from weft.tasks.support.inputs.input_rows import InputRows, expect_table
from weft.tasks.support.splits.captioned_images import Gallery

MOST_QUESTIONS = 1000  # whose commonest answers a run keeps


@dataclass(frozen=True)
class AskedImage:
    """The path of an image, and what is asked about it; "" where a caption is wanted."""

    image: str
    question: str = ""


class QuestionInputs(ImageInputs):
    """What a task inherits whose inputs are images, with a question each where it learned from such."""

    takes_questions: bool

    def asked_image(self, given: Any, question: str | None) -> AskedImage:
        """An input of `predict`: a path, with a `question` for all; or {"image": path, "question": text}."""
        if isinstance(given, Mapping):
            if "image" not in given:
                raise WeftError(
                    f"an input with {', '.join(map(str, given))[:80]} has no image: give image and question"
                )
            given, question = given["image"], given.get("question", question)
        if self.takes_questions and not (question or "").strip():
            raise WeftError(
                f"this run answers questions about images, and none is asked about {given}: "
                'add one, such as --question "what color is it?"'
            )
        return AskedImage(str(given), question or "" if self.takes_questions else "")

    def expect_kind(self, gallery: Gallery) -> None:
        """Refuse questions for a run that describes images, and captions for one that answers."""
        if bool(gallery.questions) != self.takes_questions:
            raise DataError(
                "this run answers questions, but the data are captions: give image, question and answer"
                if self.takes_questions
                else "this run describes images, but the data are questions: give image and text"
            )

    def open_rows(self, path: Path, options: TableOptions) -> InputRows:
        """A table of images, with a column of questions where the run answers such."""
        if not self.takes_questions:
            return super().open_rows(path, options)
        expect_table(path)
        table = open_table(path, options if options.columns else replace(options, header="yes"))
        image, question = table.places(options.columns[:2]) if options.columns else question_places(table, False)
        return InputRows(
            table,
            (image, question),
            lambda cells: {"image": str(path.parent / cells[0].strip()), "question": cells[1]},
            next((place for place, name in enumerate(table.names) if name.lower() == "answer"), None),
        )


def commonest_answers(train: Gallery) -> Tree:
    """The commonest text of all, and for each of the most frequent questions what it is answered with most often."""
    overall = Counter(text for _, text in train.captions)
    found: Tree = {"commonest": overall.most_common(1)[0][0]}
    each: dict[str, Counter[str]] = {}
    for (_, text), question in zip(train.captions, train.questions, strict=False):
        each.setdefault(question.lower(), Counter())[text] += 1
    if each:
        frequent = sorted(each, key=lambda question: -each[question].total())[:MOST_QUESTIONS]
        found["by_question"] = {question: each[question].most_common(1)[0][0] for question in frequent}
    return found


def usual_answers(facts: Tree, asked: Gallery) -> list[str]:
    """What is said without looking: to each question the commonest answer to it, to new ones the commonest of all."""
    each = facts.get("by_question", {})
    return [each.get(question.lower(), facts["commonest"]) for _, question in asked.asked]
