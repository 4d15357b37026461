"""The parity certificate: transformers and Weft compute the same logits from the same checkpoint.

Each reads the weights by itself, one after the other, memory-mapped; half-precision weights of large models are upcast
in parts, so that float32 results are compared with little more memory than the file.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.checkpoints.formats.foreign_checkpoint import ForeignCheckpoint
from weft.checkpoints.formats.huggingface_folder import model_folder
from weft.checkpoints.run_folder import RunFolder
from weft.models.build import AnySpec, build
from weft.models.encoder import EncoderSpec
from weft.models.encoder_decoder import EncoderDecoderSpec
from weft.models.estimates import estimate
from weft.models.two_tower import TwoTowers, TwoTowerSpec
from weft.models.vision import VisionSpec
from weft.parts.embeddings import TokenEmbedding
from weft.parts.outputs import TiedHead
from weft.parts.quantized import hold_blocks

TOLERANCE = 1e-4  # of the largest logit, in float32
HALF_TOLERANCE = 2e-2  # where a model itself rounds activations to half precision
UPCAST_WHOLE = 1 << 28  # weights; smaller models are upcast as a whole
UPCAST_AT_ONCE = 1 << 22  # weights of a larger model that are upcast at once
ROWS, TOKENS, TARGETS = 2, 24, 7
TOKENS_PAST_WINDOW = 8
AFFORDABLE_PRODUCTS = 4e10  # weights x tokens, which take about a second
AUTO_CLASSES = {
    "text": "AutoModelForCausalLM",
    "translation": "AutoModelForSeq2SeqLM",
    "classification": "AutoModelForSequenceClassification",
    "regression": "AutoModelForSequenceClassification",
    "fill-mask": "AutoModelForMaskedLM",
    "embedding": "AutoModel",
}


@dataclass(frozen=True)
class ParityCertificate:
    """The largest difference of two logits, the largest logit, the number of logits, the tolerance and the peer."""

    difference: float
    largest: float
    outputs: int
    within: float
    peer: str

    @property
    def holds(self) -> bool:
        """Whether the logits agree within the tolerance."""
        return self.difference <= self.within * max(self.largest, 1e-6)


def certify_parity(found: ForeignCheckpoint, run: Path) -> tuple[ParityCertificate | None, str | None]:
    """The certificate, or why there is none; of a model that differs, one that does not hold.

    Weft computes first, so that the other library is not yet in memory.
    """
    if importlib.util.find_spec("transformers") is None:
        return None, "the library transformers is not installed"
    inputs, large = random_inputs(found.spec), found.parameters > UPCAST_WHOLE
    with torch.inference_mode():
        ours = _our_output(found, run, inputs, large)
    try:
        with _quiet(), torch.inference_mode():
            import transformers

            theirs = _their_output(transformers, found, inputs, large)
    except Exception as error:  # the other library's own errors are not the checkpoint's fault
        reason = str(error).strip().splitlines()[0][:120] if str(error).strip() else ""
        return None, f"transformers cannot run it ({type(error).__name__}: {reason})"
    half = large and any(info.dtype.itemsize < 4 for info in found.tensor_infos.values())
    within, peer = HALF_TOLERANCE if half else TOLERANCE, f"transformers {transformers.__version__}"
    if ours.shape != theirs.shape:
        return ParityCertificate(float("inf"), 0.0, 0, within, peer), None
    difference = (ours.double() - theirs.double()).abs().max().item()
    return ParityCertificate(difference, theirs.abs().max().item(), ours.numel(), within, peer), None


def random_inputs(spec: AnySpec) -> dict[str, Tensor]:
    """Random tokens or pictures; the first few ids, which are often special tokens, are not drawn.

    If layers have a window, there are more tokens than that, if the model is small enough.
    """
    random = torch.Generator().manual_seed(0)

    def tokens(vocabulary: int, length: int) -> Tensor:
        return torch.randint(min(4, vocabulary - 1), vocabulary, (ROWS, length), generator=random)

    if isinstance(spec, VisionSpec):
        return {"images": torch.randn(ROWS, spec.channels, spec.image, spec.image, generator=random)}
    if isinstance(spec, TwoTowerSpec):
        text, end = spec.text, spec.text.end_token
        texts = tokens(text.vocabulary, min(text.length, TOKENS))
        texts[:, -1] = text.vocabulary - 1 if end is None else end
        return {"tokens": texts, **random_inputs(spec.image)}
    body: Any = spec.input if isinstance(spec, EncoderSpec) else spec
    given = {"tokens": tokens(body.vocabulary, min(spec.length, _input_length(spec)))}
    if isinstance(spec, EncoderDecoderSpec):
        given["target"] = tokens(spec.vocabulary, min(spec.length, TARGETS))
    return given


def _input_length(spec: AnySpec) -> int:
    """Number of tokens, enough to exceed every window."""
    windows = [getattr(mixer, "window", None) or 0 for mixer in getattr(spec, "mixer", ())]
    wanted = max(windows, default=0) + TOKENS_PAST_WINDOW
    return max(TOKENS, wanted if wanted * estimate(spec).parameters < AFFORDABLE_PRODUCTS else 0)


def _their_output(library: Any, found: ForeignCheckpoint, inputs: dict[str, Tensor], large: bool) -> Tensor:
    name = AUTO_CLASSES.get(found.task, found.architecture)
    if not found.source.is_file():
        where: dict[str, Any] = {"pretrained_model_name_or_path": model_folder(found.source)}
    else:
        where = {"pretrained_model_name_or_path": found.source.parent, "gguf_file": found.source.name}
    kind = "auto" if large else torch.float32
    if found.architecture.startswith("Mixtral"):
        where["experts_implementation"] = "eager"  # the fast one requires sizes that are multiples of 16 bytes
    model = (
        getattr(library, name)
        .from_pretrained(**where, dtype=kind, local_files_only=True, trust_remote_code=False)
        .eval()
    )
    with upcast_weights(model):
        if "images" in inputs and "tokens" in inputs:
            both = model(input_ids=inputs["tokens"], pixel_values=inputs["images"])
            return model.logit_scale.exp() * torch.cat((both.image_embeds, both.text_embeds))
        if "images" in inputs:
            seen = model(pixel_values=inputs["images"])
            return (seen.last_hidden_state if _compares_hidden(found) else seen.logits).clone()
        if "target" in inputs:
            return model(input_ids=inputs["tokens"], decoder_input_ids=inputs["target"]).logits.clone()
        answer = model(input_ids=inputs["tokens"])
        return (answer.last_hidden_state if _compares_hidden(found) else answer.logits).clone()


def _our_output(found: ForeignCheckpoint, run: Path, inputs: dict[str, Tensor], large: bool) -> Tensor:
    weights, layouts = RunFolder(run).read_stored_model()
    model = hold_blocks(build(found.spec, device="meta"), layouts)
    model.load_state_dict(weights, assign=True)
    model = model.eval() if large else model.eval().float()
    with upcast_weights(model):
        if "target" in inputs:
            return model(inputs["tokens"], inputs["target"]).logits.clone()
        if isinstance(model, TwoTowers):
            vectors = (model(images=inputs["images"]).logits, model(inputs["tokens"]).logits)
            return model.similarity.scale.exp() * torch.cat(vectors)
        output = model(*inputs.values())
        return (output.hidden if _compares_hidden(found) else output.logits).clone()


def _compares_hidden(found: ForeignCheckpoint) -> bool:
    """Whether hidden states are compared, because there are no classes."""
    return found.task == "embedding" or (isinstance(found.spec, VisionSpec) and found.spec.classes is None)


@contextlib.contextmanager
def upcast_weights(model: nn.Module) -> Iterator[None]:
    """Compute with half-precision weights in float32: each module's weights are upcast when it is called."""
    undo: list[Callable[[], object]] = []
    for part in model.modules():
        own = list(part.parameters(recurse=False))
        if isinstance(part, TiedHead):
            part.forward = _tied(part)  # type: ignore[method-assign]
            undo.append(lambda part=part: part.__dict__.pop("forward"))  # type: ignore[misc]
        elif all(weight.dtype not in (torch.float16, torch.bfloat16) for weight in own):
            continue
        elif isinstance(part, (nn.Embedding, TokenEmbedding)):
            undo.append(part.register_forward_hook(lambda part, inputs, x: x.float()).remove)
        elif isinstance(part, nn.Linear):
            part.forward = _linear(part)  # type: ignore[method-assign, assignment]
            undo.append(lambda part=part: part.__dict__.pop("forward"))  # type: ignore[misc]
        else:
            undo += _upcast_when_called(part, own)
    try:
        yield
    finally:
        for step in undo:
            step()


