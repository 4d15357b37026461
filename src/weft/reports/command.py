"""The command that trains the same again."""

from __future__ import annotations

from collections.abc import Mapping
from shlex import join
from typing import Any

from weft.training.planning.plan import TrainingPlan
from weft.training.request import TrainRequest

LORA = "training.lora"
OWN_MODULE = "FILE.py:NAME"  # of a module that was given in Python


def reproducing_command(request: TrainRequest, own_module: str | None = None) -> str:
    """`weft train ...` with the options of a request; `own_module` names the user's own module, if there is one."""
    words = ["weft", "train", request.task, *request.data, "--out", f"{request.out}-again"]
    given: dict[str, Any] = {
        "--preset": None if request.preset == "auto" else request.preset,
        "--from": request.base,
        "--lora": request.changes.get(LORA),
        "--module": own_module,
        "--steps": request.steps,
        "--minutes": request.minutes,
        "--seed": request.seed or 0,
        "--device": request.device,
        "--parallel": request.parallel,
    }
    for option, value in given.items():
        words += [] if value is None else [option, f"{value:g}" if isinstance(value, float) else str(value)]
    words += ["--compile"] if request.compile else []
    for name, value in request.changes.items():
        words += [] if name == LORA else ["--set", f"{name}={_setting(value)}"]
    return join(words)


def planned_options(plan: TrainingPlan, model: Mapping[str, Any]) -> str:
    """Options in place of --minutes with which the plan is the same on a machine of any speed."""
    sizes = [f"--set {name}={model[name]}" for name in ("width", "layers") if isinstance(model.get(name), int)]
    fitted = [] if plan.head is None else [f"--set training.head={'linear' if plan.head.frozen else 'start'}"]
    return " ".join([f"--steps {plan.last or plan.steps}", *sizes, f"--set training.batch={plan.batch}", *fitted])


def _setting(value: Any) -> str:
    """A value as --set reads it."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value)
