"""Options of generation that several commands share: each is defined once."""

from __future__ import annotations

from typing import Annotated, Any

import typer

Temperature = Annotated[float | None, typer.Option(help="Sampling temperature; 0 takes the most probable token.")]
TopK = Annotated[int | None, typer.Option(help="Sample among the k most probable tokens.")]
TopP = Annotated[
    float | None, typer.Option(help="Sample among the most probable tokens that reach this probability together.")
]
MinP = Annotated[float | None, typer.Option(help="Leave out tokens below this share of the highest probability.")]
MaxTokens = Annotated[int | None, typer.Option(help="Largest number of new tokens.")]
Seed = Annotated[int, typer.Option(help="Seed of sampling.")]
Repetition = Annotated[float, typer.Option(help="Repetition penalty: above 1, repeated tokens are less probable.")]
Stop = Annotated[list[str] | None, typer.Option(help="Text to stop before; repeatable.")]
Question = Annotated[str | None, typer.Option(help="What is asked about an image, of a run that answers questions.")]
Speculative = Annotated[
    bool | None,
    typer.Option(
        help="Speculative decoding by prompt lookup, the same text sooner where it repeats itself; on if left out, "
        "for one greedy text by a model of 20 million weights or more where the native step runs.",
        show_default=False,
    ),
]


def given_options(**options: Any) -> dict[str, Any]:
    """The options by name, without those that were left out: the task chooses them."""
    return {name: value for name, value in options.items() if value is not None}
