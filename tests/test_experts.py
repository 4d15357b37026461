"""The gates of experts: the router learns at any number of active experts, and older runs keep the rule they had."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import weft
from foreign_folders import decoder as foreign_decoder
from weft.checkpoints.export.onnx_graphs import DenseExperts
from weft.inspection.analysis.routing import routed
from weft.models.build import read_spec
from weft.parts.experts import Experts, route
from weft.parts.feedforward import GatedFeedForward
from weft.training.reporting import Reporter

D, H, E = 5, 7, 6
LETTERS, LINE, LATER = 8, 33, 8
SMALL = {"layers": 1, "width": 32, "mixer.heads": 2, "length": 32, "dropout": 0.0, "feedforward.hidden": 16}
ONE = {"feedforward.experts": 4, "feedforward.active": 1}


def by_hand(part: Experts, x: torch.Tensor) -> torch.Tensor:
    """The formula at the head of the file, over all experts."""
    p = (x @ part.router.T).softmax(-1)
    g = p * (p >= p.topk(part.active).values[..., -1:])
    if part.gates == "renormalized":
        g = g / g.sum(-1, keepdim=True)
    y = torch.zeros_like(x) if part.shared is None else part.shared(x)
    for e in range(part.experts):
        gate, up = (x @ part.up[e].T).chunk(2, -1)
        y = y + g[..., e : e + 1] * ((F.silu(gate) * up) @ part.down[e].T)
    return y


@pytest.mark.parametrize("active", [1, 2, 3])
@pytest.mark.parametrize("shared", [True, False])
def test_the_router_learns_from_the_output(active, shared):
    part = Experts(D, H, E, active, shared=GatedFeedForward(D, 3) if shared else None).double()
    x, wanted = torch.randn(2, 11, D).double(), torch.randn(2, 11, D).double()
    assert part.gates == ("probability" if active == 1 else "renormalized")
    gradients = [torch.autograd.grad((f(x) * wanted).sum(), part.router)[0] for f in (part, lambda x: by_hand(part, x))]
    assert torch.allclose(*gradients, atol=1e-10)
    assert gradients[0].norm() > 0.1


def test_a_renormalized_gate_alone_is_1_and_teaches_nothing():
    part, x = Experts(D, H, E, 1, gates="renormalized").double(), torch.randn(13, D).double()
    gradient = torch.autograd.grad(part(x).square().sum(), part.router)[0]
    assert gradient.abs().max() < 1e-12
    logits = torch.randn(13, E).double()
    assert torch.equal(route(logits, 1, "renormalized")[0], torch.ones(13, 1).double())
    assert torch.equal(route(logits, 1, "probability")[0], logits.softmax(-1).amax(-1, keepdim=True))
    assert float(route(logits, 3, "probability")[0].sum(-1).max()) < 1


@pytest.mark.parametrize("gates", ["renormalized", "probability"])
def test_the_exported_experts_have_the_same_gates(gates):
    part, x = Experts(D, H, E, 1, gates=gates).double(), torch.randn(3, 11, D).double()
    assert torch.allclose(DenseExperts(part)(x), part(x), atol=1e-10)
    assert torch.allclose(by_hand(part, x), part(x), atol=1e-10)


def tree_of(version: int | None, active: int) -> dict:
    tree = weft.preset("nano-moe").replace(**{"feedforward.active": active}).to_tree()
    del tree["feedforward"]["gates"], tree["version"]
    return tree if version is None else tree | {"version": version}


def test_models_of_version_2_keep_the_gates_that_they_learned_with():
    assert read_spec(tree_of(2, 1)).feedforward.gates == "renormalized"
    assert weft.build(read_spec(tree_of(1, 1)), device="meta").stack.blocks[0].feedforward.gates == "renormalized"
    assert read_spec(tree_of(2, 2)) == weft.preset("nano-moe")
    for version in (3, None):  # this version's own, and a tree that somebody wrote by hand
        spec = read_spec(tree_of(version, 1))
        assert spec.feedforward.gates is None
        assert weft.build(spec, device="meta").stack.blocks[0].feedforward.gates == "probability"
    with pytest.raises(weft.WeftError, match="gates"):
        weft.preset("nano-moe").replace(**{"feedforward.gates": "softmax"})


class PullThePlug(Reporter):
    """Breaks a training off at its first evaluation."""

    def on_evaluation(self, step, loss, best):
        raise RuntimeError("pulled the plug")


def rewrite(spec: Path, version: int) -> None:
    """Write a run's spec again without the field of the gates, as a model of this version."""
    tree = json.loads(spec.read_text())
    tree["model"]["feedforward"].pop("gates", None)
    tree["model"]["version"] = version
    spec.write_text(json.dumps(tree))


