"""Masks in specs: each layer sees what is declared, trained, decoded and shown; masks without effect are refused."""

import json
import random

import pytest
import torch

import weft
from weft.cli.main import app
from weft.inference.decoding.conditioning import condition
from weft.inference.decoding.generate import generate
from weft.inference.decoding.request import GenerationRequest
from weft.inference.decoding.sessions import CachedSession, PrefillOptions, RewindableSession
from weft.inference.engine.engine import Engine, EngineRequest
from weft.models.build import read_spec
from weft.models.estimates import estimate
from weft.models.shrink import shrink
from weft.models.teacher_forcing import IGNORED
from weft.parts.attention_context import AttentionContext
from weft.parts.masks import BlockSparse, Causal, Dilated, Everything, Graph, Prefix, Window
from weft.training.request import TrainRequest

EDGES = [[0, 1], [1, 2], [2, 5], [7, 5], [3, 3], [11, 4]]
MASKS = {
    "prefix": {"kind": "prefix", "length": 5},
    "window": {"kind": "window", "width": 4},
    "dilated": {"kind": "dilated", "step": 3},
    "strided": {"kind": "strided", "step": 5},
    "block-sparse": {"kind": "block-sparse", "size": 3, "near": 1},
    "shared blocks": {"kind": "block-sparse", "size": 3, "near": 0, "shared": 1},
    "graph": {"kind": "graph", "nodes": 13, "edges": EDGES},
}
SMALL = {"layers": 2, "width": 24, "mixer.heads": 2, "length": 48, "initialization.zero_residual": False}


def decoder(mask: dict | None, **changes) -> weft.models.decoder.DecoderSpec:
    return weft.preset("nano-gpt").replace(**(SMALL | changes), vocabulary=31, **{"mixer.mask": mask})


def encoder(mask: dict | None, **changes) -> weft.models.encoder.EncoderSpec:
    free = {"class_token": False, "output.pool": "mean"} if mask and mask["kind"] == "graph" else {}
    return weft.preset("nano-encoder").replace(**(SMALL | free | changes), **{"mixer.mask": mask})


def verdicts(spec) -> dict[str, str]:
    report = weft.laws.check(weft.build(spec))
    assert not report.broken, str(report)
    return {finding.law: finding.verdict for finding in report.findings}


@pytest.mark.parametrize("name", MASKS)
def test_a_decoder_with_a_mask_is_lawful(name):
    found = verdicts(decoder(MASKS[name]))
    assert found["masks"] == found["causality"] == found["cache = full forward"] == found["left padding"] == "holds"
    assert found["prefix"] == ("holds" if name == "prefix" else "not declared")
    assert found["reach"] == ("holds" if name in ("window", "block-sparse") else "not declared")


@pytest.mark.parametrize("name", [name for name in MASKS if name != "prefix"])
def test_an_encoder_with_a_mask_is_lawful(name):
    found = verdicts(encoder(MASKS[name]))
    # Through the class token every token reaches every other in two layers.
    assert found["masks"] == ("not testable" if name in ("strided", "shared blocks") else "holds")
    assert found["permutation equivariance"] == "not declared"


@pytest.mark.parametrize("name", MASKS)
def test_the_law_of_masks_finds_a_layer_that_forgets_its_mask(name):
    model = weft.build(decoder(MASKS[name], layers=1))  # two strided layers lead from each token to each
    model.stack.masks = (Everything() if name == "prefix" else Causal(),)
    broken = {finding.law for finding in weft.laws.check(model).broken}
    assert "masks" in broken and ("causality" in broken) == (name == "prefix")


def test_the_law_of_the_prefix_finds_one_that_is_not_seen():
    model = weft.build(decoder(MASKS["prefix"]))
    model.stack.masks = (Causal(), Causal())
    assert {finding.law for finding in weft.laws.check(model, laws=("prefix", "causality", "masks")).broken} == {
        "prefix"
    }


@pytest.mark.parametrize("name", MASKS)
def test_specs_with_masks_keep_their_masks(name):
    spec = decoder(MASKS[name])
    assert read_spec(spec.to_json()) == spec and read_spec(spec.to_toml()) == spec
    masks = weft.build(spec, device="meta").stack.masks
    assert masks[0] is masks[1] and repr(masks[0]) == repr(spec.declares().masks[0])
    small = shrink(spec)
    assert small.mixer[0].mask.kind == spec.mixer[0].mask.kind and not weft.laws.check(weft.build(small)).broken


