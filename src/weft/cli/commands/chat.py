"""`weft chat`: a conversation with a run, on a terminal or line by line from a pipe."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.app import Device, Quantize, app
from weft.cli.environment import load_torch
from weft.cli.generation_options import (
    MaxTokens,
    MinP,
    Repetition,
    Seed,
    Speculative,
    Stop,
    Temperature,
    TopK,
    TopP,
    given_options,
)
from weft.foundation.errors import WeftError

if TYPE_CHECKING:
    from weft.tasks.support.language.conversation import Conversation

PROMPT = "> "
HELP = """\
/retry         another answer to the last question
/system TEXT   change the system prompt; without a text: none
/clear         forget the conversation
/save FILE     write the conversation as a line of JSON that `weft train text` reads
/help          this list
/quit          end; so do Ctrl-D, and Ctrl-C at the prompt (during an answer it stops the answer)
A message that begins with a slash is written with two."""


@app.command()
def chat(
    run: Annotated[Path, typer.Argument(help="Folder of a run of a language model.", metavar="RUN")],
    system: Annotated[str | None, typer.Option(help="System prompt: what the model is told first.")] = None,
    template: Annotated[
        str | None,
        typer.Option(
            help="Chat template for a model without one of its own: chatml, llama-3, zephyr, alpaca, plain, or a "
            "Jinja file."
        ),
    ] = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    max_tokens: MaxTokens = None,
    seed: Seed = 0,
    repetition: Repetition = 1.0,
    stop: Stop = None,
    speculative: Speculative = None,
    quantize: Quantize = None,
    device: Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON per turn.")] = False,
) -> None:
    """Chat with a language model, by its own chat template. Lines of stdin are what the user says; /help for more.

    \b
    Examples:
      weft chat runs/smollm --system "Answer in one sentence."
      weft chat runs/book --template plain --temperature 0.7
      printf 'Hello!\\nWhy?\\n' | weft chat runs/smollm --json
    """
    load_torch()
    from weft.runs.run import load

    how = given_options(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, max_tokens=max_tokens, seed=seed,
        repetition=repetition, stop=stop, speculative=speculative,
    )  # fmt: skip
    opened = load(run, device, quantize)  # type: ignore[arg-type]
    ChatLoop(opened.chat(system or None, template, **how), as_json).run()


class ChatLoop:
    """Reads what the user says and writes the answers, until the user ends it.

    Results go to stdout; notes, and errors on a terminal, go to stderr.
    """

    def __init__(self, conversation: Conversation, as_json: bool) -> None:
        self.conversation, self.as_json = conversation, as_json
        self.interactive = sys.stdin is not None and sys.stdin.isatty()
        self.noted = False
        self.commands: dict[str, Callable[[str], None]] = {
            "retry": lambda _: self._answer(self.conversation.retry()),
            "system": self._set_system,
            "clear": lambda _: self.conversation.clear(),
            "save": self._save,
            "help": lambda _: _note(HELP),
        }

    def run(self) -> None:
        """One line after the other."""
        if self.interactive:
            _note("/help lists commands, /quit ends")
        for line in self._lines():
            if line.strip() == "/quit":
                return
            try:
                self._take(line.strip())
            except WeftError as error:
                if not self.interactive:
                    raise
                _note(f"weft: {error}")

    def _lines(self) -> Iterator[str]:
        if not self.interactive:
            try:
                yield from sys.stdin or ()
            except UnicodeDecodeError:
                raise WeftError("stdin is not UTF-8 text: convert it first") from None
            return
        with suppress(ImportError):
            import readline  # noqa: F401  # lines can be edited and called back
        while True:
            try:
                yield self._input()
            except (EOFError, KeyboardInterrupt):
                _note("")
                return
            except UnicodeDecodeError:
                _note("weft: that was not UTF-8 text: type it again")

    def _input(self) -> str:
        if sys.stdout.isatty() and not self.as_json:
            return input(PROMPT)
        sys.stderr.write(PROMPT)
        sys.stderr.flush()
        return input()

    def _take(self, line: str) -> None:
        """A command, or something to say."""
        if line.startswith("/") and not line.startswith("//"):
            name, _, rest = line[1:].partition(" ")
            if name not in self.commands:
                raise WeftError(f"there is no command /{name}: /help lists them; // begins a message with a slash")
            self.commands[name](rest.strip())
        elif line:
            self._answer(self.conversation.say(line.removeprefix("/")))

    def _answer(self, pieces: Generator[str]) -> None:
        """Write an answer as it comes; Ctrl-C stops it, and it stays as far as it came."""
        from weft.cli.terminal import TerminalText, as_json

        shown, turns = TerminalText(sys.stdout), self.conversation.turns
        before = turns[-1] if turns else None
        with suppress(KeyboardInterrupt), closing(pieces):
            for piece in pieces:
                if not self.as_json:
                    shown.write(piece)
        if self.as_json and turns and turns[-1] is not before:
            print(as_json(asdict(turns[-1])), flush=True)
        elif not self.as_json:
            print(flush=True)
        if self.conversation.left_out and not self.noted:
            self.noted = True
            _note(
                f"note: longer than the {self.conversation.length} tokens that this model reads: "
                "the oldest turns are left out from now on"
            )

    def _set_system(self, text: str) -> None:
        self.conversation.system = text or None

    def _save(self, name: str) -> None:
        from weft.foundation.files.atomic_files import write_text

        if not name:
            raise WeftError("/save needs a file, such as /save chat.jsonl")
        line = json.dumps({"messages": self.conversation.messages()}, ensure_ascii=False)
        try:
            write_text(Path(name).expanduser(), line + "\n")
        except OSError as error:
            raise WeftError(f"cannot write {name}: {error.strerror}") from None
        _note(f"saved to {name}")


def _note(text: str) -> None:
    from weft.cli.terminal import without_controls

    print(without_controls(text), file=sys.stderr, flush=True)
