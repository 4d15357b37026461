"""Parts against torch.nn's modules with the same weights: 1e-5 in float32, 1e-10 in float64."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from peers import cross_attention, load, norm, prefixed, randomize, self_attention, torch_block
from weft.models.encoder_decoder import EncoderDecoderSpec
from weft.models.part_specs import AttentionSpec, ClassicSpec
from weft.models.position_specs import NoPositionsSpec
from weft.parts.attention import CrossAttention, SelfAttention, set_backend
from weft.parts.attention_context import AttentionContext
from weft.parts.block import CrossAttentionSource, PostNorm, PreNorm
from weft.parts.embeddings import PatchEmbedding
from weft.parts.feedforward import FeedForward
from weft.parts.kernels import BLOCK
from weft.parts.masks import Causal, Dilated, Graph, Mask, Padding, Prefix, Real, Window
from weft.parts.norms import LayerNorm, RMSNorm
from weft.parts.recurrence import Recurrence, Recurrent, gru_step, lstm_step, rnn_step
from weft.parts.relative import Alibi
from weft.parts.token_positions import TokenPositions

B, T, S, H, K, F, M = 2, 5, 11, 3, 7, 29, 13  # M: the memory's width
D = H * K
WITHIN = {torch.float32: 1e-5, torch.float64: 1e-10}
CELLS = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
BACKENDS = ("auto", "explicit", "fused", "blocked")

both_types = pytest.mark.parametrize("dtype", WITHIN, ids=str)


def random(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def agree(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=WITHIN[theirs.dtype], rtol=0)


def attentions(dtype: torch.dtype = torch.float64, bias: bool = True) -> tuple[SelfAttention, nn.MultiheadAttention]:
    theirs = nn.MultiheadAttention(D, H, bias=bias, batch_first=True).to(dtype)
    randomize(theirs)
    ours = SelfAttention(D, H, bias=bias).to(dtype)
    load(ours, self_attention(theirs), theirs)
    return ours, theirs


# --- attention ---


@both_types
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_self_attention_and_its_gradients(dtype, bias, backend):
    ours, theirs = attentions(dtype, bias)
    set_backend(ours, backend)
    x, y = (random(B, T, D, dtype=dtype).requires_grad_() for _ in range(2))
    out, expected = ours(x), theirs(y, y, y, need_weights=False)[0]
    agree(out, expected)
    (out**2).sum().backward()
    (expected**2).sum().backward()
    scale = y.grad.abs().max()
    agree(x.grad / scale, y.grad / scale)
    scale = theirs.in_proj_weight.grad.abs().max()
    agree(ours.qkv.weight.grad / scale, theirs.in_proj_weight.grad / scale)


def distances(length: int) -> Tensor:
    index = torch.arange(length)
    return index[:, None] - index[None]


EDGES = torch.rand(T, T, generator=torch.Generator().manual_seed(3)) < 0.5
MASKS: dict[str, tuple[Mask, Tensor]] = {
    "causal": (Causal(), distances(T) >= 0),
    "window": (Window(2), distances(T).abs() < 2),
    "causal window": (Causal() & Window(2), (distances(T) >= 0) & (distances(T) < 2)),
    "prefix": (Prefix(2), (distances(T) >= 0) | (torch.arange(T) < 2)),
    "dilated": (Dilated(2), distances(T) % 2 == 0),
    "graph": (Graph(EDGES | torch.eye(T).bool()), EDGES | torch.eye(T).bool()),
    "either": (Window(2) | Dilated(3), (distances(T).abs() < 2) | (distances(T) % 3 == 0)),
}


@both_types
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", MASKS)
def test_masks_are_the_opposite_of_attn_mask(dtype, backend, name):
    mask, seen = MASKS[name]
    ours, theirs = attentions(dtype)
    set_backend(ours, backend)
    x = random(B, T, D, dtype=dtype)
    agree(ours(x, AttentionContext.of(x, mask)), theirs(x, x, x, attn_mask=~seen)[0])


BANDS: dict[str, tuple[Mask, Callable[[Tensor], Tensor]]] = {
    "causal": (Causal(), lambda far: far >= 0),
    "causal window": (Causal() & Window(7), lambda far: (far >= 0) & (far < 7)),
    "window": (Window(131), lambda far: far.abs() < 131),
}


@both_types
@pytest.mark.parametrize("name", BANDS)
def test_blocks_of_queries_and_their_gradients(dtype, name):
    """A text longer than two blocks of the blocked kernel."""
    length = 2 * BLOCK + 7
    mask, seen = BANDS[name]
    ours, theirs = attentions(dtype)
    set_backend(ours, "blocked")
    x, y = (random(B, length, D, dtype=dtype).requires_grad_() for _ in range(2))
    out = ours(x, AttentionContext.of(x, mask))
    expected = theirs(y, y, y, attn_mask=~seen(distances(length)), need_weights=False)[0]
    agree(out, expected)
    (out**2).sum().backward()
    (expected**2).sum().backward()
    scale = y.grad.abs().max()
    agree(x.grad / scale, y.grad / scale)


@both_types
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_key_padding_mask(dtype, backend, causal, side):
    ours, theirs = attentions(dtype)
    set_backend(ours, backend)
    lengths, x = torch.tensor([2, 4]), random(B, T, D, dtype=dtype)
    index = torch.arange(T)
    real = index < lengths[:, None] if side == "right" else index >= T - lengths[:, None]
    expected = theirs(x, x, x, key_padding_mask=~real, attn_mask=distances(T) < 0 if causal else None)[0]
    for mask in (Padding(lengths, side), Real(real)):
        out = ours(x, AttentionContext.of(x, mask & Causal() if causal else mask))
        agree(out[real], expected[real])


@both_types
def test_weights_are_those_that_torch_gives(dtype):
    ours, theirs = attentions(dtype)
    x, lengths = random(B, T, D, dtype=dtype), torch.tensor([2, 4])
    real = torch.arange(T) < lengths[:, None]
    context = AttentionContext.of(x, Causal() & Padding(lengths))
    query, key, _ = ours.project(x)
    weights = ours.weights(query, key, context)
    call = {"key_padding_mask": ~real, "attn_mask": distances(T) < 0}
    expected = theirs(x, x, x, average_attn_weights=False, **call)[1]
    agree(weights.transpose(1, 2)[real], expected.transpose(1, 2)[real])
    agree(weights.mean(1)[real], theirs(x, x, x, **call)[1][real])


@both_types
@pytest.mark.parametrize("backend", BACKENDS)
def test_alibi_is_an_additive_mask(dtype, backend):
    ours, theirs = attentions(dtype)
    set_backend(ours, backend)
    x = random(B, T, D, dtype=dtype)
    slopes = torch.tensor([2.0**-4, 2.0**-8, 2.0**-2], dtype=dtype)  # two heads' slopes, then the first between them
    bias = (-slopes[:, None, None] * distances(T).abs()).masked_fill(distances(T) < 0, float("-inf"))
    expected = theirs(x, x, x, attn_mask=bias.repeat(B, 1, 1))[0]
    agree(ours(x, AttentionContext.of(x, Causal(), Alibi(H))), expected)


@both_types
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("memory_width", [D, M])
def test_cross_attention(dtype, backend, bias, memory_width):
    theirs = nn.MultiheadAttention(D, H, bias=bias, kdim=memory_width, vdim=memory_width, batch_first=True).to(dtype)
    randomize(theirs)
    ours = CrossAttention(D, H, memory_width, bias=bias).to(dtype)
    load(ours, cross_attention(theirs), theirs)
    set_backend(ours, backend)
    x, memory = random(B, T, D, dtype=dtype), random(B, S, memory_width, dtype=dtype, seed=2)
    agree(ours(x, memory), theirs(x, memory, memory)[0])

    lengths = torch.tensor([3, 8])
    context = AttentionContext(TokenPositions.run(0, T, x.device), TokenPositions.of_lengths(lengths, S))
    expected, weights = theirs(
        x, memory, memory, key_padding_mask=torch.arange(S) >= lengths[:, None], average_attn_weights=False
    )
    agree(ours(x, memory, context), expected)
    agree(ours.weights(ours.project(x), ours.project_memory(memory)[0], context), weights)


@both_types
def test_cross_attention_with_keys_and_values_of_their_own_width(dtype):
    theirs = nn.MultiheadAttention(D, H, kdim=M, vdim=17, batch_first=True).to(dtype)
    randomize(theirs)
    ours = CrossAttention(D, H, M + 17).to(dtype)
    ours.load_state_dict(cross_attention(theirs))
    x, key, value = (random(B, n, d, dtype=dtype, seed=d) for n, d in ((T, D), (S, M), (S, 17)))
    agree(ours(x, torch.cat((key, value), -1)), theirs(x, key, value)[0])


# --- blocks ---


def blocks(norm_first: bool, activation: str, dtype: torch.dtype, decoder: bool = False):
    kind = nn.TransformerDecoderLayer if decoder else nn.TransformerEncoderLayer
    theirs = kind(D, H, F, 0.0, activation, layer_norm_eps=1e-3, batch_first=True, norm_first=norm_first).to(dtype)
    randomize(theirs)
    ours = (PreNorm if norm_first else PostNorm)(
        SelfAttention(D, H),
        FeedForward(D, F, activation),
        lambda: LayerNorm(D, epsilon=1e-3),
        CrossAttention(D, H) if decoder else None,
    ).to(dtype)
    load(ours, torch_block(theirs), theirs)
    return ours, theirs


@both_types
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [True, False])
def test_encoder_layer(dtype, activation, norm_first):
    ours, theirs = blocks(norm_first, activation, dtype)
    x, lengths = random(B, T, D, dtype=dtype), torch.tensor([2, 4])
    real = torch.arange(T) < lengths[:, None]
    agree(ours(x), theirs(x))
    agree(ours(x, AttentionContext.of(x, Causal())), theirs(x, src_mask=distances(T) < 0))
    agree(ours(x, AttentionContext.of(x, Real(real)))[real], theirs(x, src_key_padding_mask=~real)[real])


@both_types
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [True, False])
def test_decoder_layer(dtype, activation, norm_first):
    ours, theirs = blocks(norm_first, activation, dtype, decoder=True)
    x, memory = random(B, T, D, dtype=dtype), random(B, S, D, dtype=dtype, seed=2)
    lengths = torch.tensor([3, 8])
    padding = torch.arange(S) >= lengths[:, None]
    seen = CrossAttentionSource(
        memory, AttentionContext(TokenPositions.run(0, T, x.device), TokenPositions.of_lengths(lengths, S))
    )
    out = ours(x, AttentionContext.of(x, Causal()), source=seen)
    agree(out, theirs(x, memory, tgt_mask=distances(T) < 0, memory_key_padding_mask=padding))


@both_types
@pytest.mark.parametrize("norm_first", [True, False])
def test_stacks_of_a_whole_transformer_and_their_steps(dtype, norm_first):
    """nn.Transformer has no cache, so the steps of ours have to give what it gives for the whole target."""
    common = {"dropout": 0.0, "batch_first": True, "norm_first": norm_first}
    encoder = nn.TransformerEncoderLayer(D, H, F, **common)
    decoder = nn.TransformerDecoderLayer(D, H, F, **common)
    theirs = nn.ModuleDict(
        {
            "encoder": nn.TransformerEncoder(encoder, 2, nn.LayerNorm(D), enable_nested_tensor=False),
            "decoder": nn.TransformerDecoder(decoder, 3, nn.LayerNorm(D)),
        }
    ).to(dtype)
    randomize(theirs)
    spec = EncoderDecoderSpec(
        width=D,
        layers=2,
        decoder_layers=3,
        mixer=AttentionSpec(heads=H),
        feedforward=ClassicSpec(hidden=F, activation="relu"),
        positions=NoPositionsSpec(),
        arrangement="pre-norm" if norm_first else "post-norm",
        last_norm=True,
    )
    ours = spec.build().to(dtype)
    for side in ("encoder", "decoder"):
        weights = norm("norm", theirs.state_dict(), f"{side}.norm")
        for index, layer in enumerate(theirs[side].layers):
            weights |= prefixed(f"blocks.{index}", torch_block(layer))
        load(getattr(ours, side), weights, theirs[side])

    x, source = random(B, T, D, dtype=dtype), random(B, S, D, dtype=dtype, seed=2)
    token_positions = TokenPositions.of_lengths(torch.tensor([3, 8]), S)
    padding = ~token_positions.real
    memory = theirs["encoder"](source, src_key_padding_mask=padding)
    expected = theirs["decoder"](x, memory, tgt_mask=distances(T) < 0, memory_key_padding_mask=padding)

    hidden = ours.encoder(source, token_positions)
    agree(hidden[~padding], memory[~padding])
    agree(ours.decoder(x, TokenPositions.run(0, T, x.device), memory=(hidden, token_positions)), expected)
    state = ours.make_state(B)
    steps = [
        ours.decoder(x[:, a:b], TokenPositions.run(a, b - a, x.device), state=state, memory=(hidden, token_positions))
        for a, b in ((0, 2), (2, 3), (3, 5))
    ]
    agree(torch.cat(steps, 1), expected)


# --- norms, patches ---


@both_types
@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm(dtype, bias):
    theirs = nn.LayerNorm(D, eps=1e-2, bias=bias).to(dtype)
    randomize(theirs)
    ours = LayerNorm(D, epsilon=1e-2, bias=bias).to(dtype)
    load(ours, _norm(theirs), theirs)
    x = random(B, T, D, dtype=dtype)
    agree(ours(x), theirs(x))


def _norm(theirs: nn.Module) -> dict[str, Tensor]:
    names = {"weight": "gamma", "bias": "beta"}
    return {names[name]: weight for name, weight in theirs.state_dict().items()}


@both_types
def test_rms_norm(dtype):
    theirs = nn.RMSNorm(D, eps=1e-2).to(dtype)
    randomize(theirs)
    ours = RMSNorm(D, epsilon=1e-2).to(dtype)
    load(ours, _norm(theirs), theirs)
    x = random(B, T, D, dtype=dtype)
    agree(ours(x), theirs(x))


@both_types
@pytest.mark.parametrize("patch", [1, 5])
def test_patches_are_a_convolution(dtype, patch):
    theirs = nn.Conv2d(3, D, patch, stride=patch).to(dtype)
    randomize(theirs)
    ours = PatchEmbedding(patch, 3, D).to(dtype)
    load(ours, {"linear.weight": theirs.weight.flatten(1), "linear.bias": theirs.bias}, theirs)
    images = random(B, 3, 2 * patch, 7 * patch, dtype=dtype)
    x, grid = ours(images)
    assert grid == (2, 7)
    agree(x, theirs(images).flatten(2).transpose(1, 2))


# --- recurrence ---


def nets(cell: str, bidirectional: bool, dtype: torch.dtype) -> tuple[Recurrent, nn.RNNBase]:
    theirs = CELLS[cell](M, K, batch_first=True, bidirectional=bidirectional).to(dtype)
    randomize(theirs)
    ours = Recurrent(cell, M, K, bidirectional).to(dtype)
    load(ours, prefixed("net", theirs.state_dict()), theirs)
    return ours, theirs


def starts(cell: str, ways: int, rows: int, dtype: torch.dtype):
    """(ours, theirs): a hidden state to start from, as [B, ways x H] and as torch's [ways, B, H]."""
    parts = tuple(random(rows, ways * K, dtype=dtype, seed=seed) for seed in ((5, 6) if cell == "lstm" else (5,)))
    turned = tuple(torch.stack(part.split(K, 1)) for part in parts)
    return parts, turned if cell == "lstm" else turned[0]


