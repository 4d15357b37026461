"""Peak memory of real training steps compared with what `weft plan` predicts for one device.

Each case trains a model for two steps of AdamW (the second one has the optimizer's state from its beginning) on a CPU,
in float32 and with one thread, in a process of its own. Measured is the kernel's peak of resident memory above what
was resident before the model existed. A training of a tiny model comes first, because torch imports modules and loads
libraries at the first use of an optimizer (about 100 MB), which belong to the imports and not to the model.

glibc keeps freed memory for later, up to what it thinks will be needed again; in these processes every block of 64 kB
or more is a mapping of its own (MALLOC_MMAP_THRESHOLD_), which goes back to the kernel when it is freed, so that the
peak is what is in use, as with an allocator that uses its blocks again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import weft
from weft.bench.running.memory import extra_memory, in_fresh_process
from weft.models.build import AnySpec
from weft.models.cluster.device_memory import SIZES, DeviceMemory, device_memory
from weft.models.cluster.layouts import Layout, Pieces
from weft.models.cluster.training_profile import training_profile
from weft.models.encoder import EncoderSpec
from weft.tasks.support.losses import class_loss, language_loss
from weft.training.averaging import recompute_blocks
from weft.training.optimizers import build_optimizers

STEPS = 2
WITHIN = 0.1


@dataclass(frozen=True)
class Case:
    """A model and how it is trained: `rows` sequences per micro-batch, `micro_steps` of them per step."""

    spec: AnySpec
    rows: int
    micro_steps: int = 1
    recompute: bool = False


def gpt(width: int, layers: int, vocabulary: int, length: int, heads: int, name: str = "gpt2") -> AnySpec:
    """A model of this preset's kind in other sizes."""
    return weft.preset(name).replace(
        width=width, layers=layers, vocabulary=vocabulary, length=length, **{"mixer.heads": heads}
    )


def encoder() -> AnySpec:
    """A BERT of 12 layers x 256 with a class as its answer."""
    sizes = {"width": 256, "layers": 12, "length": 255, "dropout": 0.0, "input.vocabulary": 1009, "mixer.heads": 4}
    return weft.preset("bert-base").replace(**sizes, **{"mixer.dropout": 0.0, "feedforward.dropout": 0.0})


CASES = {
    "vocabulary": Case(gpt(256, 2, 200_003, 512, 4), rows=1),
    "deep": Case(gpt(128, 48, 1009, 512, 4), rows=5),
    "wide": Case(gpt(1536, 2, 1009, 256, 16), rows=4),
    "long": Case(gpt(128, 20, 1009, 4096, 4, "nano-llama"), rows=2),
    "recompute": Case(gpt(128, 16, 1009, 512, 4), rows=112, recompute=True),
    "accumulate": Case(gpt(768, 6, 5003, 512, 12), rows=2, micro_steps=2),
    "few tokens": Case(gpt(768, 9, 5003, 512, 12), rows=1),
    "encoder": Case(encoder(), rows=10),
}

QUICK = {"tiny": Case(gpt(24, 2, 89, 7, 3), rows=2)}


def predicted(case: Case) -> DeviceMemory:
    """What the plan says for one device."""
    pieces = Pieces(case.micro_steps * case.rows, case.rows)
    profile = training_profile(case.spec)
    return device_memory(profile, Layout(1, 1, 1), SIZES["fp32"], pieces, case.recompute)


def loss_of(module: nn.Module, case: Case) -> Tensor:
    """The mean loss of random tokens, by the functions that tasks use."""
    length, vocabulary = case.spec.declares().length or 1, getattr(case.spec, "vocabulary", 1009)
    tokens = torch.randint(vocabulary, (case.rows, length + 1))
    output = module(tokens[:, :-1])
    if isinstance(case.spec, EncoderSpec):
        return class_loss(output, torch.zeros(case.rows, dtype=torch.long), case.rows).total / case.rows
    count = case.rows * length
    return language_loss(module, output, tokens[:, 1:], count).total / count


def train(case: Case) -> None:
    """Two steps, each as `weft.training.loop` takes it."""
    torch.manual_seed(0)
    module = weft.build(case.spec).train()
    if case.recompute:
        recompute_blocks(module)
    optimizers = build_optimizers(module, "adamw")
    for _ in range(STEPS):
        for _ in range(case.micro_steps):
            (loss_of(module, case) / case.micro_steps).backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0, foreach=True)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


def peak(name: str) -> int:
    """Bytes above what is resident without the model; for a process of its own."""
    torch.set_num_threads(1)
    case = (CASES | QUICK)[name]
    tiny = {"width": 8, "layers": 1, "length": 7, "mixer.heads": 2}
    train(Case(case.spec.replace(**tiny), 2, case.micro_steps, case.recompute))
    return extra_memory(lambda: train(case))


def measured(name: str) -> int:
    """The peak of this case, measured in a new process."""
    return int(in_fresh_process(peak, name))
