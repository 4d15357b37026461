"""One contract suite over every preset (shrunk), judged in float64; exact zeros where shapes are equal."""

from __future__ import annotations

import functools

import pytest
import torch
from safetensors.torch import load_file, save_file

import weft
from subjects import Subject, build, causal_presets, shrink, tokens_presets
from weft.parts.attention import set_backend
from weft.parts.masks import Documents, Padding

CLOSE = 1e-10
B, T = 3, 11
LONG = 41


@functools.cache
def subject(name: str) -> Subject:
    return Subject(build(shrink(weft.preset(name))))


def gap(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).detach().abs().max())


def swapped(content: torch.Tensor, position: int, rows=slice(None)) -> torch.Tensor:
    """The same content with another token at one position."""
    other = content.clone()
    new = content[rows, position] + 1
    other[rows, position] = new % 47 if not content.dtype.is_floating_point else new
    return other


@pytest.mark.parametrize("name", weft.presets())
def test_gradients_reach_every_parameter(name):
    model = build(shrink(weft.preset(name)))
    one = Subject(model)
    if one.spec.family == "vision":
        out = model(torch.randn(B, 3 if one.spec.channels == 3 else 1, 12, 12, dtype=torch.float64)).logits
    elif one.spec.family == "encoder":
        extra = {} if not one.spec.input.segments else {"segments": torch.randint(0, 2, (B, LONG))}
        out = model(one.content(B, LONG), **extra)
        out = torch.cat((out.logits.flatten(), out.hidden.flatten()))
    else:
        out = one.run(one.content(B, LONG))
    out.square().mean().backward()
    unreached = [key for key, p in model.named_parameters() if p.grad is None or float(p.grad.abs().sum()) == 0]
    assert not unreached


@pytest.mark.parametrize("name", causal_presets())
def test_no_look_ahead(name):
    one = subject(name)
    content = one.content(B, T)
    before = one.run(content)
    for position in (1, 4, T - 1):
        after = one.run(swapped(content, position))
        assert gap(before[:, :position], after[:, :position]) <= (0.0 if one.exact else CLOSE)
        assert gap(before[:, position], after[:, position]) > 1e-6


@pytest.mark.parametrize("name", tokens_presets())
def test_batch_company_changes_nothing(name):
    one = subject(name)
    content = one.content(B, T)
    together = one.run(content)
    other = content.clone()
    other[1:] = one.content(B, T, seed=9)[1:]
    if one.declares.seq2seq or one.spec.family == "image-text":
        source = one.source(B)
        changed = source.clone()
        changed[1:] = changed[1:].flip(-1)
        company = one.run(other, source=changed)
        alone = one.run(content[:1], source=source[:1])
    else:
        company, alone = one.run(other), one.run(content[:1])
    assert gap(together[0], company[0]) <= (0.0 if one.exact else CLOSE)
    assert gap(together[:1], alone) < CLOSE


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", tokens_presets())
def test_padding_changes_nothing(name, side):
    one = subject(name)
    lengths = [4, T, 1]
    content = one.content(B, T)
    padded = one.content(B, T, seed=5)
    rows = []
    for row, length in enumerate(lengths):
        real = slice(T - length, T) if side == "left" else slice(0, length)
        padded[row, real] = content[row, :length]
        rows.append(real)
    marks = torch.zeros(B, T, dtype=torch.bool)
    for row, real in enumerate(rows):
        marks[row, real] = True
    for mask in (Padding(torch.tensor(lengths), side), marks):
        out = one.run(padded, mask)
        source = one.source(B) if one.declares.seq2seq or one.spec.family == "image-text" else None
        for row, length in enumerate(lengths):
            own = None if source is None else source[row : row + 1]
            alone = one.run(content[row : row + 1, :length], source=own)
            assert gap(out[row, rows[row]], alone[0]) < CLOSE


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", [n for n in weft.presets() if weft.preset(n).declares().seq2seq])
def test_source_padding_changes_nothing(name, side):
    one = subject(name)
    if getattr(one.source_kind, "kind", "") == "patches":
        pytest.skip("an image has no padding")
    source, target = one.source(2), one.content(2, T)
    padded, steps = one.source(2, 17, seed=8), one.steps
    real = slice((17 - 13) * steps, 17 * steps) if side == "left" else slice(0, 13 * steps)
    padded[0, real] = source[0]
    mask = Padding(torch.tensor([13, 17]), side)
    memory = one.module.encode(padded, mask=mask)
    out = one.module.decode(target, memory).logits
    alone = one.module.decode(target[:1], one.module.encode(source[:1])).logits
    assert gap(out[:1], alone) < CLOSE


