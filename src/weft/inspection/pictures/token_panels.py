"""What the pictures of encoders share: the tokens that were read, colored by attention, with their answers."""

from __future__ import annotations

from typing import Any

from weft.data.tokenizers.lexicon import split_words
from weft.figures.panels.attention import AttentionPanel
from weft.figures.panels.panel import Panel
from weft.inspection.pictures.kinds.model import has_effects, measure_heads
from weft.inspection.pictures.labels import input_labels
from weft.inspection.pictures.look_options import LookOptions
from weft.inspection.pictures.observation import Observation
from weft.inspection.pictures.panels import Panels, attention_panel, odd_tag, shares_panel, tokens_panel
from weft.inspection.recording.watch import Seen

MOST_TRIED = 64  # heads that are switched off one by one to find the one that decides


def read_tokens(run: Any, seen: Seen, text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(what the model read of a text, what of it is left out)."""
    tokenizer, most = run.task.tokenizer, run.module.spec.length
    whole = split_words(text) or [""] if tokenizer is None else tokenizer.encode(text)
    words = whole[:most] if tokenizer is None else input_labels(run, seen.inputs())
    left_out = (f"All but the first {most:,} of {len(whole):,} tokens.",) if len(whole) > len(words) else ()
    return tuple(map(str, words)), left_out


def token_panels(observation: Observation, options: LookOptions) -> Panels:
    """Tokens colored by attention, what the model says of the whole, and who looks at whom."""
    panels: list[Panel] = [tokens_panel(observation, options)]
    if observation.shares:
        panels.append(shares_panel(observation))
    focus = odd_tag(observation)
    attention, left_out = attention_panel(observation, "self", options, focus, room=1)
    if focus is not None and not options.names_a_place and has_effects(observation):
        attention = _with_deciding_head(observation, options, attention)
    return Panels([*panels, attention], left_out)


def _with_deciding_head(observation: Observation, options: LookOptions, panel: AttentionPanel) -> AttentionPanel:
    """The head shown first is the last layer's that the answer needs most, where there are few enough to try all."""
    if len(panel.layers.options) * len(panel.heads.options) > MOST_TRIED or len(panel.heads.options) < 2:
        return panel
    layer, head = measure_heads(observation, options).deciding()
    return panel.choose(layer, panel.heads.options.index(str(head)))
