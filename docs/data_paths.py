"""The three ways of the data (train, predict, look), measured: which files they pass.

A file is on a way if one of its functions is on the call stack while the user's data or run is read from disk, encoded
or decoded by the tokenizer, run through the model, turned into a loss, learned from (backward, optimizer step), or
written as the result (weights, answer, page). Parts and foundation are not counted: every way passes them. The
list goes to docs/ARCHITECTURE.md; `--check` only compares, also with the limits.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "weft"
TARGET = ROOT / "docs" / "ARCHITECTURE.md"
LIMITS = {"train": 17, "predict": 13, "look": 12}
NOT_COUNTED = ("parts", "foundation")
# What describes a finished training is not on its way: the report, and the statistics of the data.
AFTERWARDS = ("reports/report.py", "tasks/support/evaluation/data_statistics.py")
TOKENIZER_CALLS = {"encode", "encode_batch", "encode_batch_fast", "decode", "decode_batch"}
TEXT = "Once upon a time there was a loom, and it wove all day.\n" * 40


class Stacks:
    """Collects the files of the package whose functions are on the stack at the moments that count."""

    def __init__(self, inputs: tuple[str, ...], results: tuple[str, ...]) -> None:
        self.inputs, self.results = inputs, results
        self.files: dict[str, None] = {}
        self.active = False

    def take(self, frame: FrameType | None, model: type | None = None) -> None:
        """Note the files of this call stack, outermost first, and that of the model that is called."""
        found = [] if model is None else [Path(inspect.getfile(model)).relative_to(PACKAGE)]
        while frame is not None:
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(PACKAGE):
                found.append(path.relative_to(PACKAGE))
            frame = frame.f_back
        if any(path.as_posix() in AFTERWARDS for path in found):
            return
        for path in reversed(found):
            if path.parts[0] not in NOT_COUNTED:
                self.files.setdefault(str(path))

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Data that is opened; results that are opened, or written beside and then renamed."""
        if not self.active or event not in ("open", "os.rename"):
            return
        path = str(arguments[0] if event == "open" else arguments[1])
        if path.endswith((*self.inputs, *self.results) if event == "open" else self.results):
            self.take(sys._getframe(1))

    def profile(self, frame: FrameType, event: str, called: Any) -> None:
        """Calls of the tokenizers package, which is not written in Python, and of torch's cross-entropies."""
        if event == "c_call" and getattr(called, "__name__", "") in TOKENIZER_CALLS:
            if type(getattr(called, "__self__", None)).__module__.startswith("tokenizers"):
                self.take(frame)
        elif event == "call" and frame.f_code.co_name.endswith("cross_entropy"):
            self.take(frame)


def measure() -> dict[str, list[str]]:
    """The files of each way, in the order in which they are first passed."""
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        os.environ["WEFT_CACHE"] = str(Path(place) / "cache")
        Path("book.txt").write_text(TEXT, encoding="utf-8")
        stacks = Stacks(("book.txt", "spec.json", "tokenizer.json"), ("model.safetensors", "look.html"))
        sys.addaudithook(stacks.audit)
        _hook_torch(stacks)
        settings = ["--set", "width=32", "--set", "layers=1", "--set", "training.guard=false", "--set", "length=16"]
        commands = {
            "train": ["train", "text", f"{place}/book.txt", "--out", f"{place}/run", "--steps", "1", *settings],
            "predict": ["predict", f"{place}/run", "Once upon", "--max-tokens", "3"],
            "look": ["look", f"{place}/run", "Once upon a time", "--out", f"{place}/look.html"],
        }
        return {way: _run(stacks, words, answers=way == "predict") for way, words in commands.items()}


def _hook_torch(stacks: Stacks) -> None:
    import torch
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    def forward(module: torch.nn.Module, _: Any) -> None:
        if stacks.active and hasattr(module, "spec"):
            stacks.take(sys._getframe(1), type(module))

    torch.nn.modules.module.register_module_forward_pre_hook(forward)
    register_optimizer_step_pre_hook(lambda *_: stacks.take(sys._getframe(1)) if stacks.active else None)
    backward = torch.Tensor.backward

    def seen_backward(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        stacks.take(sys._getframe(1))
        backward(self, *args, **kwargs)

    torch.Tensor.backward = seen_backward  # type: ignore[method-assign,assignment]


class _Output:
    """Standard output that notes who writes to it, where the answer goes there."""

    def __init__(self, stacks: Stacks, answers: bool) -> None:
        self.stacks, self.answers, self.encoding = stacks, answers, "utf-8"

    def write(self, text: str) -> int:
        if self.answers:
            self.stacks.take(sys._getframe(1))
        return len(text)

    def flush(self) -> None: ...

    def reconfigure(self, **_: Any) -> None: ...

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return sys.__stdout__.fileno() if sys.__stdout__ is not None else 1


def _run(stacks: Stacks, words: list[str], answers: bool) -> list[str]:
    from weft.cli.main import run

    stacks.files, stacks.active = {}, True
    before: tuple[Any, Any] = sys.stdout, sys.stderr
    sys.stdout = _Output(stacks, answers)  # type: ignore[assignment]
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    sys.setprofile(stacks.profile)
    try:
        sys.argv = ["weft", *words]
        run()
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.setprofile(None)
        sys.stderr.close()
        sys.stdout, sys.stderr = before
        stacks.active = False
    return list(stacks.files)


def page(text: str, ways: dict[str, list[str]]) -> str:
    """The page with its ways written anew: `way: file -> file -> ...`."""
    for way, files in ways.items():
        told = textwrap.fill(f"{way}: {' -> '.join(files)}", 116, initial_indent=" " * 4, subsequent_indent=" " * 6)
        text = re.sub(rf"^    {way}: .*(?:\n      .*)*", lambda _, told=told: told, text, flags=re.M)
    return text


def check(ways: dict[str, list[str]], say: Callable[[str], None]) -> bool:
    """Whether the page tells the ways as they are, within the limits."""
    long = [way for way, files in ways.items() if len(files) > LIMITS[way]]
    for way in long:
        say(f"{way} passes {len(ways[way])} files, but at most {LIMITS[way]} are allowed: {', '.join(ways[way])}")
    text = TARGET.read_text(encoding="utf-8")
    if page(text, ways) != text:
        say("docs/ARCHITECTURE.md tells the ways of the data otherwise: run `make docs`")
    return not long and page(text, ways) == text


if __name__ == "__main__":
    found = measure()
    if "--check" in sys.argv:
        raise SystemExit(0 if check(found, print) else 1)
    TARGET.write_text(page(TARGET.read_text(encoding="utf-8"), found), encoding="utf-8")
    print(", ".join(f"{way} passes {len(files)} files (at most {LIMITS[way]})" for way, files in found.items()))
