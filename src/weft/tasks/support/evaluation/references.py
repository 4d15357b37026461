"""A model beside simple methods: which of them it loses to, and that in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.data.samples.sample_definition import LOWER_IS_BETTER


def better(metric: str, one: float, other: float) -> bool:
    """Whether the first value of a metric is better than the second."""
    return one < other if metric in LOWER_IS_BETTER else one > other


def losing_to(metric: str, value: float, references: Mapping[str, float]) -> list[str]:
    """The simple methods that the model is not better than."""
    return [name for name, reached in references.items() if not better(metric, value, reached)]


def describe_standing(
    metric: str, value: float, references: Mapping[str, float], ends: Sequence[float] | None = None
) -> list[str]:
    """One sentence per simple method that the model loses to, or that its interval does not tell it from."""
    title, sentences = metric.replace("_", " "), []
    for name, reached in references.items():
        if not better(metric, value, reached):
            word = "LOSES TO" if reached != value else "IS NO BETTER THAN"
            sentences.append(f"the model {word} a simple method, {name}: {title} {value:.4f} against {reached:.4f}")
        elif ends is not None and ends[0] <= reached <= ends[1]:
            sentences.append(
                f"the model is hardly better than a simple method, {name}: {title} {value:.4f} against {reached:.4f}, "
                f"which lies within the model's interval ({ends[0]:.4f} to {ends[1]:.4f})"
            )
    return sentences