@pytest.mark.parametrize("name", [n for n in tokens_presets() if weft.preset(n).family not in ("image-text",)])
def test_packing_changes_nothing(name):
    one = subject(name)
    content = one.content(1, T)
    ids = torch.tensor([[3, 3, 3, 3, 1, 5, 5, 5, 5, -1, -1]])
    if one.spec.family == "recurrent-seq2seq" or getattr(one.spec, "class_token", False):
        with pytest.raises(weft.WeftError):
            one.run(content, Documents(ids))
        return
    out = one.run(content, Documents(ids))
    for first, last in ((0, 4), (4, 5), (5, 9)):
        assert gap(out[:, first:last], one.run(content[:, first:last])) < CLOSE


@pytest.mark.parametrize("name", causal_presets())
@pytest.mark.parametrize("chunks", [(1,) * 19, (5, 1, 1, 7, 1, 4), (19,)], ids=["one by one", "chunks", "whole"])
def test_cached_equals_full(name, chunks):
    one = subject(name)
    content = one.content(B, 19)
    full = one.run(content)
    for capacity in (None, 64):
        state = one.module.make_state(B, capacity)
        pieces, first = [], 0
        for size in chunks:
            pieces.append(one.run(content[:, first : first + size], state=state, begin=first == 0))
            first += size
        assert gap(torch.cat(pieces, 1), full) < CLOSE


@pytest.mark.parametrize("name", causal_presets())
@pytest.mark.parametrize("side", ["left", "right"])
def test_ragged_decoding_equals_each_row_alone(name, side):
    one = subject(name)
    lengths, more = torch.tensor([3, 7, 5]), 9
    content = one.content(B, 16)
    prompt = one.content(B, 7, seed=3)
    for row, length in enumerate(lengths.tolist()):
        prompt[row, slice(7 - length, 7) if side == "left" else slice(0, length)] = content[row, :length]
    state = one.module.make_state(B)
    one.run(prompt, Padding(lengths, side), state)
    pieces = []
    for step in range(more):
        token = torch.stack([content[row, length + step] for row, length in enumerate(lengths.tolist())])[:, None]
        pieces.append(one.run(token, state=state, begin=False))
    source = one.source(B) if one.declares.seq2seq or one.spec.family == "image-text" else None
    for row, length in enumerate(lengths.tolist()):
        own = None if source is None else source[row : row + 1]
        alone = one.run(content[row : row + 1, : length + more], source=own)
        assert gap(torch.cat(pieces, 1)[row], alone[0, length:]) < CLOSE


@pytest.mark.parametrize("name", causal_presets())
def test_state_rows_can_be_reordered_and_copied(name):
    one = subject(name)
    content = one.content(B, 9)
    state = one.module.make_state(B)
    with torch.no_grad():
        one.run(content[:, :5], state=state)
        kept = state.copy()
        rows = torch.tensor([2, 0, 2, 1])
        state.reorder(rows)
        source = None
        if one.declares.seq2seq or one.spec.family == "image-text":
            source = one.source(B)[rows]
        later = one.run(content[rows, 5:], state=state, source=source, begin=False)
        again = one.run(content[:, 5:], state=kept, begin=False)
    full = one.run(content)
    assert gap(again, full[:, 5:]) < CLOSE
    assert gap(later, full[rows, 5:]) < CLOSE


@pytest.mark.parametrize("name", causal_presets())
def test_a_state_refuses_another_batch_and_what_does_not_fit(name):
    one = subject(name)
    with pytest.raises(weft.WeftError, match="rows"):
        one.run(one.content(2, 3), state=one.module.make_state(3))
    bounded = one.module.make_state(1, capacity=14)
    if bounded.cache_slots and all(slots_of_window.limit for slots_of_window in bounded.cache_slots.values()):
        with pytest.raises(weft.WeftError, match="capacity"):
            one.run(one.content(1, 17), state=bounded)


