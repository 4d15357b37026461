"""`weft bench encoder`: vectors of 32 sentences of mixed length, MiniLM-L6's shape, against transformers.

Lengths are drawn once, log-normal around 22 tokens, from 6 to 128: most short, a few long, as sentences are. The peer
embeds them as its users do: padded to the longest, with an attention mask, the mean over real tokens, length 1. Weft
embeds them as its task `embedding` does. Weights are random and equal: they change no time.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
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
from weft.models.presets import preset

VOCABULARY, SENTENCES, PAD = 30522, 32, 0
SIZES = {"width": 384, "layers": 6, "heads": 12, "hidden": 1536, "vocabulary": VOCABULARY}
TINY = {"width": 384, "layers": 1, "heads": 2, "hidden": 32, "vocabulary": 997}
PLACE = "weft.bench.cases.encoder:"


def contests(options: BenchOptions) -> tuple[list[Contest], tuple[str, ...]]:
    """Sentences of mixed and of equal length."""
    peers, missing = choose_peers(options.peers, ("transformers",))
    sizes = TINY if options.quick else SIZES
    D, H, L = sizes["width"], sizes["hidden"], sizes["layers"]
    found = []
    for kind in ("mixed",) if options.quick else ("mixed", "equal"):
        lengths = rows_of(kind, sizes["vocabulary"])[1].tolist()
        tokens = sum(lengths)
        flops = float(L * (tokens * (8 * D * D + 4 * D * H) + sum(4 * n * n * D for n in lengths)))
        arguments = {"kind": kind, "sizes": sizes}
        entries = [Entry("weft", f"{PLACE}weft_work", arguments)]
        entries += [Entry(peer, f"{PLACE}transformers_work", arguments, peer=peer) for peer in peers]
        note = f"{tokens} real tokens; padded to the longest {SENTENCES * max(lengths)}"
        found.append(
            Contest(
                f"{SENTENCES} sentences of {kind} length", tuple(entries), "sentences", SENTENCES,
                cost=Cost(flops=flops),
                shapes=((tokens, 3 * D, D), (tokens, H, D), (tokens, D, H)), limits=not options.quick, notes=(note,),
            )
        )  # fmt: skip
    return found, missing


def run(options: BenchOptions, report: Callable[[str], None]) -> CaseResult:
    """Measure the case."""
    found, missing = contests(options)
    return hold_contests("encoder", found, missing, options, report)


def rows_of(kind: str, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Tokens [32, longest] with padding on the right, and lengths [32]."""
    made = torch.Generator().manual_seed(1)
    lengths = (22 * torch.exp(0.7 * torch.randn(SENTENCES, generator=made))).long().clamp(6, 128)
    lengths = lengths if kind == "mixed" else torch.full((SENTENCES,), 32)
    tokens = torch.randint(10, vocabulary, (SENTENCES, int(lengths.max())), generator=made)
    tokens[torch.arange(tokens.shape[1]) >= lengths[:, None]] = PAD
    return tokens, lengths


# --- in the contestants' processes -----------------------------------------------------------------------------------


def peer_model(sizes: dict[str, int]) -> Any:
    """transformers' BERT with random weights, without dropout."""
    import transformers

    configure, build = (cast(Any, kind) for kind in (transformers.BertConfig, transformers.BertModel))
    config = configure(
        vocab_size=sizes["vocabulary"], hidden_size=sizes["width"], num_hidden_layers=sizes["layers"],
        num_attention_heads=sizes["heads"], intermediate_size=sizes["hidden"], hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, attn_implementation="sdpa",
    )  # fmt: skip
    torch.manual_seed(0)
    return build(config)


def transformers_work(kind: str, sizes: dict[str, int]) -> Work:
    """Padded to the longest, with an attention mask."""
    model, (tokens, lengths) = peer_model(sizes).eval(), rows_of(kind, sizes["vocabulary"])
    real = (torch.arange(tokens.shape[1]) < lengths[:, None]).long()

    def call() -> Tensor:
        with torch.inference_mode():
            hidden = model(input_ids=tokens, attention_mask=real).last_hidden_state
            mean = (hidden * real[:, :, None]).sum(1) / real.sum(1, keepdim=True)
            return F.normalize(mean, dim=-1)

    return Work(call, lambda: {"vectors": call()[:, 3].tolist()})


def weft_work(kind: str, sizes: dict[str, int]) -> Work:
    """As the task embedding does it: texts of like length are read together."""
    from weft.checkpoints.families.bert import BERT
    from weft.tasks.imported.embedding import EmbeddingTask

    numbers: dict[str, Any] = {
        "width": sizes["width"],
        "layers": sizes["layers"],
        "input.vocabulary": sizes["vocabulary"],
    }
    numbers |= {"mixer.heads": sizes["heads"], "feedforward.hidden": sizes["hidden"]}
    spec = preset("minilm-l6").replace(**numbers)
    model = copy_from_transformers(weft.build(spec), peer_model(sizes), BERT.table(spec)).eval()
    tokens, lengths = rows_of(kind, sizes["vocabulary"])
    rows = [row[:length].tolist() for row, length in zip(tokens, lengths.tolist(), strict=True)]
    task: Any = EmbeddingTask.__new__(EmbeddingTask)  # tokens are given, so there is no tokenizer
    task.pool, task.normalize, task.tokenizer = "mean", True, SimpleNamespace(pad=PAD)
    task._rows = lambda _: rows

    def call() -> Tensor:
        return task.embed(model, [""] * len(rows))

    return Work(call, lambda: {"vectors": call()[:, 3].tolist()})
