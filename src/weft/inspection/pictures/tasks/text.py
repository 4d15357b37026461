"""The picture of task text: who looks at whom, and what the model expects after each token."""

from __future__ import annotations

from typing import Any

import torch

from weft.inspection.pictures.inputs import LookInput, SampleExample
from weft.inspection.pictures.kinds.stream import next_panel
from weft.inspection.pictures.look_options import LookOptions
from weft.inspection.pictures.observation import Observation, shortened
from weft.inspection.pictures.panels import Panels, attention_panel
from weft.inspection.pictures.task_picture import TaskPicture
from weft.inspection.recording.watch import watch

PROMPT = 96  # characters of a sample's text


def observe_text(run: Any, given: LookInput, how: dict[str, Any]) -> Observation:
    """One forward over the prompt: every token's next one is in it."""
    tokenizer = run.task.tokenizer
    ids = run.task.prompt_ids(str(given.value))
    most = run.module.spec.length
    left_out: tuple[str, ...] = ()
    if len(ids) > most:
        left_out = (f"The first {len(ids) - most:,} of {len(ids):,} tokens: this model reads {most:,} at once.",)
        ids = ids[-most:]
    device = next(run.module.parameters()).device
    with watch(run) as seen, torch.inference_mode():
        run.module(torch.tensor([ids], device=device))
    pieces = tuple(tokenizer.pieces(ids))
    return Observation(seen, run.task.picture, shortened("".join(pieces)), pieces, left_out=left_out)


def text_picture(observation: Observation, options: LookOptions) -> Panels:
    """Lines, the matrix by layer and head, and the next token after each."""
    panel, left_out = attention_panel(observation, "self", options, room=1)
    return Panels([panel, next_panel(observation, options)], left_out)


def text_example(run: Any, chosen: SampleExample) -> LookInput:
    """Some characters of the held-out text; the next example begins where they end."""
    text, start = chosen.sample.validation, chosen.number * PROMPT
    chosen.expect(start < len(text))
    return LookInput(text[start : start + PROMPT], f"{chosen.sample.name}, character {start}")


PICTURE = TaskPicture("tokens", observe_text, text_picture, text_example, from_seen=True)
