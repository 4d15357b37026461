"""Rounding with error feedback, and matrices rounded for the inputs that a model's own texts give them."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
import torch

import weft
from weft.inference.fast.calibration import own_texts, round_in_turn
from weft.inference.fast.optimized import optimized
from weft.models.decoder import DecoderSpec
from weft.parts.block_formats import dequantize_blocks, quantize_blocks
from weft.parts.error_feedback import DAMPING, quantize_with_feedback
from weft.parts.quantized import BlockQuantizedLinear


def numbers(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def inputs_of(count: int, columns: int) -> torch.Tensor:
    """Rows whose columns differ in size and depend on each other, as activations do."""
    return numbers(count, columns, seed=2) @ numbers(columns, columns, seed=3) * numbers(columns, seed=4).exp()


def moments_of(x: torch.Tensor) -> torch.Tensor:
    return x.double().T @ x.double() / len(x)


def test_inputs_that_are_independent_and_equal_leave_plain_rounding():
    weight = numbers(7, 96)
    assert torch.equal(quantize_with_feedback(weight, 3 * torch.eye(96)), quantize_blocks("Q4_1", weight))


@pytest.mark.parametrize("columns", [96, 71])
def test_each_column_is_rounded_after_the_rest_made_up_for_those_before_it(columns):
    """By its definition, in float64: once some columns are rounded, the others are where the squared error of the
    outputs is smallest."""
    weight, moments = numbers(5, columns).double(), moments_of(inputs_of(300, columns))
    blocks = quantize_with_feedback(weight.float(), moments)
    rounded = dequantize_blocks("Q4_1", blocks, columns).double()
    sizes = torch.nn.functional.pad(moments.diagonal(), (0, -columns % 32)).view(-1, 32)
    M = moments + DAMPING * sizes.mean() * torch.eye(columns)
    largest = sizes.sum(1).argsort(descending=True).tolist()
    order = [32 * b + i for b in largest for i in sizes[b].argsort(descending=True).tolist() if 32 * b + i < columns]
    d, least = (part.double() for part in blocks.view(5, -1, 20)[..., :4].contiguous().view(torch.float16).unbind(-1))
    for n, i in enumerate(order):
        before, rest = order[:n], order[n:]
        # argmin over w_rest of the error, given the columns that are rounded
        error = weight[:, before] - rounded[:, before]
        moved = weight[:, rest] + error @ M[before][:, rest] @ torch.linalg.inv(M[rest][:, rest])
        q = ((moved[:, 0] - least[:, i // 32]) / d[:, i // 32]).round().clamp(0, 15)
        assert torch.allclose(q * d[:, i // 32] + least[:, i // 32], rounded[:, i], atol=1e-6), i


def test_outputs_are_nearer_than_by_plain_rounding():
    weight, x = numbers(37, 160), inputs_of(500, 160)
    fed = dequantize_blocks("Q4_1", quantize_with_feedback(weight, moments_of(x)), 160)
    plain = dequantize_blocks("Q4_1", quantize_blocks("Q4_1", weight), 160)
    error, before = (((weight - found) @ x.T).square().sum() for found in (fed, plain))
    assert error < 0.5 * before


@pytest.mark.parametrize("moments", [torch.zeros(64, 64), torch.ones(64, 64), torch.eye(64) * (torch.arange(64) < 3)])
def test_inputs_that_never_vary_are_no_matter(moments):
    weight = numbers(3, 64)
    found = dequantize_blocks("Q4_1", quantize_with_feedback(weight, moments), 64)
    assert found.isfinite().all() and (found - weight).abs().max() < 1


SHARED = Path(os.environ.get("WEFT_DATA", Path(__file__).parents[2] / "shared" / "data"))
STORIES = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park with her dog, "
    "Max. One day, Lily and Max went to the park and saw a big red ball. Lily wanted to play with the ball, but "
    "it was stuck in a tree. She tried to reach it, but she was too small. Max barked and jumped, but he could "
    'not reach it either. Lily was sad. Then a tall man came by and saw the ball. He smiled and said, "Do you '
    'want me to help you?" Lily said, "Yes, please!" The man took the ball out of the tree and gave it to Lily. '
    'She was very happy and said, "Thank you!" Lily and Max played with the ball all day long. When the sun went '
    'down, they went home and ate dinner. Lily told her mom about the kind man. Her mom said, "It is good to help'
    ' other people." Lily went to bed with a big smile.\n'
    "Tim had a small blue boat. He took the boat to the pond every morning. One morning it was very windy, and "
    'the water was not calm. Tim put the boat on the water and it began to float away. "Come back!" he cried, but'
    " the boat did not come back. A big duck saw the boat and swam to it. The duck pushed the boat with its beak,"
    " and the boat came to the shore. Tim was so glad that he gave the duck some bread. From that day on, Tim and"
    " the duck were good friends. They met at the pond every day and played together.\n"
    "There was once a bear who lived in the forest. The bear was very hungry because it was winter and there was "
    "no food. He walked and walked until he found a house. In the house lived an old woman who made soup. The "
    'bear knocked on the door. The old woman was scared at first, but the bear said, "I am only hungry. May I '
    'have some soup?" The old woman gave him a bowl of soup. The bear ate it all and said it was the best soup in'
    " the world. To thank her, the bear carried wood for her fire. They sat by the fire and told each other "
    "stories until the snow was gone.\n"
    "Sara and Ben were playing in the kitchen. They wanted to bake a cake for their dad because it was his "
    "birthday. They took the flour, the eggs and the sugar from the shelf. Ben dropped an egg on the floor, and "
    'it made a mess. "Oh no!" said Sara. "Mom will be angry." But Mom came in and laughed. She helped them clean '
    "the floor and showed them how to mix the cake. When Dad came home, the cake was ready. He blew out the "
    'candles and hugged them both. "This is the best birthday ever," he said. Sara and Ben were very proud.\n'
)
SPEC = DecoderSpec(vocabulary=61, length=23, width=48, layers=2)


def test_texts_of_its_own_are_the_same_each_time():
    model = weft.build(SPEC).eval()
    texts = own_texts(model, texts=5, length=400)
    assert texts.shape == (5, 23) and texts.max() < 61
    assert torch.equal(texts, own_texts(model, texts=5, length=400))
    assert all(isinstance(part, torch.nn.Linear) for part in model.modules() if hasattr(part, "in_features"))


@torch.no_grad()
def test_matrices_meet_the_inputs_that_rounded_ones_give():
    model = weft.build(SPEC).eval()
    tokens, met = own_texts(model), {}

    def keep(linear, moments):
        met[linear] = moments
        return BlockQuantizedLinear.of(linear, "Q4_1", moments)

    names = {part: name for name, part in model.named_modules()}
    round_in_turn(model, tokens, keep)
    assert not any(isinstance(part, torch.nn.Linear) for part in model.stack.modules())
    last = next(part for part in reversed(list(met)))
    rows = []
    parts = dict(model.named_modules())
    hook = parts[names[last]].register_forward_pre_hook(lambda part, given: rows.append(given[0].flatten(0, 1)))
    model(tokens)
    hook.remove()
    assert torch.equal(met[last], rows[0].T @ rows[0] / len(rows[0]))


@pytest.mark.skipif(not (SHARED / "weights_small").exists(), reason="the folder of real weights is not there")
@torch.inference_mode()
def test_real_weights_of_four_bits_cost_at_most_five_percent_of_perplexity(tmp_path):
    run = weft.import_checkpoint(SHARED / "weights_small" / "stories260K-hf", tmp_path / "run", certificate=False)
    tokens = torch.tensor(run.task.prompt_ids(STORIES))
    rows = tokens[: len(tokens) // 220 * 220].view(-1, 220)

    def loss(model) -> float:
        logits = optimized(model)(rows).logits
        return float(torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), rows[:, 1:].flatten()))

    expected, rounded = loss(run.module), weft.load(run.folder, quantize="int4").module
    assert rows.numel() > 800 and expected < 1.6
    assert abs(loss(rounded) - expected) < math.log(1.05)
