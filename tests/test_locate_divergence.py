"""The parity microscope: each planted difference is found at its place and called by its name."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import subjects
import weft
from weft.foundation.errors import WeftError
from weft.parts.block import PreNorm
from weft.parts.masks import Causal, Everything, Window
from weft.parts.norms import RMSNorm
from weft.parts.scores import Dot

TOKENS = torch.tensor([[3, 7, 11, 2, 5, 9, 8, 1], [4, 1, 6, 10, 12, 2, 3, 0]])


def model(name: str = "gpt2", **changes) -> nn.Module:
    return subjects.build(subjects.shrink(weft.preset(name)).replace(**changes))


def same(one: nn.Module, **changes) -> nn.Module:
    """Another spec with the weights of one."""
    other = weft.build(one.spec.replace(**changes), dtype=torch.float64).eval()
    weights = dict(one.state_dict())
    known = other.state_dict()
    other.load_state_dict({key: weights.get(key, value) for key, value in known.items()})
    return other


def plant(change) -> tuple[nn.Module, nn.Module]:
    one = model()
    other = copy.deepcopy(one)
    change(other)
    return one, other


def block(module: nn.Module, layer: int = 1):
    return module.stack.blocks[layer]


def transpose(module: nn.Module) -> None:
    with torch.no_grad():
        weight = block(module).mixer.output.weight
        weight.copy_(weight.T.clone())


def lose_bias(module: nn.Module) -> None:
    block(module).feedforward.up.bias = None


def shift_positions(module: nn.Module) -> None:
    with torch.no_grad():
        table = module.input.position.table
        table.copy_(table.roll(-1, 0))


class HalfResidual(PreNorm):
    def forward(self, z, context=None, state=None, source=None, notes=None):
        z = z + self.mixer(self.mixer_norm(z), context, state)
        return self.feedforward(self.feedforward_norm(z), notes)


def lose_residual(module: nn.Module) -> None:
    block(module).__class__ = HalfResidual


def swap_norm(module: nn.Module) -> None:
    own = block(module)
    old = own.feedforward_norm
    own.feedforward_norm = RMSNorm(old.gamma.shape[0], old.epsilon).double()
    with torch.no_grad():
        own.feedforward_norm.gamma.copy_(old.gamma)
    old.beta.data.zero_()


def set_mask(module: nn.Module, mask) -> None:
    module.stack.masks = (Causal(), mask)
    module.stack._bands = dict.fromkeys(module.stack.masks)


def double_embedding(module: nn.Module) -> None:
    module.embedding.scale = 2.0


def nudge(module: nn.Module) -> None:
    with torch.no_grad():
        block(module).feedforward.down.weight[0, 0] += 0.5


def put(name: str, value, part: str = "feedforward"):
    return lambda module: setattr(getattr(block(module), part), name, value)


BLOCK = "stack.blocks.1"
PLANTS = {
    "norm epsilon": (put("epsilon", 1e-6, "mixer_norm"), f"{BLOCK}.mixer_norm", "1e-06 in b"),
    "score scale": (put("score", Dot(), "mixer"), f"{BLOCK}.mixer", "sqrt(D_K)"),
    "mask": (
        lambda m: set_mask(m, Everything()),
        f"{BLOCK}.mixer",
        "b sees 28 pairs that the other hides (the",
    ),
    "mask ": (lambda m: set_mask(m, Causal() & Window(3)), f"{BLOCK}.mixer", "a sees 15 pairs"),
    "position offset": (shift_positions, "input.position", "t +1"),
    "GELU kind": (put("activation", nn.functional.gelu), f"{BLOCK}.feedforward", "gelu-tanh in a, gelu in b"),
    "activation": (put("activation", nn.functional.relu), f"{BLOCK}.feedforward", "relu in b"),
    "missing bias": (lose_bias, f"{BLOCK}.feedforward.up", "b has no bias"),
    "transposed weight": (transpose, f"{BLOCK}.mixer.output", "x W"),
    "missing residual": (lose_residual, BLOCK, "b lacks"),
    "norm kind": (swap_norm, f"{BLOCK}.feedforward_norm", "LayerNorm in a, RMSNorm in b"),
    "embedding scale": (double_embedding, "embedding", "2 times"),
    "weights": (nudge, f"{BLOCK}.feedforward.down", "weight differs"),
}


@pytest.mark.parametrize("name", PLANTS)
def test_each_planted_difference_is_called_by_its_name(name):
    change, path, said = PLANTS[name]
    one, other = plant(change)
    if name == "norm kind":
        block(one).feedforward_norm.beta.data.zero_()
    found = weft.locate_divergence(one, other, TOKENS)
    assert not found.agree
    assert found.cause == name.strip(), str(found)
    assert said in found.evidence
    assert found.path_a.startswith(path)
    assert found.layer == (1 if "blocks" in path else None)
    assert found.relative > 0 and found.final > 0
    if "blocks" in path:
        assert found.trail[0][1] < 1e-9 < found.trail[1][1]
    assert name.strip() in str(found)


def test_norm_order():
    one = model()
    other = same(one, arrangement="post-norm", last_norm=True)
    found = weft.locate_divergence(one, other, TOKENS)
    assert found.cause == "norm order"
    assert "mixer_norm -> mixer" in found.evidence and found.layer == 0


@pytest.mark.parametrize(
    ("changes", "cause"),
    [({"positions.base": 1e6}, "rotary base"), ({"mixer.window": 3}, "mask")],
)
def test_rotary_base_and_windows(changes, cause):
    one = model("llama-2-7b")
    found = weft.locate_divergence(one, same(one, **changes), TOKENS)
    assert found.cause == cause, str(found)


def test_rotary_offsets_of_keys_and_layouts():
    one = model("llama-2-7b")
    other = copy.deepcopy(one)
    rotary = other.stack.position
    angles = rotary.angles
    rotary.angles = lambda positions, dtype: angles(positions * 2, dtype)
    rotary.angles_of = lambda places, dtype: rotary.angles(places.positions, dtype)
    assert weft.locate_divergence(one, other, TOKENS).cause == "positions"


def test_equal_models_agree_and_modes_and_precision_are_named():
    one = model(dropout=0.1)
    twin = copy.deepcopy(one)
    found = weft.locate_divergence(one, twin, TOKENS)
    assert found.agree and "agree" in str(found)
    twin.train()
    assert weft.locate_divergence(one, twin, TOKENS).cause == "mode"
    rough = copy.deepcopy(one).to(torch.bfloat16)
    assert weft.locate_divergence(copy.deepcopy(rough).double(), rough, TOKENS).cause == "precision"
    with pytest.raises(WeftError, match="nothing to compare on"):
        weft.locate_divergence(one, twin)