def ends(hidden) -> tuple[Tensor, ...]:
    """torch's final hidden state as [B, ways x H] each."""
    return tuple(torch.cat(list(part), 1) for part in (hidden if isinstance(hidden, tuple) else (hidden,)))


each_net = pytest.mark.parametrize(("cell", "bidirectional"), [(c, w) for c in CELLS for w in (False, True)])


@both_types
@each_net
def test_recurrent_nets(dtype, cell, bidirectional):
    ours, theirs = nets(cell, bidirectional, dtype)
    x = random(B, T, M, dtype=dtype)
    mine, start = starts(cell, 2 if bidirectional else 1, B, dtype)
    for given, begin in ((None, None), (mine, start)):
        out, end = ours(x, TokenPositions.run(0, T, x.device), given)
        expected, last = theirs(x, begin)
        agree(out, expected)
        for a, b in zip(end, ends(last), strict=True):
            agree(a, b)


@both_types
@each_net
def test_recurrent_nets_over_packed_sequences(dtype, cell, bidirectional):
    ours, theirs = nets(cell, bidirectional, dtype)
    lengths = torch.tensor([2, 5, 3])
    x = random(3, T, M, dtype=dtype)
    mine, start = starts(cell, 2 if bidirectional else 1, 3, dtype)
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    expected, last = theirs(packed, start)
    expected = pad_packed_sequence(expected, batch_first=True, total_length=T)[0]

    out, end = ours(x, TokenPositions.of_lengths(lengths, T), mine)
    agree(out, expected)
    for a, b in zip(end, ends(last), strict=True):
        agree(a, b)

    shifts = T - lengths
    left = torch.stack([row.roll(int(shift), 0) for row, shift in zip(x, shifts, strict=True)])
    out, end = ours(left, TokenPositions.of_lengths(lengths, T, "left"), mine)
    agree(out, torch.stack([row.roll(int(shift), 0) for row, shift in zip(expected, shifts, strict=True)]))
    for a, b in zip(end, ends(last), strict=True):
        agree(a, b)


