"""`weft serve`: runs behind an HTTP API that OpenAI's clients speak."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from weft.cli.app import Device, Quantize, app
from weft.cli.environment import load_torch
from weft.foundation.errors import WeftError

KEYS_VARIABLE = "WEFT_API_KEYS"
INEXACT = "other traffic may change the last bits of log-probabilities here, so that equal tokens alone are promised"


@app.command()
def serve(
    runs: Annotated[list[str], typer.Argument(help="Folders of runs, or NAME=FOLDER.", metavar="RUN...")],
    host: Annotated[str, typer.Option(help="Address to listen on; others than this machine need a key.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any that is free.")] = 8000,
    api_key: Annotated[
        list[str] | None, typer.Option(help=f"Key that clients must send; repeatable; better in {KEYS_VARIABLE}.")
    ] = None,
    api_key_file: Annotated[Path | None, typer.Option(help="File of keys, one per line.", metavar="FILE")] = None,
    slots: Annotated[int, typer.Option(help="Texts generated at once, of each run.")] = 16,
    queue: Annotated[int, typer.Option(help="Texts that may wait, of each run; more get status 429.")] = 128,
    prefixes: Annotated[int, typer.Option(help="Beginnings of prompts that are kept, of each run.")] = 4,
    length: Annotated[
        int | None, typer.Option(help="Tokens of a text, prompt included; the model's if left out.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Largest number of new tokens that a request may ask for.")
    ] = None,
    max_body: Annotated[float, typer.Option(help="Largest body of a request, in megabytes.")] = 4.0,
    timeout: Annotated[float, typer.Option(help="Seconds that an answer may take.")] = 600.0,
    grace: Annotated[float, typer.Option(help="Seconds for running answers to finish when it is told to stop.")] = 30.0,
    chat_template: Annotated[
        str | None,
        typer.Option(help="Chat template for models without one: chatml, llama-3, zephyr, alpaca, plain, or a file."),
    ] = None,
    access_log: Annotated[bool, typer.Option(help="A line of JSON per request on stderr.")] = True,
    log_prompts: Annotated[bool, typer.Option("--log-prompts", help="Write what users send into that log.")] = False,
    quantize: Quantize = None,
    device: Device = None,
) -> None:
    """Serve runs over HTTP: OpenAI's completions, chats and embeddings, and a path for every other task.

    Many clients are answered at once. SIGTERM finishes what runs. The address /docs shows all paths, with examples.

    \b
    Examples:
      weft serve runs/book
      weft serve chat=runs/smollm sentiment=runs/reviews --port 9000
      weft serve runs/smollm --host 0.0.0.0 --api-key-file keys.txt --quantize int8
      curl localhost:8000/v1/completions -H "content-type: application/json" -d '{"prompt": "Once", "seed": 1}'
    """
    from weft.serving.settings import MEGABYTE, EngineSettings, Limits, ServerSettings, Timeouts, read_keys

    if max_body <= 0:
        raise WeftError(f"a body of at most {max_body:g} megabytes lets nothing through: use more than 0")
    limits = Limits(body=max(1, round(max_body * MEGABYTE)), tokens=max_tokens)
    limits = replace(limits, task_body=max(limits.body, limits.task_body), bodies=max(limits.body, limits.bodies))
    settings = ServerSettings(
        host, port,
        keys=read_keys(api_key or (), _read_key_file(api_key_file), os.environ.get(KEYS_VARIABLE)),
        limits=limits,
        timeouts=Timeouts(answer=timeout, stop=grace),
        engine=EngineSettings(slots, queue, prefixes, length, chat_template=chat_template),
        access_log=access_log, log_prompts=log_prompts,
    )  # fmt: skip
    _expect_packages()
    load_torch()
    from weft.serving.serve import load_served
    from weft.serving.serve import serve as run_server
    from weft.serving.web.server import listen

    with listen(host, port) as listening:  # before runs are loaded, which may take long
        served = load_served(runs, settings, device, quantize)  # type: ignore[arg-type]

        def announce(address: str) -> None:
            names = ", ".join(one.name for one in served)
            for one in served:
                if getattr(one, "exact", True) is False:
                    sys.stderr.write(f"note: {one.name}: {INEXACT}\n")
            print(f"serving {names} at {address}/v1 (Ctrl-C stops)", flush=True)

        run_server(served, settings, announce, listening)


def _read_key_file(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise WeftError(f"cannot read the keys in {path}: give a file of text, one key per line") from None


def _expect_packages() -> None:
    from importlib.util import find_spec

    missing = [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]
    if missing:
        raise WeftError(f"weft serve needs {' and '.join(missing)}: pip install 'weft[serve]'")
