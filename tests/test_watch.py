"""Watching: maps equal those of the explicit backend, nothing is changed, everything is put back."""

from __future__ import annotations

import copy
import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import subjects
import weft
from weft.foundation.errors import WeftError
from weft.inference.decoding.beam import Beam, beam_search
from weft.inference.decoding.generate import generate
from weft.inference.decoding.request import GenerationRequest
from weft.inference.decoding.sampling import Sampling
from weft.inference.decoding.sessions import PrefillOptions
from weft.inference.decoding.speculative import DraftModel, speculate
from weft.inspection.recording import function_overrides as overrides
from weft.inspection.recording.watch import watch
from weft.parts import attention as attention_part
from weft.parts.attention import CrossAttention, SelfAttention, set_backend
from weft.parts.attention_context import AttentionContext
from weft.parts.masks import Causal, Documents, Graph, Padding, Prefix, Window
from weft.parts.relative import Alibi, BucketedBias, RelativeVectors, Rotary
from weft.parts.scores import Additive, Bilinear, Concatenated, Dot


def model(name: str = "nano-gpt", **changes) -> nn.Module:
    return subjects.build(subjects.shrink(weft.preset(name)).replace(**changes))


def explicit_maps(module: nn.Module, run, monkeypatch) -> list[torch.Tensor]:
    """The weights that the explicit backend computes, in the order in which attentions run."""
    found: list[torch.Tensor] = []
    original = attention_part.explicit

    def spy(*args, **kwargs):
        out, weights = original(*args, **kwargs)
        found.append(weights)
        return out, weights

    monkeypatch.setattr(attention_part, "explicit", spy)
    set_backend(module, "explicit")
    run()
    set_backend(module, "auto")
    monkeypatch.undo()
    return found


@pytest.mark.parametrize("name", weft.presets())
def test_maps_are_the_explicit_backends_and_no_bit_changes(name, monkeypatch):
    module = model(name)
    subject = subjects.Subject(module)
    vision = subject.spec.family == "vision"
    content = torch.randn(2, subject.spec.channels, 12, 12).double() if vision else subject.content(2, 7)
    plain = subject.run(content)
    with watch(module) as seen:
        watched = subject.run(content)
    assert torch.equal(plain, watched)
    assert not overrides._overrides
    if subject.spec.family == "recurrent-seq2seq":
        if module.score is None:
            with pytest.raises(WeftError, match="none of"):
                seen.attention()
            return
        memory = module.encode(subject.source(2))
        expected = module.decode(content, memory).auxiliary["alignment"]
        assert seen.kinds == ["alignment"]
        assert torch.equal(seen.attention(head=0, batch=1), expected[1])
        assert torch.allclose(seen.scores(head=0, batch=1).softmax(-1), expected[1], atol=1e-12)
        return
    expected = explicit_maps(module, lambda: subject.run(content), monkeypatch)
    if not expected:
        with pytest.raises(WeftError, match="none of its parts is an attention"):
            seen.attention()
        return
    kinds = {"encoder": [], "self": [], "cross": []}
    if "cross" in seen.kinds:
        ahead = sum(isinstance(block.mixer, SelfAttention) for block in module.encoder.blocks)
        kinds["encoder"], rest = expected[:ahead], expected[ahead:]
        kinds["self"], kinds["cross"] = rest[::2], rest[1::2]
    else:
        kinds["self"] = expected
    for kind, maps in kinds.items():
        assert (kind in seen.kinds) == bool(maps)
        layers = seen.call(-1).layers(kind) if maps else []
        for layer, one in zip(layers, maps, strict=True):
            own = seen.attention(layer, batch=1, kind=kind)
            assert torch.allclose(own, one[1], atol=1e-12)
            assert torch.allclose(own.sum(-1), torch.ones(()).double(), atol=1e-12)
            assert torch.allclose(seen.attention(layer, head=1, batch=1, kind=kind), own[1], atol=1e-15)
            some = seen.attention(layer, head=2, rows=[5, 0, 2], batch=1, kind=kind)
            assert torch.allclose(some, own[2, [5, 0, 2]], atol=1e-15)
            assert torch.allclose(seen.scores(layer, batch=1, kind=kind).softmax(-1), own, atol=1e-12)
            B, H, T, S = seen.sizes(layer, kind)
            assert tuple(own.shape) == (H, T, S) and B == 2


