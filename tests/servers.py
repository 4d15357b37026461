"""Servers for tests: `weft serve` as a process of its own on loopback, and small runs for it with random weights."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from runs_on_disk import llama, write_run
from weft.data.tokenizers.tokenizer import train_tokenizer

TEXTS = ["the quick brown fox jumps over the lazy dog äöü 日本語 " * 3, "hello world, how are you? once upon a time"]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LENGTH = 256
STARTS = 60.0  # seconds at most, on a busy machine


@dataclass
class ServerProcess:
    """A running server."""

    url: str
    process: subprocess.Popen[str]
    errors: Path

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    @property
    def log(self) -> list[dict[str, Any]]:
        """The access log so far."""
        lines = self.errors.read_text().split("\n")[:-1]  # the last may be half written
        return [json.loads(line) for line in lines if line.startswith("{")]

    def told(self, name: str) -> dict[str, Any] | None:
        """What the log has of the request of this id, once it is over."""
        return next((line for line in self.log if line["id"] == name), None)

    def get(self, path: str, **more: Any) -> httpx2.Response:
        return httpx2.get(self.url + path, timeout=60, **more)

    def post(self, path: str, body: Any, **more: Any) -> httpx2.Response:
        """A body is written as ASCII, so that it may hold what UTF-8 cannot."""
        headers = {"content-type": "application/json", **more.pop("headers", {})}
        return httpx2.post(self.url + path, content=json.dumps(body), timeout=60, headers=headers, **more)

    def gauge(self, name: str, model: str) -> float:
        """A number of /metrics."""
        found = re.search(rf'^{name}{{model="{model}"}} (\S+)$', self.get("/metrics").text, re.MULTILINE)
        assert found is not None, name
        return float(found[1])

    def wait_for(self, condition: Callable[[], bool], seconds: float = 20.0) -> None:
        """Until something is true; it fails the test after so many seconds."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "it did not happen"
            time.sleep(0.02)

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


@contextlib.contextmanager
def started(*words: str, environment: dict[str, str] | None = None, module: str = "weft") -> Iterator[ServerProcess]:
    """A server of these words after `weft serve`, on any free port."""
    arguments = ["serve", "--port", "0"] if module == "weft" else []
    with tempfile.TemporaryDirectory() as folder:
        errors = Path(folder) / "errors"
        with errors.open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments, *words],
                stdout=subprocess.PIPE, stderr=log, text=True, stdin=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **(environment or {})},
                cwd=Path(__file__).parent,
            )  # fmt: skip
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"http://\S+(?=/v1)", line)
            assert found is not None, f"{line} {errors.read_text()}"
            yield ServerProcess(found[0], process, errors)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def write_text_run(path: Path, chat: bool = False) -> Path:
    """A language model of random weights over pairs of bytes, with a chat template or without."""
    tokenizer = train_tokenizer("bpe", TEXTS, 300, special_tokens=("<|im_start|>", "<|im_end|>"))
    facts = {"chat": {"template": CHATML, "names": {}}} if chat else {}
    return write_run(path, llama(tokenizer.vocabulary, length=LENGTH), "text", tokenizer, facts)