def test_what_specs_of_masks_declare():
    prefix = decoder(MASKS["prefix"]).declares()
    assert prefix.causal and prefix.text_prefix == 5 and prefix.prefix is None and prefix.reach is None
    blocks = decoder(MASKS["block-sparse"]).declares()
    assert blocks.reach == 1 + 2 * 5 and blocks.window is None
    assert decoder(MASKS["window"]).declares().window == 4
    assert decoder({"kind": "window", "width": 9}, **{"mixer.window": 4}).declares().window == 4
    assert decoder({"kind": "dilated"}, **{"mixer.window": 4}).declares().reach == 1 + 2 * 3
    assert decoder(MASKS["graph"]).declares().length == 13
    assert decoder(None).declares().masks is None
    free = {"positions": {"kind": "none"}, "class_token": False, "output.pool": "mean"}
    assert encoder(None, **free).declares().order_free and not encoder(MASKS["dilated"], **free).declares().order_free


REFUSED = [
    (lambda: encoder({"kind": "prefix"}), "mixer.mask 'prefix' does not work in this family"),
    (lambda: weft.preset("nano-series").replace(**{"mixer.mask.kind": "prefix"}), "does not work"),
    (lambda: weft.preset("nano-image-text").replace(**{"mixer.mask.kind": "dilated"}), "leave it out"),
    (lambda: weft.preset("nano-seq2seq").replace(**{"mixer.mask": MASKS["graph"]}), "does not work"),
    (lambda: weft.preset("nano-rnn").replace(**{"mixer.mask.kind": "dilated"}), "mask"),
    (lambda: encoder(None).replace(**{"mixer.mask": MASKS["graph"]}), "class token"),
    (lambda: decoder({"kind": "graph"}), "needs edges"),
    (lambda: decoder({"kind": "graph", "nodes": 3, "edges": [[0, 3]]}), "ends at node 3"),
    (lambda: decoder({"kind": "graph", "edges": [[0, -1]]}), "edges"),
    (lambda: decoder({"kind": "dilated", "step": 0}), "step"),
    (lambda: decoder({"kind": "spiral"}), "mask"),
    (lambda: BlockSparse(0), "size of at least 1"),
]