MASKS = {
    "none": lambda T: None,
    "causal": lambda T: Causal(),
    "window": lambda T: Causal() & Window(3),
    "prefix": lambda T: Prefix(2),
    "right": lambda T: Padding(torch.tensor([T, 4])),
    "left": lambda T: Causal() & Padding(torch.tensor([5, T]), "left"),
    "documents": lambda T: Causal() & Documents(torch.tensor([[0] * 4 + [1] * (T - 4), [0] * 2 + [1] * (T - 2)])),
    "graph": lambda T: Graph(torch.rand(2, T, T, generator=torch.Generator().manual_seed(1)) > 0.6),
}
POSITIONS = {
    "none": lambda: None,
    "rotary": lambda: Rotary(6),
    "alibi": lambda: Alibi(4),
    "buckets": lambda: BucketedBias(4, 8, 11),
    "vectors": lambda: RelativeVectors(6, 3),
}
SCORES = {
    "scaled": lambda: None,
    "dot": Dot,
    "bilinear": lambda: Bilinear(6, 6, 4),
    "additive": lambda: Additive(6, 6, 4),
    "concatenated": lambda: Concatenated(6, 6, 4),
}


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("position", "score"), [(p, "scaled") for p in POSITIONS] + [("alibi", s) for s in SCORES])
def test_every_mask_position_and_score(mask, position, score):
    T, heads = 7, 4
    part = SelfAttention(10, heads, 2, 6, 5, score=SCORES[score]())
    x = torch.randn(2, T, 10)
    context = AttentionContext.of(x, MASKS[mask](T), POSITIONS[position]())
    query, key, _ = part.project(x)
    expected = part.weights(*part.position(query, key, context), context)
    with watch(part) as seen:
        y = part(x, context)
    assert torch.equal(y, part(x, context))
    for b in range(2):
        assert torch.allclose(seen.attention(0, batch=b), expected[b], atol=1e-12)
        rows = torch.tensor([6, 1, 2])
        assert torch.allclose(seen.attention(0, head=3, rows=rows, batch=b), expected[b, 3, rows], atol=1e-12)
        query, keys, values = seen.vectors(0, batch=b)
        gathered = seen.attention(0, batch=b) @ values
        assert torch.allclose(part.merge(gathered[None])[0], y[b], atol=1e-10)
        assert (query.shape, keys.shape) == ((heads, T, 6), (heads, T, 6))


def whole(module: nn.Module, tokens: list[int], **more) -> weft.inspection.recording.watch.Seen:
    with watch(module) as seen:
        module(torch.tensor([tokens]), **more)
    return seen


PROMPTS = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3, 5, 8, 9, 7]]


@pytest.mark.parametrize(
    ("name", "changes", "prefill"),
    [
        ("nano-gpt", {}, PrefillOptions()),
        ("nano-gpt", {}, PrefillOptions(chunk=3)),
        ("nano-gpt", {}, PrefillOptions(side="left")),
        ("nano-gpt", {}, PrefillOptions(cached=False)),
        ("nano-moe", {}, PrefillOptions()),
        ("mistral-7b", {}, PrefillOptions()),
        ("mistral-7b", {}, PrefillOptions(chunk=2)),
        ("gpt2", {}, PrefillOptions()),
    ],
)
def test_steps_of_a_generation_are_one_map(name, changes, prefill):
    module = model(name, **changes)
    stop = [generate(module, GenerationRequest([PROMPTS[1]], max_tokens=9))[0].tokens[4]]
    plain = generate(module, GenerationRequest(PROMPTS, max_tokens=9, stop=stop, prefill=prefill))
    with watch(module) as seen:
        written = generate(module, GenerationRequest(PROMPTS, max_tokens=9, stop=stop, prefill=prefill))
    assert [one.tokens for one in written] == [one.tokens for one in plain]
    assert len({len(one.tokens) for one in written}) > 1, "texts shall end at different times"
    if not prefill.cached:
        assert len(seen.calls) == max(len(one.tokens) + (one.finish_reason == "stop") for one in written)
        return
    assert len(seen.calls) == 1
    assert seen.sizes()[0] == 3
    for text, (prompt, one) in enumerate(zip(PROMPTS, written, strict=True)):
        read = prompt + one.tokens
        read = read if one.finish_reason == "stop" else read[:-1]
        assert seen.inputs(text)["embedding"].tolist() == read
        expected = whole(module, read)
        for layer in seen.layers:
            assert torch.allclose(seen.attention(layer, batch=text), expected.attention(layer), atol=1e-10)
            assert torch.allclose(seen.scores(layer, batch=text), expected.scores(layer), atol=1e-10)
            last = len(read) - 1
            row = seen.attention(layer, head=1, rows=last, batch=text)
            assert torch.allclose(row, expected.attention(layer, head=1)[last], atol=1e-10)
            for own, other in zip(seen.vectors(layer, text), expected.vectors(layer), strict=True):
                assert torch.allclose(own, other, atol=1e-10)


