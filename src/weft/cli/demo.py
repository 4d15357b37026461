"""`weft demo`: a small language model learns Python's own documentation, then shows what it learned."""

from __future__ import annotations

import builtins
import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.cli.terminal import bars, console, print_json, progress
from weft.foundation.errors import WeftError
from weft.foundation.seeds import generator
from weft.models.build import build
from weft.models.presets import preset
from weft.parts.masks import Causal

SEED = 0
LENGTH, BATCH, LAYERS, RATE = 96, 8, 2, 3e-3
STEPS_A_SECOND = 20
PROMPT, QUESTION, CONTINUATION = "The value of ", "This is a functio", 240
LONGEST = 24 * 3600

Report = Callable[[float, str], None]


@dataclass(frozen=True)
class Lesson:
    """A trained model; losses on text that it never saw, in nats a byte."""

    model: nn.Module
    loss_first: float
    loss_last: float
    steps: int
    seconds: float


def run_demo(seconds: float, as_json: bool) -> None:
    """Train for at most `seconds`, then print what the model writes and expects."""
    if not 0 < seconds <= LONGEST:
        raise WeftError(f"{seconds:g} seconds of training: choose more than 0 and at most {LONGEST}")
    learning, held = documentation()
    with one_thread():
        with progress("training") as report:
            lesson = learn(learning, held, seconds, max(1, round(STEPS_A_SECOND * seconds)), report)
        text, difference = continue_text(lesson.model, PROMPT, CONTINUATION)
        expected = next_bytes(lesson.model, QUESTION)
    if as_json:
        names = ("loss_first", "loss_last", "steps", "seconds")
        print_json({**{name: getattr(lesson, name) for name in names}, "text": text})
        return
    _print_lesson(lesson, text, difference, expected)


def _print_lesson(lesson: Lesson, text: str, difference: float, expected: list[tuple[str, float]]) -> None:
    out = console()
    size = sum(p.numel() for p in lesson.model.parameters())
    out.print(
        f"A decoder of {size:,} parameters read Python's documentation as bytes for {lesson.seconds:.0f} s "
        f"({lesson.steps} steps).\nLoss on text it never saw: {lesson.loss_first:.2f} -> {lesson.loss_last:.2f} "
        "nats a byte (guessing: 5.55).\n"
    )
    out.print(f"[bold]It continues {PROMPT!r}[/bold]")
    out.print(text, markup=False)
    out.print(f"[dim]Cached decoding against one full forward: logits differ by {difference:.0e} at most.[/dim]\n")
    out.print(f"[bold]The next byte after {QUESTION!r}[/bold]")
    out.print(bars(expected), "", markup=False, sep="\n")
    out.print("[bold]Who may look at whom: queries down, keys across[/bold]")
    out.print(Causal().text(), "", markup=False, sep="\n")
    out.print("[bold]What next[/bold]")
    out.print("  weft show gpt2                          what a larger model is made of")
    out.print("  weft show gpt3-175b --length 100000     why attention weights are never stored")
    out.print("  weft laws nano-gpt                      proof that it does not look ahead, and 21 laws more")


def documentation() -> tuple[Tensor, Tensor]:
    """(to learn from, held out): the language reference of this Python as bytes; every twelfth topic is held out."""
    try:
        from pydoc_data.topics import topics

        texts = [topics[name] for name in sorted(topics)]
    except ImportError:
        texts = _docstrings()
    held = "\n\n".join(texts[::12])
    rest = "\n\n".join(text for index, text in enumerate(texts) if index % 12)
    return _as_bytes(rest), _as_bytes(held)


def _docstrings() -> list[str]:
    """What every Python has: the words on its built-in types and their methods."""
    found = [value for _, value in sorted(vars(builtins).items()) if isinstance(value, type)]
    members = [getattr(kind, name, None) for kind in found for name in sorted(vars(kind))]
    return list(dict.fromkeys(filter(None, map(inspect.getdoc, [*found, *members]))))


def _as_bytes(text: str) -> Tensor:
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).long()


@contextmanager
def one_thread() -> Iterator[None]:
    """Products this small are done before a second thread has woken; under load, waiting for it costs most."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def learn(learning: Tensor, held: Tensor, seconds: float, steps: int, report: Report) -> Lesson:
    """AdamW on random pieces of text, with the rate falling to 0 as steps or seconds run out, whichever comes first."""
    model = build(preset("nano-gpt").replace(layers=LAYERS, length=LENGTH), seed=SEED)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    pieces = generator(SEED, "pieces")
    first = held_out_loss(model, held)
    start, step, done = time.perf_counter(), 0, 0.0
    while done < 1:
        for group in optimiser.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / 20) * (1 - done)
        at = torch.randint(len(learning) - LENGTH, (BATCH, 1), generator=pieces) + torch.arange(LENGTH + 1)
        loss = byte_loss(model, learning[at])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        step += 1
        done = min(1.0, max(step / steps, (time.perf_counter() - start) / seconds))
        report(done, f"step {step}, loss {loss.item():.2f}")
    elapsed = time.perf_counter() - start
    return Lesson(model, first, held_out_loss(model, held), step, elapsed)


def byte_loss(model: nn.Module, text: Tensor) -> Tensor:
    """Mean cross-entropy of each next byte, in nats; text [B, N + 1]."""
    return F.cross_entropy(model(text[:, :-1]).logits.flatten(0, 1), text[:, 1:].flatten())


@torch.no_grad()
def held_out_loss(model: nn.Module, held: Tensor, pieces: int = 64) -> float:
    """On pieces spread evenly over the held-out text."""
    at = torch.linspace(0, len(held) - LENGTH - 1, pieces).long()[:, None] + torch.arange(LENGTH + 1)
    return byte_loss(model, held[at]).item()


@torch.no_grad()
def continue_text(model: nn.Module, prompt: str, length: int, temperature: float = 0.6) -> tuple[str, float]:
    """(prompt and continuation, largest difference of cached logits from a full forward), sampled with a state."""
    chance = generator(SEED, "continuation")
    tokens = _as_bytes(prompt)[None]
    state = model.make_state()  # type: ignore[operator]
    seen = [model(tokens, state=state).logits]
    for _ in range(length - 1):
        shares = (seen[-1][:, -1] / temperature).softmax(-1)
        new = torch.multinomial(shares, 1, generator=chance)
        tokens = torch.cat((tokens, new), 1)
        seen.append(model(new, state=state).logits)
    difference = (torch.cat(seen, 1) - model(tokens).logits).abs().max().item()
    return bytes(tokens[0].tolist()).decode(errors="replace"), difference


@torch.no_grad()
def next_bytes(model: nn.Module, prompt: str, count: int = 6) -> list[tuple[str, float]]:
    """The most likely next bytes with their probabilities."""
    shares, ids = model(_as_bytes(prompt)[None]).logits[0, -1].softmax(-1).topk(count)
    return [
        (repr(bytes([byte]).decode(errors="replace")), share)
        for byte, share in zip(ids.tolist(), shares.tolist(), strict=True)
    ]
