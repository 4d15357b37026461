"""Trainings that one and several processes take the same steps of: models, layouts and options, every pair of them."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pairwise import cover

STEPS = 20

# Distinct sizes that 2 and 4 processes divide where they have to, and a batch that no number of processes does.
DECODER = {"preset": "nano-llama", "width": 24, "mixer.heads": 4, "mixer.key_heads": 4, "feedforward.hidden": 44}
# Two processes hold three experts each; four hold all of them, and of the one that all tokens share.
EXPERTS = {"feedforward.experts": 6, "feedforward.shared": True}
MODELS: dict[str, dict[str, Any]] = {
    "decoder": {"task": "text", **DECODER, "length": 19},
    "encoder-decoder": {"task": "translation", "preset": "nano-t5", "width": 24, "mixer.heads": 4},
    "recurrent": {"task": "translation", "preset": "nano-gru-additive", "width": 20, "hidden": 28},
    "vision": {"task": "images", "preset": "nano-vit", "width": 24, "image": 12, "patch": 4},
    "experts": {"task": "text", "preset": "nano-moe", "width": 24, "mixer.heads": 4, "length": 19, **EXPERTS},
}
LAYOUTS = {
    2: ("ddp", "fsdp", "tp=2", "cp=2"),
    3: ("ddp", "fsdp", "cp=3"),
    4: ("ddp", "fsdp", "tp=2", "tp=4", "fsdp,tp=2", "fsdp,cp=2"),
}
# At its usual rate Muon multiplies rounding by five at each step of adapters that begin at zero.
LORA = {"training.lora": 2, "training.matrix_rate": 0.001}
FACTORS = {
    "layout": tuple(f"{processes}:{layout}" for processes, layouts in LAYOUTS.items() for layout in layouts),
    "model": tuple(MODELS),
    "optimizer": ("muon", "adamw"),
    "extra": ("none", "ema", "lora", "recompute"),
    "accumulate": ("1", "3"),
}


@dataclass(frozen=True)
class Case:
    """One training: the request's fields as plain JSON."""

    name: str
    processes: int
    layout: str
    task: str
    preset: str
    changes: dict[str, Any]
    base: bool = False


def _legal(combination: dict[str, str]) -> bool:
    return not (combination["model"] == "recurrent" and combination["extra"] == "lora")


def cases() -> list[Case]:
    """Trainings in which every legal pair of values of all factors comes up."""
    return [_case(combination) for combination in cover(FACTORS, _legal)]


def _case(chosen: dict[str, str]) -> Case:
    processes, _, layout = chosen["layout"].partition(":")
    model = dict(MODELS[chosen["model"]])
    task, preset = model.pop("task"), model.pop("preset")
    more = {"ema": {"training.ema": 0.8}, "recompute": {"training.recompute": True}, "lora": LORA}
    changes = {
        **model,
        "dropout": 0.0,
        "training.batch": 190 if task == "text" else 70,
        "training.optimizer": chosen["optimizer"],
        "training.accumulate": int(chosen["accumulate"]),
        "training.clip": 0.5,
        "training.precision": "float64",
        "training.guard": False,
        "training.evaluate_every": 7,
        "training.threads": 1,
        **more.get(chosen["extra"], {}),
    }
    return Case("-".join(chosen.values()), int(processes), layout, task, preset, changes, chosen["extra"] == "lora")


def write_data(folder: Path) -> None:
    """Small files of each task, with examples of uneven lengths."""
    draw = random.Random(3)
    words = ["ash", "birch", "cedar", "elm", "fir", "oak", "pine", "rowan", "willow", "yew"]
    sentences = [" ".join(draw.choices(words, k=draw.randint(1, 9))) for _ in range(150)]
    (folder / "text.txt").write_text("\n".join(sentences) + "\n")
    (folder / "translation.tsv").write_text("".join(f"{s}\t{s[::-1]}\n" for s in sentences))
    pixels = np.random.default_rng(3).integers(0, 255, (90, 12, 12), dtype=np.uint8)
    np.savez(folder / "images.npz", images=pixels, labels=np.arange(90) % 4)


def write_cases(file: Path, chosen: list[Case]) -> None:
    file.write_text(json.dumps([asdict(case) for case in chosen]))


def read_cases(file: Path) -> list[Case]:
    return [Case(**row) for row in json.loads(file.read_text())]