@pytest.mark.parametrize("name", weft.presets())
def test_permuting_a_set_permutes_the_outputs(name):
    spec = shrink(weft.preset(name))
    if spec.family not in ("encoder", "decoder") or spec.mixer[0].kind != "attention":
        pytest.skip("order counts through recurrence, convolution, masks or grids")
    if spec.family == "decoder":
        spec = weft.models.encoder.EncoderSpec(
            **{key: getattr(spec, key) for key in ("width", "layers", "feedforward", "norm", "arrangement")}
            | {"mixer": spec.mixer[0].replace(window=None)}
        )
    one = Subject(build(spec.replace(positions={"kind": "none"}, class_token=False, length=41)))
    assert one.declares.order_free
    content = one.content(B, T)
    order = torch.randperm(T)
    assert gap(one.run(content)[:, order], one.run(content[:, order])) < CLOSE


@pytest.mark.parametrize("name", causal_presets())
def test_shift_changes_nothing_where_positions_are_relative(name):
    one = subject(name)
    if one.declares.seq2seq or one.spec.family == "image-text":
        pytest.skip("the target's positions count from the source's")
    content = one.content(B, T)
    positions = torch.arange(T)
    moved = one.run(content, positions=positions + 23)
    difference = gap(one.run(content, positions=positions), moved)
    if one.declares.positions == "absolute":
        assert difference > 1e-6
    else:
        assert difference < CLOSE


@pytest.mark.parametrize("name", weft.presets())
def test_fused_explicit_and_blocked_agree(name, monkeypatch):
    monkeypatch.setattr(weft.parts.kernels.blocked, "__defaults__", (0.0, 5))
    one = Subject(build(shrink(weft.preset(name))))
    outs = []
    for backend in ("auto", "explicit", "fused", "blocked"):
        set_backend(one.module, backend)
        if one.spec.family == "vision":
            images = torch.randn(
                2, one.spec.channels, 12, 12, generator=torch.Generator().manual_seed(3), dtype=torch.float64
            )
            outs.append(one.module(images).logits)
        else:
            outs.append(one.run(one.content(B, T)))
    for other in outs[1:]:
        assert gap(outs[0], other) < CLOSE


@pytest.mark.parametrize("name", causal_presets())
def test_one_set_of_weights_serves_all_lengths(name):
    one = subject(name)
    content = one.content(2, 23)
    full = one.run(content)
    for length in (1, 2, 13):
        assert gap(one.run(content[:, :length]), full[:, :length]) < CLOSE


@pytest.mark.parametrize("name", causal_presets())
def test_the_naive_loop_over_prefixes_equals_the_masked_forward(name):
    one = subject(name)
    content = one.content(1, 7)
    naive = torch.stack([one.run(content[:, : n + 1])[:, -1] for n in range(7)], 1)
    assert gap(naive, one.run(content)) < CLOSE


@pytest.mark.parametrize("name", weft.presets())
def test_saving_and_loading_keep_every_bit(name, tmp_path):
    spec = shrink(weft.preset(name))
    module = weft.build(spec, seed=3)
    save_file(module.state_dict(), tmp_path / "model.safetensors")
    other = weft.build(weft.read_spec(spec.to_json()), seed=4)
    other.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert all(
        torch.equal(a, b) for a, b in zip(module.state_dict().values(), other.state_dict().values(), strict=True)
    )
    if spec.family != "vision":
        a, b = Subject(module.double().eval()), Subject(other.double().eval())
        assert torch.equal(a.run(a.content(2, 5)), b.run(a.content(2, 5)))


@pytest.mark.parametrize("name", weft.presets())
def test_same_seed_same_bits(name):
    spec = shrink(weft.preset(name))
    torch.manual_seed(1)
    first = weft.build(spec, seed=11).state_dict()
    torch.manual_seed(2)
    again, other = weft.build(spec, seed=11).state_dict(), weft.build(spec, seed=12).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize("name", [n for n in weft.presets() if weft.preset(n).family == "decoder"])
def test_initial_loss_is_near_the_logarithm_of_the_vocabulary(name):
    spec = weft.preset(name)
    spec = shrink(spec).replace(initialization=spec.initialization.to_tree())
    model = weft.build(spec).eval()
    tokens = torch.randint(0, 53, (8, 41))
    loss = torch.nn.functional.cross_entropy(model(tokens).logits.flatten(0, 1), tokens.roll(-1, 1).flatten())
    assert abs(float(loss.detach()) - float(torch.tensor(53.0).log())) < 0.5