def _linear_in_parts(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b in float32, some rows of W at a time."""
    rows = max(1, UPCAST_AT_ONCE // max(1, weight.shape[1]))
    x = torch.cat([F.linear(x.float(), some.float()) for some in weight.split(rows)], dim=-1)
    return x if bias is None else x + bias.float()


def _linear(part: nn.Linear) -> Callable[[Tensor], Tensor]:
    return lambda x: _linear_in_parts(x, part.weight, part.bias)


def _tied(part: TiedHead) -> Callable[..., Tensor]:
    return lambda hidden, embedding: _linear_in_parts(hidden * part.scale, embedding.weight, part.bias)


def _upcast_when_called(part: nn.Module, own: list[nn.Parameter]) -> list[Callable[[], object]]:
    kept = [weight.data for weight in own]

    def widen(*_: object) -> None:
        for weight in own:
            weight.data = weight.data.float()

    def restore(*_: object) -> None:
        for weight, before in zip(own, kept, strict=True):
            weight.data = before

    return [part.register_forward_pre_hook(widen).remove, part.register_forward_hook(restore).remove, restore]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Nothing is downloaded, and the library's warnings and progress bars are hidden."""
    before = {name: os.environ.get(name) for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_VERBOSITY", "TQDM_DISABLE")}
    os.environ.update({"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TQDM_DISABLE": "1"})
    try:
        with warnings.catch_warnings(), open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