@both_types
@each_net
def test_recurrent_nets_start_afresh_at_each_later_document(dtype, cell, bidirectional):
    ours, theirs = nets(cell, bidirectional, dtype)
    x = random(1, S, M, dtype=dtype)
    ids = torch.tensor([[4, 4, 4, 9, 9, 9, 9, 9, 2, 2, -1]])
    mine, start = starts(cell, 2 if bidirectional else 1, 1, dtype)
    out, end = ours(x, TokenPositions.of_documents(ids), mine)
    pieces = [theirs(x[:, a:b], given) for a, b, given in ((0, 3, start), (3, 8, None), (8, 10, None))]
    agree(out[:, :10], torch.cat([piece for piece, _ in pieces], 1))
    for a, b in zip(end, ends(pieces[-1][1]), strict=True):
        agree(a, b)


@both_types
@pytest.mark.parametrize("cell", CELLS)
def test_recurrence_as_a_mixer_goes_on_from_its_state(dtype, cell):
    theirs = CELLS[cell](D, K, batch_first=True).to(dtype)
    randomize(theirs)
    ours = Recurrence(D, cell, K).to(dtype)
    ours.recurrent.net.load_state_dict(theirs.state_dict())
    x = random(B, T, D, dtype=dtype)
    expected = ours.output(theirs(x)[0])
    agree(ours(x), expected)
    state = ours.make_state()
    agree(torch.cat([ours(x[:, a:b], state=state) for a, b in ((0, 2), (2, 3), (3, 5))], 1), expected)


@both_types
def test_steps_are_the_cells(dtype):
    x, h, m = (random(B, d, dtype=dtype, seed=s) for d, s in ((M, 1), (K, 2), (K, 3)))
    for cell, step in ((nn.RNNCell, rnn_step), (nn.GRUCell, gru_step), (nn.LSTMCell, lstm_step)):
        theirs = cell(M, K).to(dtype)
        randomize(theirs)
        weights = (theirs.weight_ih, theirs.weight_hh, theirs.bias_ih, theirs.bias_hh)
        if cell is nn.LSTMCell:
            for a, b in zip(lstm_step(x, h, m, *weights), theirs(x, (h, m)), strict=True):
                agree(a, b)
        else:
            agree(step(x, h, *weights), theirs(x, h))


@both_types
@pytest.mark.parametrize("cell", CELLS)
def test_steps_one_by_one_are_the_whole_run(dtype, cell):
    ours, theirs = nets(cell, False, dtype)
    x = random(B, T, M, dtype=dtype)
    hidden, start = starts(cell, 1, B, dtype)
    expected = theirs(x, start)[0]
    for t in range(T):
        hidden = ours.step(x[:, t], hidden)
        agree(hidden[0], expected[:, t])
