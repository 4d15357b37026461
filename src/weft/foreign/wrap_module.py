"""From what users give (a module, a class, a function) to a `UserModule` that Weft can train, load and check."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from weft.foreign.exact import AsIs
from weft.foreign.plain import plain_subject
from weft.foreign.recognize import subject_of
from weft.foreign.subject import Subject
from weft.foreign.user_module import CallForm, ModuleInterface, UserModule
from weft.foundation.errors import WeftError
from weft.models.module_spec import ModuleSpec

GivenModule = nn.Module | Callable[..., Any]


def wrap_module(given: GivenModule, interface: ModuleInterface, seed: int = 0) -> UserModule:
    """A new run's module. A factory's random numbers follow from the seed; a module is copied with its weights."""
    module = make_module(given, interface.sizes, seed)
    own = plain_subject(module, None).declares.length
    spec = ModuleSpec.of(
        module,
        sizes=interface.sizes,
        causal=interface.causal,
        cached=_cached_subject(module, interface) is not None,
        length=None if interface.images else own or interface.sizes.get("length"),
        vocabulary=interface.sizes.get("vocabulary"),
    )
    return _wrap(module, spec, interface)


def rewrap_module(given: GivenModule | None, spec: ModuleSpec, interface: ModuleInterface, seed: int = 0) -> UserModule:
    """The module of a run, made again; refused if none is given, or another one."""
    if given is None:
        spec.build()
    module = make_module(given, spec.sizes, seed)
    spec.expect_same(module)
    return _wrap(module, spec, interface)


def given_module(module: nn.Module) -> nn.Module | None:
    """The user's own module inside, None for a model of Weft's."""
    return module.module if isinstance(module, UserModule) else None


def _wrap(module: nn.Module, spec: ModuleSpec, interface: ModuleInterface) -> UserModule:
    content = interface.content(spec.length)
    form = CallForm() if interface.images else _call_form(module, content, interface.per_token)
    wrapped = UserModule(module, spec, interface, form, _cached_subject(module, interface))
    _expect_answer(wrapped, content)
    return wrapped


def make_module(given: Any, sizes: dict[str, int], seed: int) -> nn.Module:
    """What a factory makes, called with those sizes that it names; or a copy of a module; in float32."""
    if isinstance(given, UserModule):
        given = given.module
    if isinstance(given, nn.Module):
        module = copy.deepcopy(given)
    elif callable(given):
        module = _call_factory(given, sizes, seed)
    else:
        raise WeftError(f"module= takes a torch module, or a class or function that makes one, not {given!r:.60}")
    if not isinstance(module, nn.Module):
        raise WeftError(f"{_name(given)} gives a {type(module).__name__}: give a function that makes a torch module")
    if not any(weight.requires_grad for weight in module.parameters()):
        raise WeftError(f"{type(module).__name__} has no weights to train: give a module with parameters")
    return module.float()


def _call_factory(factory: Callable[..., Any], sizes: dict[str, int], seed: int) -> Any:
    try:
        named = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        named = {}  # type: ignore[assignment]
    taken = {name: size for name, size in sizes.items() if name in named}
    missing = [
        name
        for name, one in named.items()
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD) and name not in taken
    ]
    if missing:
        raise WeftError(
            f"{_name(factory)} needs {', '.join(missing)}, but this task can only give {', '.join(sizes)}: "
            f"wrap it in a function that sets the rest, such as lambda {', '.join(sizes)}: {_name(factory)}(...)"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            return factory(**taken)
        except WeftError:
            raise
        except Exception as error:
            raise WeftError(f"{_name(factory)} fails with {_reason(error)}") from error


def _expect_answer(wrapped: UserModule, content: Tensor) -> None:
    """Refuse a module that fails when it is called, or whose answer has another shape, before anything is trained."""
    training, interface = wrapped.training, wrapped.interface
    wrapped.eval()
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            wrapped(images=content) if interface.images else wrapped(content)
    except WeftError:
        raise
    except Exception as error:
        kind = "images" if interface.images else "vectors" if content.is_floating_point() else "tokens"
        raise WeftError(
            f"{wrapped.spec.name} fails when called with {kind} {list(content.shape)}: {_reason(error)}; it is called "
            f"as module({kind}) and answers logits {interface.answer}"
        ) from error
    wrapped.train(training)


def _call_form(module: nn.Module, content: Tensor, per_token: bool) -> CallForm:
    """How the module takes padding and targets, tried on a copy in float64."""
    try:
        with torch.random.fork_rng(devices=[]):
            wide = plain_subject(copy.deepcopy(module).double().eval(), content)
            given = content.double() if content.is_floating_point() else content
            mask = wide.padding_argument(given)
            target = wide.target_argument(given) if per_token else None
    except Exception:  # what fails in float64 is called in the plainest way
        return CallForm()
    if mask is None:
        return CallForm(target=target)
    required = inspect.signature(module.forward).parameters[mask[0]].default is inspect.Parameter.empty
    return CallForm(*mask, required, target)


def _cached_subject(module: nn.Module, interface: ModuleInterface) -> Subject | None:
    """The adapter of its library that knows its cache, where texts are generated."""
    if not interface.causal:
        return None
    subject = subject_of(module)
    if not subject.declares.cached:
        return None
    subject.exact = AsIs()
    return subject


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]:.160}"


def _name(given: Any) -> str:
    return getattr(given, "__name__", type(given).__name__)
