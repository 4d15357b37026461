"""Where the model of a training comes from, and what it costs: built from a spec, or a module of the user's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from weft.foreign.user_module import UserModule
from weft.foreign.wrap_module import GivenModule, rewrap_module, wrap_module
from weft.foundation.errors import WeftError
from weft.foundation.spec import Tree
from weft.models.build import AnySpec, build
from weft.models.estimates import estimate
from weft.tasks.registry import task_named, trainable_tasks
from weft.tasks.task import Task
from weft.training.request import TrainRequest

WEIGHT_BYTES = 16  # of a parameter in training: weight, gradient and two moments in float32
RATE = 1e-3  # the learning rate of a module of the user's own
KEPT = 16  # numbers per token, layer and unit of width that the backward pass needs, about


@dataclass(frozen=True)
class ModelCost:
    """What the plan needs to know: `mixing` are parameters that are no table of tokens, `memory` the bytes of weights,
    gradients and moments, `activations` the numbers per token that are kept for the backward pass."""

    parameters: int
    mixing: int
    memory: int
    activations: int


class ModelSource(Protocol):
    """Builds the model of a spec, and says what it costs.

    `only`: the spec, where there is no choice. `defaults`: training options that suit its models.
    """

    @property
    def only(self) -> AnySpec | None: ...

    @property
    def defaults(self) -> Tree: ...

    def build(self, spec: AnySpec, seed: int, device: torch.device) -> nn.Module:
        """The model with its first weights."""
        ...

    def cost(self, spec: AnySpec) -> ModelCost:
        """Without training it."""
        ...


class SpecModels:
    """Weft's own models, trained as each task finds best."""

    only = None

    @property
    def defaults(self) -> Tree:
        return {}

    def build(self, spec: AnySpec, seed: int, device: torch.device) -> nn.Module:
        return build(spec, seed, str(device))

    def cost(self, spec: AnySpec) -> ModelCost:
        """Counted on the spec."""
        found = estimate(spec)
        tables = sum(count for name, count in found.roles.items() if "embedding" in name)
        classes = int(getattr(spec, "target_vocabulary", None) or getattr(spec, "vocabulary", None) or 1)
        activations = found.layers * KEPT * found.width + 2 * classes
        return ModelCost(found.parameters, found.parameters - tables, found.memory.training_adamw, activations)


@dataclass(frozen=True)
class UserModels:
    """A module of the user's own, made again each time.

    It is trained by AdamW alone, at a rate that suits most small models: which of its matrices lie inside blocks, as
    Muon needs to know, cannot be told from outside.
    """

    given: GivenModule
    task: Task
    seed: int

    @property
    def only(self) -> AnySpec:
        """The spec of a new run."""
        return cast(AnySpec, wrap_module(self.given, self.task.module_interface(), self.seed).spec)

    @property
    def defaults(self) -> Tree:
        return {"optimizer": "adamw", "rate": RATE}

    def build(self, spec: Any, seed: int, device: torch.device) -> nn.Module:
        return rewrap_module(self.given, spec, self.task.module_interface(), seed).to(device)

    def cost(self, spec: Any) -> ModelCost:
        """Activations are measured in one forward pass over few tokens."""
        module = rewrap_module(self.given, spec, self.task.module_interface(), self.seed)
        tables = sum(part.weight.numel() for part in module.modules() if isinstance(part, nn.Embedding))
        own = spec.parameters
        return ModelCost(own, max(1, own - tables), WEIGHT_BYTES * own, kept_for_backward(module))


def model_source(given: GivenModule | None, task: Task, seed: int) -> ModelSource:
    """Weft's own models, or the module that is given."""
    return SpecModels() if given is None else UserModels(given, task, seed)


def kept_for_backward(module: UserModule) -> int:
    """Numbers of 4 bytes per token that a forward pass keeps for the backward pass, weights aside."""
    weights = {weight.data_ptr() for weight in module.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in weights:
            kept[tensor.data_ptr()] = tensor.numel() * tensor.element_size() // 4
        return tensor

    content = module.interface.content(module.spec.length)
    with torch.random.fork_rng(devices=[]), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        module(images=content) if module.interface.images else module(content)
    return sum(kept.values()) // max(1, content.shape[0] * (1 if module.interface.images else content.shape[1]))


def expect_trainable(given: GivenModule, request: TrainRequest, kind: type[Task]) -> None:
    """Refuse what does not go with a module of the user's own: its code decides the model."""
    if not kind.takes_module:
        known = [name for name in trainable_tasks() if task_named(name).takes_module]
        raise WeftError(f"task {kind.name} takes no module of your own: --module goes with {', '.join(known)}")
    others = [*request.model_changes]
    others += [f"--preset {request.preset}"] if request.preset != "auto" else []
    others += [f"--from {request.base}"] if request.base is not None else []
    unsuited = ("recompute", "lora")
    others += [f"training.{name}" for name in unsuited if request.training_changes.get(name)]
    if others:
        raise WeftError(
            f"{', '.join(others)}: a module of your own is built and laid out by your code: leave this out, or --module"
        )
