"""What the model that a task chooses has beside the plain one of its family, in words for the terminal.

A hybrid mixes tokens by more than attention: by convolution or recurrence, in a layer or before the first one. A
variant has another position, activation, norm or pool than the plain preset.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from weft.foundation.errors import WeftError
from weft.models.build import AnySpec
from weft.models.encoder import EncoderSpec, PooledSpec, WordsSpec
from weft.models.encoder_decoder import EncoderDecoderSpec
from weft.models.part_specs import AttentionSpec, ClassicSpec
from weft.models.plain_presets import plain_presets
from weft.models.stack_spec import StackSpec
from weft.models.vision import VisionSpec
from weft.tasks.task import Size, Task

ACTIVATIONS = {
    "relu": "ReLU",
    "gelu": "GELU",
    "gelu-tanh": "GELU",
    "quick-gelu": "GELU",
    "silu": "SiLU",
    "squared-relu": "squared ReLU",
}


def describe_choice(task: Task, spec: AnySpec) -> str:
    """One line on what was chosen and which preset trains the plain model; nothing where it is the plain model."""
    if not isinstance(spec, StackSpec):
        return ""
    hybrid = hybrid_parts(spec)
    words = [f"{', '.join(hybrid)} (hybrid)"] if hybrid else []
    name = plain_presets([spec.family])[0]
    try:
        others = list(_variants(spec, task.fit_plain(name, Size.of(spec))))
    except WeftError:  # the task takes no presets, or its data do not suit this one
        return f"{_family(spec)} with {words[0]}" if words else ""
    words += [", ".join(others)] if others else []
    return f"{_family(spec)} with {'; '.join(words)}; --preset {name} trains the plain one" if words else ""


def hybrid_parts(spec: AnySpec) -> list[str]:
    """The parts that mix inputs by something else than attention."""
    if not isinstance(spec, StackSpec):
        return []
    found = []
    stem = getattr(getattr(spec, "source", spec), "stem", ())
    if stem:
        found.append(f"a stem of {_counted(len(stem), 'convolution')} before the patches")
    if isinstance(spec, EncoderSpec) and isinstance(spec.input, WordsSpec):
        found.append("a convolution over each word's characters")
    if isinstance(spec, EncoderSpec) and spec.ngrams is not None:
        found.append("an n-gram skip beside the blocks")
    if isinstance(spec, EncoderDecoderSpec):
        found += _other_mixers(spec.encoder_stack(), spec.layers, "the encoder's ")
        return found + _other_mixers(spec, spec.decoder_depth, "the decoder's ")
    return found + _other_mixers(spec, spec.layers)


def _other_mixers(stack: StackSpec, count: int, owner: str = "") -> list[str]:
    """The layers of a stack of `count` blocks that mix tokens by something else than attention, in words."""
    kinds, found = [stack.mixer_of(layer).kind for layer in range(count)], []
    for kind in dict.fromkeys(kinds):
        layers = [str(layer) for layer, own in enumerate(kinds) if own == kind]
        if "attention" not in kind and kind != "none":
            found.append(f"{kind} in layer{'s' * (len(layers) > 1)} {_listed(layers)} of {owner}{count}")
    return found


def _variants(spec: StackSpec, plain: Any) -> Iterator[str]:
    """Where the parts of the same kind differ from the plain model's."""
    if spec.positions.kind != plain.positions.kind:
        yield f"{'no' if spec.positions.kind == 'none' else spec.positions.kind} positions"
    own, usual = spec.feedforward, plain.feedforward
    if not isinstance(own, ClassicSpec):
        yield f"{own.kind} MLP"
    else:
        if ACTIVATIONS[own.activation] != ACTIVATIONS[usual.activation]:
            yield ACTIVATIONS[own.activation]
        if own.hidden not in (None, 4 * spec.width):
            yield f"an MLP of hidden width {own.hidden}"
    if spec.norm.kind != plain.norm.kind:
        yield "no norms" if spec.norm.kind == "none" else f"{spec.norm.kind} norms"
    if any(isinstance(mixer, AttentionSpec) and mixer.query_key_norm is not None for mixer in spec.mixer):
        yield "norms on queries and keys"
    if _pool(spec) != _pool(plain):
        yield f"{_pool(spec)} pool"


def _family(spec: AnySpec) -> str:
    return {"vision": "vision transformer", "series": "series decoder", "image-text": "image-text decoder"}.get(
        spec.family, spec.family
    )


def _pool(spec: Any) -> str:
    """Which state the answer is read from."""
    if isinstance(spec, VisionSpec):
        return spec.pool
    return spec.output.pool if isinstance(spec, EncoderSpec) and isinstance(spec.output, PooledSpec) else ""


def _counted(count: int, name: str) -> str:
    return f"{count} {name}{'s' * (count > 1)}"


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