def test_a_run_of_version_2_answers_and_resumes_as_before(tmp_path):
    (tmp_path / "text.txt").write_text("one by one the numbers go, " * 200)
    options = {**SMALL, **ONE, "training.checkpoint_every": 2, "training.evaluate_every": 3}
    old = {**options, "feedforward.gates": "renormalized"}
    arguments = {"task": "text", "data": tmp_path / "text.txt", "preset": "nano-moe", "steps": 6}
    whole = weft.train(**arguments, out=tmp_path / "whole", set=old)
    with pytest.raises(RuntimeError, match="plug"):
        weft.train(**arguments, out=tmp_path / "broken", set=old, reporter=PullThePlug())
    for name in ("whole", "broken"):
        rewrite(tmp_path / name / "spec.json", 2)
    ids = torch.arange(7)[None]
    assert torch.equal(weft.load(tmp_path / "whole").module(ids).logits, whole.module(ids).logits)
    weft.train(**arguments, out=tmp_path / "broken", set=options, resume=True)
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "broken")]
    assert weights[0] == weights[1]
    rewrite(tmp_path / "whole" / "spec.json", 3)  # then its gate is the probability
    assert not torch.equal(weft.load(tmp_path / "whole").module(ids).logits, whole.module(ids).logits)


def test_mixtral_keeps_its_own_gates_and_others_are_not_exported_as_mixtral(tmp_path):
    theirs = foreign_decoder(tmp_path / "folder", "Mixtral", num_local_experts=5, num_experts_per_tok=1)
    run = weft.import_checkpoint(tmp_path / "folder", tmp_path / "run")
    assert read_spec(run.spec.model).feedforward.gates == "renormalized"
    ids = torch.randint(0, theirs.config.vocab_size, (2, 11))
    with torch.no_grad():
        assert torch.allclose(run.module(ids).logits, theirs(ids).logits, atol=1e-4)
    weft.export(run, "huggingface", tmp_path / "back")
    spec = tmp_path / "run" / "spec.json"
    spec.write_text(spec.read_text().replace('"gates": "renormalized"', '"gates": "probability"'))
    with pytest.raises(weft.WeftError, match=r"feedforward\.gates is 'probability', there only 'renormalized'"):
        weft.export(tmp_path / "run", "huggingface", tmp_path / "again")
    with pytest.raises(weft.WeftError, match="gates is 'probability'"):
        weft.export(tmp_path / "run", "gguf", tmp_path / "model.gguf")


def lines_of(tables: np.ndarray, count: int, random: np.random.Generator) -> tuple[torch.Tensor, np.ndarray]:
    """Lines of letters [count, LINE] by one of two Markov chains, and which one."""
    classes = random.integers(0, 2, count)
    letters = random.integers(0, LETTERS, (count, LINE))
    sums = tables.cumsum(-1)
    for t in range(1, LINE):
        letters[:, t] = (sums[classes, letters[:, t - 1]] < random.random((count, 1))).sum(-1).clip(max=LETTERS - 1)
    return torch.from_numpy(letters), classes


def information(a: np.ndarray, b: np.ndarray) -> float:
    """I(a; b) of two columns of numbers, in nats."""
    joint = np.zeros((a.max() + 1, b.max() + 1))
    np.add.at(joint, (a, b), 1 / len(a))
    apart = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True)
    seen = joint > 0
    return float((joint[seen] * np.log(joint[seen] / apart[seen])).sum())


def learned(lines: torch.Tensor, seed: int, gates: str) -> tuple[torch.nn.Module, float]:
    """A small nano-moe with one active expert, after one pass over the lines, and its mean loss in the last steps."""
    spec = weft.preset("nano-moe").replace(**SMALL, **ONE, vocabulary=LETTERS, **{"feedforward.gates": gates})
    model = weft.build(spec, seed)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    losses = []
    for rows in lines.split(32):
        out = model(rows[:, :-1])
        loss = F.cross_entropy(out.logits.flatten(0, 1), rows[:, 1:].flatten())
        (loss + 0.01 * out.auxiliary["balance loss"] + 0.001 * out.auxiliary["z loss"]).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return model.eval(), float(np.mean(losses[-8:]))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_one_active_expert_is_chosen_by_what_the_text_is(seed):
    random = np.random.default_rng(seed)
    tables = random.dirichlet(np.full(LETTERS, 0.3), (2, LETTERS))
    lines, _ = lines_of(tables, 80 * 32, random)
    model, loss = learned(lines, seed, "probability")
    held, classes = lines_of(tables, 200, random)
    with routed(model) as found, torch.no_grad():
        model(held)
    chosen = found.chosen(0)[:, LATER:, 0].numpy()
    columns = np.broadcast_to(classes[:, None], chosen.shape)
    shuffled = [np.broadcast_to(random.permutation(classes)[:, None], chosen.shape) for _ in range(20)]
    controls = [information(chosen.ravel(), control.ravel()) for control in shuffled]
    assert information(chosen.ravel(), columns.ravel()) > 3 * max(controls)
    # Under the renormalized gate, which no gradient of the output reaches, the same model learns less.
    assert loss < learned(lines, seed, "renormalized")[1]