@pytest.mark.parametrize("name", ["nano-gpt", "mistral-7b", "nano-seq2seq", "nano-image-text"])
def test_native_steps_keep_every_bit_and_are_seen(name):
    module = model(name).float()
    more = {"source": [[5, 6, 7, 8], [9, 10]]} if name == "nano-seq2seq" else {}
    more = {"images": torch.randn(2, 3, 12, 12)} if name == "nano-image-text" else more
    prompts = [[1, 2, 3], [4, 5, 6]]
    stop = [generate(module, GenerationRequest(prompts, max_tokens=8, **more))[0].tokens[5]]
    plain = generate(module, GenerationRequest(prompts, max_tokens=8, stop=stop, **more))
    with watch(module) as seen:
        written = generate(module, GenerationRequest(prompts, max_tokens=8, stop=stop, **more))
    assert [(one.tokens, one.log_probabilities) for one in written] == [
        (one.tokens, one.log_probabilities) for one in plain
    ]
    assert len(seen.calls) == 1
    for text in range(2):
        read = seen.inputs(text)[next(path for path in seen.inputs(text) if "embedding" in path)].tolist()
        assert read[:3] == prompts[text] and read[3:] == written[text].tokens[: len(read) - 3]
        with watch(module) as full, torch.no_grad():
            if name == "nano-seq2seq":
                module(torch.tensor([more["source"][text]]), torch.tensor([read]))
            else:
                module(torch.tensor([read]), **{key: value[text : text + 1] for key, value in more.items()})
        for kind in ("self", *(("cross",) if name == "nano-seq2seq" else ())):
            expected = full.attention(1, kind=kind)
            own = seen.attention(1, batch=text, kind=kind)
            assert torch.allclose(own[..., : expected.shape[-1]], expected, atol=1e-5)
            assert torch.allclose(own.sum(-1), torch.ones(()), atol=1e-5)


def test_a_text_begun_before_is_refused_where_it_cannot_be_seen(monkeypatch):
    module = model("nano-gpt").float()
    state = module.make_state(1)
    with torch.no_grad():
        module(torch.tensor([[1, 2, 3]]), state=state)
        with watch(module) as seen:
            module(torch.tensor([[4]]), state=state)
    assert seen.attention(0).shape == (3, 1, 4)


def test_keys_that_a_ring_has_overwritten_are_still_seen():
    module = model("mistral-7b", length=200)
    with watch(module) as seen:
        written = generate(module, GenerationRequest([[3, 1, 4]], max_tokens=100))
    read = [3, 1, 4, *written[0].tokens][:-1]
    expected = whole(module, read)
    assert torch.allclose(seen.attention(1), expected.attention(1), atol=1e-10)
    for own, other in zip(seen.vectors(1), expected.vectors(1), strict=True):
        assert torch.allclose(own, other, atol=1e-10)


@pytest.mark.parametrize("precise", [True, False])
def test_the_texts_of_a_beam_are_all_there(precise):
    module = model("nano-seq2seq")
    module = module if precise else module.float()
    with watch(module) as seen:
        best = beam_search(module, GenerationRequest([[1]], max_tokens=6, stop=[0], source=[[5, 6, 7, 8]]), Beam(3))[0][
            0
        ]
    texts = [seen.inputs(text)["embedding"].tolist() for text in range(seen.sizes()[0])]
    read = [1, *best.tokens]
    read = read if best.finish_reason == "stop" else read[:-1]
    assert read in texts
    with watch(module) as full:
        module(torch.tensor([[5, 6, 7, 8]]), torch.tensor([read]))
    own = seen.attention(1, batch=texts.index(read), kind="cross")
    assert torch.allclose(own, full.attention(1, kind="cross"), atol=1e-10 if precise else 1e-5)


