"""Watching attention that users write by hand, and how what was seen is shown."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch import softmax as imported_softmax

import weft
from weft.inspection.recording import function_overrides

B, T, D, V = 2, 7, 6, 11


class Head(nn.Module):
    """softmax(Q K^T / sqrt(D)) V in plain torch, under a name that does not say attention."""

    def __init__(self, softmax=lambda x, dim: torch.softmax(x, dim), heads=0):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))
        self.softmax, self.heads, self.found = softmax, heads, None

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        if self.heads:
            q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        self.found = self.softmax(q @ k.transpose(-2, -1) / D**0.5, dim=-1)
        y = self.found @ v
        return y.transpose(1, 2).flatten(-2) if self.heads else y


class Net(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.embedding, self.out = nn.Embedding(V, D), nn.Linear(D, V)
        self.blocks = nn.ModuleList(Head(**options) for _ in range(3))

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = x + block(x)
        return self.out(x).softmax(-1)  # no attention: it is outside of the parts declared


def tokens():
    return torch.randint(0, V, (B, T), generator=torch.Generator().manual_seed(0))


class Layered(nn.Softmax):
    """A module in place of the function."""

    def __init__(self):
        super().__init__(-1)

    def forward(self, x, dim):
        return super().forward(x)


SOFTMAXES = [
    lambda x, dim: torch.softmax(x, dim),
    lambda x, dim: imported_softmax(x, dim=dim),
    lambda x, dim: nn.functional.softmax(x, dim=dim),
    lambda x, dim: x.softmax(dim),
    Layered(),
]


@pytest.mark.parametrize("softmax", SOFTMAXES)
def test_without_a_declaration_the_error_offers_one(softmax):
    net = Net(softmax=softmax)
    with weft.watch(net) as seen:
        net(tokens())
    said = r"a softmax ran in Head \(blocks\.0\): .* declare it: weft\.watch\(model, attention=Head\)"
    with pytest.raises(weft.WeftError, match=said):
        seen.attention()
    assert "attention=Head" in repr(seen) and "attention=Head" in seen._repr_html_()


@pytest.mark.parametrize("declared", [Head, "Head", [Head], ("blocks.0", "blocks.1", "blocks.2")])
@pytest.mark.parametrize("heads", [0, 2])
def test_a_declared_part_is_watched(declared, heads):
    net = Net(heads=heads)
    plain = net(tokens())
    with weft.watch(net, attention=declared) as seen:
        assert torch.equal(net(tokens()), plain)
    assert seen.layers == [0, 1, 2] and seen.part(1) == "blocks.1"
    assert seen.sizes(1) == (B, max(heads, 1), T, T)
    for layer, block in enumerate(net.blocks):
        expected = block.found.reshape(B, max(heads, 1), T, T)
        for text in range(B):
            assert torch.equal(seen.attention(layer, batch=text), expected[text])
    assert torch.allclose(seen.scores(2).softmax(-1), seen.attention(2))
    assert not function_overrides._overrides


def test_one_part_of_several_and_a_text_without_a_batch():
    net = Net()
    with weft.watch(net, attention="blocks.1") as seen:
        net(tokens())
    assert seen.layers == [0] and seen.part() == "blocks.1"
    head = Head()
    with weft.watch(head, attention=Head) as seen:
        head(torch.randn(T, D))
    assert seen.sizes() == (1, 1, T, T) and torch.equal(seen.attention(head=0), head.found)


def test_heads_and_texts_on_one_axis_are_not_taken_for_texts():
    class Attention(Head):
        def forward(self, x):
            x = x.repeat_interleave(3, 0)  # [B * H, T, D], as some libraries have it
            return super().forward(x)[::3]

    part = Attention()
    with weft.watch(part) as seen:
        part(torch.randn(B, T, D))
    assert not seen.calls


def test_wrong_declarations_are_refused():
    for wrong, said in (
        ("Haed", "Net has no part 'Haed': choose one of Embedding, Head"),
        (nn.GRU, "Net has no part 'GRU'"),
        (3, "attention=3 names no part"),
    ):
        with pytest.raises(weft.WeftError, match=said), weft.watch(Net(), attention=wrong):
            pass


def test_a_part_that_takes_no_softmax_says_what_it_needs():
    class Own(Head):
        def forward(self, x):
            scores = (self.q(x) @ self.k(x).transpose(-2, -1)).exp()
            return scores / scores.sum(-1, keepdim=True) @ self.v(x)

    part = Own()
    with weft.watch(part, attention=Own) as seen:
        part(torch.randn(B, T, D))
    with pytest.raises(weft.WeftError, match="compute the weights by torch's softmax"):
        seen.attention()


def test_what_was_seen_says_what_it_is():
    model = weft.build("nano-gpt")
    with weft.watch(model) as seen:
        assert repr(seen).startswith("<Seen of Decoder: nothing yet: run the model inside")
        model(torch.arange(5)[None])
        model(torch.arange(14).view(2, 7))
    assert repr(seen).startswith("<Seen of Decoder: 2 calls, the last of 2 texts; self attention in layers 0 to ")
    html = seen._repr_html_()
    assert html.count("<svg") == 1 and html.count("<rect") == 49 and "stack.blocks" in html
    with weft.watch(model) as seen:
        model(torch.arange(60)[None])
    assert "<svg" not in seen._repr_html_()


def test_a_run_says_what_it_is(tmp_path):
    (tmp_path / "book.txt").write_text("The animal was too tired to cross the street.\n" * 40)
    small = {"layers": 1, "width": 16, "length": 16, "mixer.heads": 2}
    run = weft.train("text", tmp_path / "book.txt", tmp_path / "run", preset="nano-gpt", steps=1, set=small)
    html = run._repr_html_()
    assert "<td>text</td>" in html and "parameters" in html and "run.predict" in html and "loss" in html
    assert repr(run).startswith("Run(text, decoder, ")
