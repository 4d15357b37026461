"""`weft bench vision`: ViT-B/16 with the same weights as transformers' own, 4 images: forward, and a training step.

A step is forward, cross-entropy, backward and AdamW: fused for transformers, and for Weft as `weft train` has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

import weft
from weft.bench.contest import BenchOptions, Contest, Cost, Entry, Work
from weft.bench.models.transformers_weights import copy_from_transformers
from weft.bench.peers import choose_peers
from weft.bench.results import CaseResult
from weft.bench.running.turns import hold_contests
from weft.foundation.kept_memory import keep_freed_memory
from weft.models.presets import preset
from weft.training.native import OneCallAdamW

IMAGES, CLASSES = 4, 1000
SIZES = {"width": 768, "layers": 12, "heads": 12, "image": 224, "patch": 16}
TINY = {"width": 16, "layers": 1, "heads": 2, "image": 16, "patch": 8}
CHECKED = 3


def contests(options: BenchOptions) -> tuple[list[Contest], tuple[str, ...]]:
    """Forward and training."""
    peers, missing = choose_peers(options.peers, ("transformers",))
    sizes = TINY if options.quick else SIZES
    N, D = (sizes["image"] // sizes["patch"]) ** 2 + 1, sizes["width"]
    flops = float(
        IMAGES * N * sizes["layers"] * (24 * D * D + 4 * N * D) + 2 * IMAGES * (N - 1) * 3 * sizes["patch"] ** 2 * D
    )
    shapes = ((IMAGES * N, 3 * D, D), (IMAGES * N, D, D), (IMAGES * N, 4 * D, D), (IMAGES * N, D, 4 * D))
    found = []
    for task in ("forward", "training"):
        arguments = {"task": task, "sizes": sizes}
        entries = [Entry("weft", "weft.bench.cases.vision:vision_work", arguments | {"who": "weft"})]
        entries += [
            Entry(peer, "weft.bench.cases.vision:vision_work", arguments | {"who": peer}, peer=peer) for peer in peers
        ]
        cost = Cost(flops=flops * (1 if task == "forward" else 3))
        found.append(
            Contest(
                f"{task}, {IMAGES} images", tuple(entries), "images", IMAGES, cost=cost, shapes=shapes,
                limits=not options.quick,
            )
        )  # fmt: skip
    return found[1:] if options.quick else found, missing


def run(options: BenchOptions, report: Callable[[str], None]) -> CaseResult:
    """Measure the case."""
    found, missing = contests(options)
    return hold_contests("vision", found, missing, options, report)


# --- in the contestants' processes -----------------------------------------------------------------------------------


def peer_model(sizes: dict[str, int]) -> Any:
    """transformers' ViT with random weights, without dropout, by scaled_dot_product_attention."""
    import transformers

    configure, build = (cast(Any, kind) for kind in (transformers.ViTConfig, transformers.ViTForImageClassification))
    config = configure(
        hidden_size=sizes["width"], num_hidden_layers=sizes["layers"], num_attention_heads=sizes["heads"],
        intermediate_size=4 * sizes["width"], image_size=sizes["image"], patch_size=sizes["patch"],
        num_labels=CLASSES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation="sdpa",
    )  # fmt: skip
    torch.manual_seed(0)
    return build(config)


def weft_model(sizes: dict[str, int]) -> Any:
    """Weft's, with the same weights."""
    from weft.checkpoints.families.vit import VIT

    numbers = {"width": sizes["width"], "layers": sizes["layers"], "image": sizes["image"], "patch": sizes["patch"]}
    spec = preset("vit-b16").replace(**numbers, **{"mixer.heads": sizes["heads"]})
    return copy_from_transformers(weft.build(spec), peer_model(sizes), VIT.table(spec))


def vision_work(who: str, task: str, sizes: dict[str, int]) -> Work:
    """A forward without gradients, or a training step."""
    model: Any = weft_model(sizes) if who == "weft" else peer_model(sizes)
    made = torch.Generator().manual_seed(1)
    images = torch.randn(IMAGES, 3, sizes["image"], sizes["image"], generator=made)
    labels = torch.randint(CLASSES, (IMAGES,), generator=made)
    if task == "forward":
        model.eval()

        def forward() -> Tensor:
            with torch.inference_mode():
                return model(images).logits

        return Work(forward, lambda: {"logits": forward()[0, :16].tolist()})
    model.train()
    settings: dict[str, Any] = {"lr": 1e-4, "betas": (0.9, 0.999), "fused": True}
    if who == "weft":
        keep_freed_memory()
    optimizer = (OneCallAdamW if who == "weft" else torch.optim.AdamW)(model.parameters(), **settings)

    def step() -> Tensor:
        loss = F.cross_entropy(model(images).logits, labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Work(step, lambda: {"losses": [float(step()) for _ in range(CHECKED)]})