def test_samples_are_texts_of_their_own():
    module = model()
    hot = Sampling(temperature=1.5)
    with watch(module) as seen:
        written = generate(module, GenerationRequest(PROMPTS[:2], hot, max_tokens=6, samples=3, seeds=5))
    assert seen.sizes()[0] == 6
    for text, one in enumerate(written):
        read = [*PROMPTS[text // 3], *one.tokens][:-1]
        assert seen.inputs(text)["embedding"].tolist() == read
        assert torch.allclose(seen.attention(1, batch=text), whole(module, read).attention(1), atol=1e-10)


def test_tokens_taken_back_leave_no_rows():
    module = model("nano-gpt")
    draft = DraftModel(model("nano-gpt", layers=1), ahead=3)
    with watch(module) as seen:
        written = speculate(module, GenerationRequest([[3, 1, 4, 1, 5]], max_tokens=11), draft)[0]
    assert written.proposed > 0
    expected = whole(module, seen.inputs()["embedding"].tolist())
    assert seen.inputs()["embedding"].tolist()[:5] == [3, 1, 4, 1, 5]
    assert torch.allclose(seen.attention(1), expected.attention(1), atol=1e-10)


def test_an_encoder_decoder_generation_is_one_call_of_three_kinds():
    module = model("nano-seq2seq")
    sources = [[5, 6, 7, 8], [9, 10]]
    with watch(module) as seen:
        written = generate(module, GenerationRequest([[1], [1]], max_tokens=5, source=sources, stop=[0]))
    assert len(seen.calls) == 1
    assert seen.kinds == ["self", "cross", "encoder"]
    for text, one in enumerate(written):
        read = [1, *one.tokens]
        read = read if one.finish_reason == "stop" else read[:-1]
        with watch(module) as full:
            module(torch.tensor([sources[text]]), torch.tensor([read]))
        S = len(sources[text])
        assert torch.allclose(
            seen.attention(1, batch=text, kind="cross")[..., :S], full.attention(1, kind="cross"), atol=1e-10
        )
        assert torch.allclose(seen.attention(1, batch=text, kind="self"), full.attention(1, kind="self"), atol=1e-10)
        own = seen.attention(1, batch=text, kind="encoder")[:, :S, :S]
        assert torch.allclose(own, full.attention(1, kind="encoder"), atol=1e-10)
        assert seen.inputs(text, of="source")["embedding"].tolist() == sources[text]
        assert seen.inputs(text)["embedding"].tolist() == read


@pytest.mark.parametrize("name", ["nano-gru-additive", "nano-gru-dot", "nano-gru-bilinear"])
def test_recurrent_alignments_of_a_generation(name):
    module = model(name)
    sources = [[5, 6, 7, 8], [9, 10]]
    with watch(module) as seen:
        written = generate(module, GenerationRequest([[1], [1]], max_tokens=5, source=sources))
    assert len(seen.calls) == 1
    for text, one in enumerate(written):
        S = len(sources[text])
        own = seen.attention(head=0, batch=text)
        assert torch.allclose(own[:, :S], one.alignment, atol=1e-12)
        assert torch.allclose(own[:, S:], torch.zeros(()).double())
        assert torch.allclose(seen.scores(head=0, batch=text).softmax(-1), own, atol=1e-10)
        assert seen.inputs(text, of="source")["source_embedding"].tolist() == sources[text]
        assert seen.inputs(text)["target_embedding"].tolist() == [1, *one.tokens][:-1]


def test_a_twin_that_shares_the_parts_is_watched_too():
    module = model("nano-gru-additive")
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    with watch(module) as seen:
        generate(twin, GenerationRequest([[1]], max_tokens=3, source=[[5, 6, 7, 8]]))
        generate(model("nano-gru-dot"), GenerationRequest([[1]], max_tokens=3, source=[[5, 6, 7]]))
    assert len(seen.calls) == 1 and seen.sizes() == (1, 1, 3, 4)


def test_images_before_text_are_in_the_map():
    module = model("nano-image-text")
    images = torch.randn(1, 3, 12, 12, dtype=torch.float64)
    with watch(module) as seen:
        written = generate(module, GenerationRequest([[3, 4]], max_tokens=4, images=images))
    read = [3, 4, *written[0].tokens][:-1]
    expected = whole(module, read, images=images)
    assert seen.sizes()[2:] == (9 + len(read), 9 + len(read))
    assert torch.allclose(seen.attention(1), expected.attention(1), atol=1e-10)
    assert torch.equal(seen.inputs()["patches"], images[0])


def test_gradients_keep_every_bit():
    module = model().train()
    tokens = torch.randint(0, 53, (2, 7))

    def gradients() -> list[torch.Tensor]:
        module.zero_grad()
        module(tokens).logits.logsumexp(-1).sum().backward()
        return [p.grad.clone() for p in module.parameters()]

    plain = gradients()
    with watch(module) as seen:
        watched = gradients()
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    assert not seen.attention(0).requires_grad


class Largest(TorchFunctionMode):
    largest = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for one in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(one, torch.Tensor):
                self.largest = max(self.largest, one.numel())
        return out


@pytest.mark.parametrize(("N", "changes"), [(1024, {}), (2048, {"mixer.window": 64})])
def test_nothing_of_n_times_n_is_built(N, changes):
    spec = weft.preset("nano-gpt").replace(
        layers=1, width=16, length=N, vocabulary=31, **{"mixer.heads": 2, "feedforward.hidden": 16}, **changes
    )
    module = weft.build(spec).eval()
    tokens = torch.randint(0, 31, (1, N))

    def most(run) -> int:
        """The largest tensor that any function gave."""
        with torch.no_grad(), Largest() as found:
            run()
        return found.largest

    with watch(module) as seen:
        assert most(lambda: module(tokens)) < N * N / 2
    assert most(lambda: seen.attention(0, rows=[N - 1, 5])) < 64 * N
    assert most(seen.statistics) < N * N / 2
    assert most(lambda: seen.attention(0)) >= 2 * N * N, "asked for, the whole map is there"


def test_everything_is_put_back_after_errors_and_in_any_order():
    module = model()
    originals = (SelfAttention.gather, type(module).forward, torch.Tensor.softmax)
    tokens = torch.randint(0, 53, (1, 5))
    plain = module(tokens).logits
    with pytest.raises(RuntimeError, match="planted"), watch(module):
        raise RuntimeError("planted")
    with watch(module) as seen:
        with pytest.raises(weft.WeftError):
            module(torch.full((1, 5), 999))
        assert torch.equal(module(tokens).logits, plain)
    assert len(seen.calls) == 1
    first, second = watch(module), watch(module)
    one, two = first.__enter__(), second.__enter__()
    module(tokens)
    first.__exit__(None, None, None)
    module(tokens)
    second.__exit__(None, None, None)
    module(tokens)
    assert (len(one.calls), len(two.calls)) == (1, 2)
    assert torch.equal(one.attention(1), two.attention(1))
    assert not overrides._overrides
    assert originals == (SelfAttention.gather, type(module).forward, torch.Tensor.softmax)
    assert "forward" not in vars(module) and "gather" not in vars(module.stack.blocks[0].mixer)


def test_copies_made_while_watching_are_their_own():
    module, other = model(), model(width=60)
    tokens = torch.randint(0, 53, (1, 5))
    with watch(module) as seen:
        twin = copy.deepcopy(module)
        with torch.no_grad():
            twin.embedding.weight.mul_(2)
        doubled = twin(tokens).logits
        other(tokens)
        with pytest.raises(WeftError, match="nothing was watched"):
            seen.attention()
    assert torch.equal(doubled, twin(tokens).logits)
    assert not torch.equal(doubled, module(tokens).logits)


def test_threads_do_not_mix():
    module = model()
    rows = [torch.randint(0, 53, (1, length)) for length in (5, 7, 11, 13)]
    with watch(module) as seen:
        threads = [threading.Thread(target=lambda own=own: module(own)) for own in rows]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(call.sizes()[2] for call in seen.calls) == [5, 7, 11, 13]
    for call in seen.calls:
        assert sorted(call.layer_records) == [("self", 0), ("self", 1)]


def test_what_is_kept_can_be_bounded():
    module = model()
    with watch(module, layers=[1], keep=2) as seen:
        for length in (3, 5, 7):
            module(torch.randint(0, 53, (1, length)))
        generate(module, GenerationRequest([[1, 2]], max_tokens=4))
    assert [call.sizes()[2] for call in seen.calls] == [7, 5]
    assert seen.layers == [1]
    with pytest.raises(WeftError, match="no layer 0 of self attention: choose 1"):
        seen.attention(0)


def test_errors_say_what_there_is():
    module = model()
    with watch(module) as seen:
        with pytest.raises(WeftError, match="nothing was watched yet"):
            seen.attention()
        module(torch.randint(0, 53, (2, 5)))
    for wrong, said in [
        ({"layer": 9}, "no layer 9 of self attention: choose 0 to 1"),
        ({"head": 3}, "no head 3 in a layer of 3: choose 0 to 2"),
        ({"rows": 5}, "no row 5 in a map of 5 rows"),
        ({"batch": 2}, "no text 2 in this call of 2"),
        ({"kind": "cross"}, "no 'cross' attention here: choose one of self"),
        ({"call": 3}, "no call 3 of 1 kept"),
    ]:
        with pytest.raises(WeftError, match=said):
            seen.attention(**wrong)
    with pytest.raises(WeftError, match="a dict cannot be watched"), watch({}):
        pass
    assert seen.attention(-1, rows=slice(1, 3)).shape == (3, 2, 5)
    assert seen.attention(rows=slice(0, 0)).shape == (3, 0, 5)


@pytest.mark.parametrize(("feature", "causal"), [("elu", True), ("relu", True), ("identity", True), ("elu", False)])
def test_linear_attention_has_maps_too(feature, causal):
    mixer = {"kind": "linear-attention", "heads": 3, "feature": feature}
    name = "nano-gpt" if causal else "nano-encoder"
    module = model(name, mixer=mixer, positions={"kind": "learned"})
    tokens = torch.randint(0, 53, (2, 7))
    with watch(module) as seen:
        plain = module(tokens).hidden
    assert torch.equal(plain, module(tokens).hidden)
    A = seen.attention(1, batch=1)
    _, _, values = seen.vectors(1, batch=1)
    kept: list[torch.Tensor] = []
    part = module.stack.blocks[1].mixer
    hook = part.output.register_forward_pre_hook(lambda _, given: kept.append(given[0]))
    module(tokens)
    hook.remove()
    assert torch.allclose((A @ values).transpose(0, 1).flatten(1), kept[0][1], atol=1e-10)
    if feature != "identity":
        assert torch.allclose(A.sum(-1), torch.ones(()).double())
    if causal:
        assert float(A.triu(1).abs().max()) == 0.0
        with watch(module) as steps:
            written = generate(module, GenerationRequest([[1, 2, 3]], max_tokens=4))
        read = [1, 2, 3, *written[0].tokens][:-1]
        assert torch.allclose(steps.attention(1), whole(module, read).attention(1), atol=1e-10)


def test_looking_while_watching_is_not_watched():
    module = model().float()
    with watch(module) as seen:
        generate(module, GenerationRequest([[1, 2, 3]], max_tokens=4))
        inside = seen.attention(1)
        assert len(seen.calls) == 1
    assert torch.equal(inside, seen.attention(1))


def test_what_was_seen_in_inference_mode_may_be_used_anywhere():
    module = model()
    with watch(module) as seen, torch.inference_mode():
        module(torch.randint(0, 53, (1, 5)))
    tokens = seen.inputs()["embedding"]
    module(tokens[None]).logits.sum().backward()
    weight = torch.nn.Parameter(torch.ones(()).double())
    for tensor in (*seen.vectors(1), seen.attention(1), seen.scores(1).tril()):
        (tensor * weight).sum().backward()


def test_a_run_is_watched_by_its_module():
    module = model()
    with weft.watch(SimpleNamespace(module=module)) as seen:
        module(torch.randint(0, 53, (1, 5)))
    assert seen.module is module and seen.sizes() == (1, 3, 5, 5)


def test_bare_cross_attention():
    part = CrossAttention(10, 2, memory_width=7).double()
    x, memory = torch.randn(1, 3, 10).double(), torch.randn(1, 5, 7).double()
    with watch(part) as seen:
        part(x, memory)
    assert seen.kinds == ["cross"]
    expected = part.weights(
        part.project(x),
        part.project_memory(memory)[0],
        AttentionContext(AttentionContext.of(x).queries, AttentionContext.of(memory).queries),
    )
    assert torch.allclose(seen.attention(), expected[0])