@pytest.mark.parametrize(("make", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_masks_that_fit_nothing_are_refused_in_one_sentence(make, words):
    with pytest.raises(weft.WeftError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


NO_EFFECT = [
    ("nano-gpt", {}, Prefix(4), "prefix.4. shows no less than causal"),
    ("nano-gpt", {}, Everything(), "everything shows no less"),
    ("nano-gpt", {}, Causal() | Dilated(2), "shows no less"),
    ("nano-gpt", {}, Window(3) & Prefix(4), "prefix.4. shows no less"),
    ("nano-gpt", {"mixer.window": 3}, Window(4), "window.4. shows no less"),
    ("nano-gpt", {"mixer.mask.kind": "prefix"}, Prefix(11), "prefix.11. shows no less"),
    ("nano-gpt", {"mixer.mask.kind": "dilated", "mixer.mask.step": 4}, Dilated(2), "dilated.2. shows no less"),
    ("nano-rnn", {}, Window(3), "mixes by Recurrence"),
    ("nano-gpt", {"mixer": {"kind": "none"}, "positions": {"kind": "none"}}, Window(3), "has no mixer"),
    ("nano-encoder", {}, Prefix(3), "counts tokens from 0"),
]


@pytest.mark.parametrize(("preset", "changes", "mask", "words"), NO_EFFECT, ids=[row[3] for row in NO_EFFECT])
def test_a_mask_that_would_change_nothing_is_refused(preset, changes, mask, words):
    model = weft.build(weft.preset(preset).replace(layers=1, **changes))
    with pytest.raises(weft.WeftError, match=words):
        model(torch.arange(7)[None], mask=mask)


def test_a_recurrent_translator_refuses_masks_of_attention():
    model, tokens = weft.build("nano-gru-dot"), torch.arange(7)[None]
    for masks in ({"source_mask": Window(3)}, {"mask": Prefix(2)}, {"mask": Everything()}):
        with pytest.raises(weft.WeftError, match="acts inside self-attention"):
            model(tokens, tokens, **masks)


def test_masks_with_an_effect_have_it():
    model, tokens = weft.build(decoder(None)).double(), torch.arange(7)[None]
    plain = model(tokens).logits
    assert torch.equal(model(tokens, mask=Causal()).logits, plain)  # what holds anyway may be said
    for mask in (Window(3), Dilated(2), Graph(torch.eye(7)), BlockSparse(2), Window(3) & Causal()):
        assert not torch.allclose(model(tokens, mask=mask).logits, plain)
    own = weft.build(decoder(MASKS["dilated"])).double()
    own.load_state_dict(model.state_dict())
    assert torch.allclose(own(tokens).logits, model(tokens, mask=Dilated(3)).logits, atol=1e-10)


def test_a_graph_has_a_node_for_each_token():
    model = weft.build(decoder(MASKS["graph"]))
    assert model(torch.arange(13)[None]).logits.shape[1] == 13
    with pytest.raises(weft.WeftError, match="token 13 has no node in a graph of 13 nodes"):
        model(torch.arange(14)[None])
    state = model.make_state()
    model(torch.arange(13)[None], state=state)
    with pytest.raises(weft.WeftError, match="token 13 has no node"):
        model(torch.arange(1)[None], state=state)


def test_with_a_cache_a_prefix_is_read_at_once():
    model = weft.build(decoder(MASKS["prefix"]))
    for first in (1, 4):
        with pytest.raises(weft.WeftError, match=f"{first} of the 5 tokens of a prefix"):
            model(torch.arange(first)[None], state=model.make_state())
    real = torch.tensor([[True] * 7, [True] * 3 + [False] * 4])
    with pytest.raises(weft.WeftError, match="3 of the 5 tokens"):
        model(torch.arange(14).view(2, 7), mask=real, state=model.make_state(2))
    assert model(torch.arange(3)[None]).logits.shape == (1, 3, 31)  # without a cache, a short text is all prefix


def sampled(model, prompts, **options) -> list[list[int]]:
    request = GenerationRequest(prompts, max_tokens=11, seeds=[5] * len(prompts), **options)
    return [list(one.tokens) for one in generate(model, request)]


@pytest.mark.parametrize("name", MASKS)
def test_decoding_with_and_without_a_cache_writes_the_same(name):
    length = {"length": 48} if name != "graph" else {"length": 24}
    mask = MASKS[name] | ({"nodes": 24} if name == "graph" else {})
    model = weft.build(decoder(mask, **length), seed=3).eval()
    prompts = [[3, 1, 4, 1, 5, 9], [2, 7, 1, 8, 2, 8, 1, 8, 2]]
    ways = [PrefillOptions(cached=False), PrefillOptions(), PrefillOptions(native=False), PrefillOptions(side="left")]
    texts = [sampled(model, prompts, prefill=way) for way in ways]
    assert texts[0] == texts[1] == texts[2] == texts[3]


def test_sessions_read_a_prefix_at_once():
    """Prompts in chunks shorter than the prefix, and texts that part within it, such as the turns of a chat."""
    model = weft.build(decoder(MASKS["prefix"]), seed=3).double().eval()
    first, second, third = [3, 1, 4, 1, 5, 9, 2], [3, 1, 4, 7, 5, 9, 2, 6], [3, 1, 4, 7, 5, 9, 8]
    session = RewindableSession(condition(model, 1))
    for prompt in (first, second, third):
        expected = model(torch.tensor([prompt])).logits[:, -1]
        torch.testing.assert_close(session.begin([prompt]), expected, rtol=0, atol=1e-10)
    assert session.reused == 6
    for side in ("left", "right"):
        chunked = CachedSession(condition(model, 2), PrefillOptions(chunk=2, side=side)).begin([first, second])
        expected = torch.cat([model(torch.tensor([prompt])).logits[:, -1] for prompt in (first, second)])
        torch.testing.assert_close(chunked, expected, rtol=0, atol=1e-10)


def test_the_engine_reads_a_prefix_at_once_and_reuses_whole_ones():
    model = weft.build(decoder(MASKS["prefix"]), seed=3).eval()
    prompts = [[3, 1, 4, 1, 5, 9, 2, 6], [3, 1, 4, 1, 5, 9, 8], [3, 1, 7, 1, 5, 9, 1]]
    alone = [sampled(model, [prompt])[0] for prompt in prompts]
    with Engine(model, slots=2, prefill_tokens=3, prefixes=4) as engine:
        found = [
            list(engine.submit(EngineRequest(prompt, max_tokens=11, seed=5)).result().tokens) for prompt in prompts
        ]
        reused = engine.statistics.reused_tokens
        with pytest.raises(weft.WeftError, match="2 of the 5 tokens"):
            engine.submit(EngineRequest([3, 1], max_tokens=3)).result()
    assert found == alone
    assert reused == 6  # two whole pieces of the second prompt, but not the two tokens that the third begins with


WORDS = ("red", "blue", "green", "one", "two")


def text_file(folder) -> str:
    choose = random.Random(3)
    (folder / "text.txt").write_text(" ".join(choose.choice(WORDS) for _ in range(900)))
    return str(folder / "text.txt")


def test_a_prefix_is_given_and_not_asked_for(tmp_path):
    options = {"layers": 1, "width": 16, "mixer.heads": 2, "length": 24, "mixer.mask.kind": "prefix"}
    run = weft.train("text", text_file(tmp_path), tmp_path / "run", steps=3, set={**options, "mixer.mask.length": 7})
    assert run.module.declares().text_prefix == 7
    split = run.task.read([text_file(tmp_path)], tmp_path).fit(run.module.spec)
    batch = split.batch([0, 1])
    asked = batch.labels != IGNORED
    assert not asked[:, :6].any() and asked[:, 6:].all() and batch.count == int(asked.sum()) == 2 * (24 - 6)
    # Where documents do not see each other, each has a prefix of its own.
    (tmp_path / "documents.jsonl").write_text("\n".join(json.dumps({"text": "ab" * n}) for n in (5, 2, 9)))
    documents = run.task.read([str(tmp_path / "documents.jsonl")], tmp_path).fit(run.module.spec)
    assert documents.isolate
    window, labels = documents.store.window(0, 24), documents.batch([0]).labels[0]
    places = [sum(window.documents[:n] == window.documents[n]) for n in range(23)]
    for place, label in zip(places, labels.tolist(), strict=False):
        assert place >= 6 or label == IGNORED
    assert (labels != IGNORED).any()
    with pytest.raises(weft.WeftError, match="windows of 24 tokens lie in the prefix of 25"):
        weft.train("text", text_file(tmp_path), tmp_path / "long", steps=3, set={**options, "mixer.mask.length": 25})
    assert "3 of the 7 tokens" in refusal(lambda: run.predict(["red"]))
    assert "one call, which an ONNX file" in refusal(lambda: weft.export(run, "onnx", tmp_path / "onnx"))
    assert "mixer.mask is 'prefix'" in refusal(lambda: weft.export(run, "huggingface", tmp_path / "theirs"))


def refusal(call) -> str:
    with pytest.raises(weft.WeftError) as caught:
        call()
    return str(caught.value)


def test_a_graph_from_a_file_is_kept_in_the_run(tmp_path):
    edges = tmp_path / "edges.csv"
    edges.write_text("from,to\n0,1\n1,2\n2,3\n3,4\n4,5\n5,0\n")
    rows = [(n, node, value) for n in range(24) for node, value in enumerate(ring(n))]
    data = tmp_path / "rings.csv"
    data.write_text("id,class,height\n" + "".join(f"{n},{'up' if n % 2 else 'down'},{v}\n" for n, _, v in rows))
    options = {"layers": 1, "width": 16, "mixer": {"kind": "attention", "heads": 2}, "mixer.mask.file": str(edges)}
    run = weft.train("sequences", data, tmp_path / "run", steps=3, set=options)
    edges.unlink()
    spec = json.loads((tmp_path / "run" / "spec.json").read_text())["model"]
    assert spec["mixer"][0]["mask"] == {
        "kind": "graph", "nodes": 6, "edges": [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [5, 0]],
    }  # fmt: skip
    mask = weft.load(tmp_path / "run").module.stack.masks[0]
    assert mask.text(6).replace(" ", "").splitlines()[0] == "·■···■"
    assert not weft.laws.check(run.module).broken


def ring(number: int) -> list[float]:
    return [(-1) ** number * (1 + node % 3) / 2 for node in range(6)]


GRAPH_FILES = [
    ("edges.csv", "0,1\n1,2\n", (3, [[0, 1], [1, 2]])),
    ("edges.tsv", "a\tb\n4\t0\n", (5, [[4, 0]])),
    ("edges.csv", "0;1\n1;1\n", (2, [[0, 1], [1, 1]])),
    ("graph.json", '{"nodes": ["x", "y", "z"], "edges": [[0, 1]]}', (3, [[0, 1]])),
    ("edges.csv", "0,1\nx,2\n", "line 2: 'x, 2' is no edge"),
    ("edges.csv", "0,-1\n", "is no edge"),
    ("edges.csv", "5\n", "is no edge"),
    ("edges.csv", "", "holds no edge|empty"),
    ("edges.csv", "a,b\n", "holds no edge"),
    ("edges.csv", "٣,٤\n1,2\n", "is no edge"),
    ("graph.json", '[{"nodes": [1], "edges": [[0, 0]]}, {"nodes": [1]}]', "2 graphs"),
    ("graph.json", '{"nodes": [1, 2]}', "without edges"),
    ("gone.csv", None, "gone"),
]


@pytest.mark.parametrize(("name", "text", "found"), GRAPH_FILES)
def test_files_of_graphs(tmp_path, name, text, found):
    if text is not None:
        (tmp_path / name).write_text(text, encoding="utf-8")
    request = TrainRequest("text", ("x",), tmp_path, changes={"mixer.mask.file": str(tmp_path / name), "layers": 2})
    if isinstance(found, str):
        with pytest.raises(weft.WeftError, match=found) as caught:
            request.with_edges()
        assert "\n" not in str(caught.value)
    else:
        nodes, edges = found
        mask = {"mixer.mask.kind": "graph", "mixer.mask.nodes": nodes, "mixer.mask.edges": edges}
        assert request.with_edges().changes == {"layers": 2, **mask}
        assert decoder(None).replace(**mask).mixer[0].mask.longest() == nodes


def test_files_of_graphs_in_tables(tmp_path):
    (tmp_path / "edges.csv").write_text("0,1")
    graph = {"kind": "graph", "nodes": 7, "edges": [[0, 1]]}
    given = {"mixer": {"kind": "attention", "mask": {"file": str(tmp_path / "edges.csv"), "nodes": 7}}, "layers": 2}
    found = TrainRequest("text", ("x",), tmp_path, changes=given).with_edges().changes
    assert found == {"mixer": {"kind": "attention", "mask": graph}, "layers": 2}


def test_a_graph_file_of_another_mask_is_refused(tmp_path):
    changes = {"mixer.mask.file": "edges.csv", "mixer.mask.kind": "dilated"}
    with pytest.raises(weft.WeftError, match=r"holds the edges of a graph, but mask\.kind is dilated"):
        TrainRequest("text", ("x",), tmp_path, changes=changes).with_edges()


def show(capsys, *words: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        app(["show", *words], prog_name="weft")
    assert not stopped.value.code
    return capsys.readouterr().out


def test_show_draws_the_mask(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    (tmp_path / "spec.json").write_text(decoder(MASKS["dilated"]).to_json())
    shown = show(capsys, str(tmp_path / "spec.json"), "--length", "12")
    assert "Mask of layers 0, 1: causal & dilated(3)" in shown and "■ · · ■ · ·" in shown
    assert f"{30 / 144:.1%} of the N x N pairs are visible at N = 12" in shown
    tree = json.loads(show(capsys, str(tmp_path / "spec.json"), "--json"))
    assert tree["declares"]["masks"] == ["causal & dilated(3)"] * 2


def test_the_share_of_visible_pairs():
    assert Causal().share(12) == 78 / 144 and Everything().share(5) == 1.0
    assert (Causal() & Dilated(3)).share(12) == 30 / 144
    assert Dilated(5).share(100_000) == pytest.approx(0.2, abs=1e-4)
    assert (Causal() & BlockSparse(16, 0)).share(4000) == pytest.approx(17 / 2 / 4000, rel=0.02)
    assert estimate(decoder(MASKS["block-sparse"]), 48).flops_forward < estimate(decoder(None), 48).flops_forward


def test_the_mask_of_a_layer_decides_its_kernel():
    x = torch.zeros(1, 64, 4)
    assert AttentionContext.of(x, Causal() & BlockSparse(64)).form == "causal"
    assert AttentionContext.of(x, Causal() & BlockSparse(8)).form == "dense"
