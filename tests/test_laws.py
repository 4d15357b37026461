"""The checker on our own presets, its report, its page, its command and its pytest fixture."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import get_args

import pytest
import torch
from torch import nn

import faulty as f
import weft
from weft.foreign.recognize import subject_of
from weft.foreign.subject import NotTestable, Subject, fill_zero_weights
from weft.laws import LAWS, check
from weft.laws.finding import Verdict
from weft.laws.page import write_page
from weft.models.shrink import shrink

pytest_plugins = ["pytester"]
VERDICTS = get_args(Verdict)


@pytest.mark.parametrize("name", weft.presets())
def test_no_false_alarm_on_any_preset(name):
    report = check(weft.build(shrink(weft.preset(name))))
    assert not report.broken, str(report)
    for finding in report.findings:
        assert finding.evidence
    declares = weft.preset(name).declares()
    if declares.causal:
        assert report["causality"].verdict == "holds" and "no earlier input" not in report["causality"].evidence
        assert report["cache = full forward"].verdict == "holds"
        assert report["left padding"].verdict == report["right padding"].verdict == "holds"
    if declares.seq2seq:
        assert report["source seen"].verdict == "holds"
        image = getattr(getattr(weft.preset(name), "source", None), "kind", "") == "patches"
        assert report["source padding"].verdict == ("not testable" if image else "holds")


@pytest.mark.parametrize("kind", ["linear-attention", "none", "convolution"])
@pytest.mark.parametrize("positions", ["none", "sinusoidal"])
def test_no_false_alarm_on_other_mixers(kind, positions):
    spec = shrink(weft.preset("nano-gpt").replace(mixer={"kind": kind}, positions={"kind": positions}))
    report = check(weft.build(spec))
    assert not report.broken, str(report)


@pytest.mark.parametrize("positions", ["relative", "bucketed", "alibi", "learned"])
def test_no_false_alarm_on_other_positions_and_windows(positions):
    spec = shrink(weft.preset("mistral-7b").replace(positions={"kind": positions}))
    report = check(weft.build(spec))
    assert not report.broken, str(report)
    assert report["reach"].verdict == "holds"


def test_the_checked_module_is_left_untouched():
    model = weft.build("nano-gpt").train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    state = torch.get_rng_state()
    check(model, laws=("causality", "gradients reach every parameter"))
    assert model.training and next(model.parameters()).dtype == torch.float32
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(state, torch.get_rng_state())


def test_zero_weights_are_stirred_in_the_copy_only_so_that_nothing_hides():
    report = check(weft.build("nano-gpt"), laws=("causality",))
    assert any("exactly zero" in text for text in report.assumed)
    layer = nn.Linear(3, 3)
    nn.init.zeros_(layer.weight)
    kept = layer.bias.detach().clone()
    assert fill_zero_weights(layer) == 1 and layer.weight.any() and torch.equal(layer.bias, kept)
    assert fill_zero_weights(layer) == 0


def test_compiled_on_request():
    report = check(weft.build(shrink(weft.preset("gpt2"))), laws=("causality",), compiled=True)
    assert report["compiled"].verdict in ("holds", "not testable")


class Tokenizer:
    def encode(self, text):
        return list(text.encode())

    def decode(self, ids):
        return bytes(ids).decode()


class Lossy(Tokenizer):
    def encode(self, text):
        return list(text.lower().encode())


def test_tokenizer_round_trip():
    model = weft.build(shrink(weft.preset("gpt2")))
    law = "tokenizer round trip"
    assert check(model, laws=("causality",), tokenizer=Tokenizer())[law].verdict == "holds"
    finding = check(model, laws=("causality",), tokenizer=Lossy())[law]
    assert finding.verdict == "broken" and "Hello" in finding.evidence


def test_what_is_declared_can_be_said_and_what_is_unknown_is_refused():
    subject = subject_of(nn.Identity(), torch.tensor([[1, 2]]), causal=True, window=3)
    assert subject.declares.causal and subject.declares.window == 3
    assert "declared by the caller: causal=True, window=3" in subject.assumed
    with pytest.raises(weft.WeftError, match="can be declared"):
        subject_of(nn.Identity(), None, casual=True)
    with pytest.raises(weft.WeftError, match="there is no law 'casuality'"):
        check(weft.build("nano-gpt"), laws=("casuality",))
    with pytest.raises(weft.WeftError, match="cannot be checked"):
        check(3)
    with pytest.raises(weft.WeftError, match="choose one of finite"):
        check(weft.build(shrink(weft.preset("gpt2"))), laws=("finite outputs",))["nonsense"]


def test_what_cannot_be_tested_never_holds():
    class Odd(nn.Module):
        def forward(self, tokens):
            raise RuntimeError("it does not work")

    report = check(Odd(), torch.tensor([[1, 2, 3]]), causal=True)
    assert not [finding for finding in report.findings if finding.verdict == "holds"], str(report)
    assert "it does not work" in report["causality"].evidence
    unknown = check(lambda tokens: tokens[..., None].double(), causal=True, laws=("causality",))["causality"]
    assert unknown.verdict == "not testable" and "give an example" in unknown.evidence


def test_a_subject_that_cannot_be_copied_is_refused():
    class Uncopyable(nn.Linear):
        def __deepcopy__(self, memo):
            raise TypeError

    with pytest.raises(weft.WeftError, match="cannot be copied"):
        check(Uncopyable(3, 3), torch.zeros(1, 2, 3))


def test_the_small_protocol_refuses_what_it_is_not_told():
    subject = Subject(nn.Identity(), weft.preset("gpt2").declares())
    for ask in (lambda: subject.make_cache(1), lambda: subject.run_cached(None, None), lambda: subject.set_backend("x"),
                lambda: subject.attention_maps(None), lambda: subject.fresh(1)):  # fmt: skip
        with pytest.raises(NotTestable):
            ask()
    assert subject.backends() == ()
    with pytest.raises(NotImplementedError):
        subject.run(None)


class Mixes(nn.Module):
    """Nothing in its name or attributes says whether it may look ahead; `mix` makes tokens meet."""

    def __init__(self, mix):
        super().__init__()
        self.embedding, self.head, self.mix = nn.Embedding(23, 7), nn.Linear(7, 23), mix

    def forward(self, tokens):
        return self.head(self.mix(self.embedding(tokens)))


def sees_next(x):
    return x + torch.cat((x[:, 1:], x[:, :1] * 0), 1)


class SeesNextInTraining(nn.Module):
    def forward(self, x):
        return sees_next(x) if self.training else x.cumsum(1)


def undeclared(mix):
    return check(Mixes(mix), torch.randint(0, 23, (1, 12)), vocabulary=23)


def test_where_causality_is_not_declared_looking_ahead_is_still_measured():
    report = undeclared(sees_next)
    finding = report["causality"]
    assert finding.verdict == "not declared" and not report.broken
    found = re.fullmatch(
        r"it looks ahead: output (\d+) depends on token (\d+); pass causal=True \(--causal\) if it must not",
        finding.evidence,
    )
    assert found and int(found[2]) == int(found[1]) + 1
    assert undeclared(lambda x: x.cumsum(1))["causality"].evidence == "it does not look ahead"
    assert undeclared(lambda x: x)["causality"].evidence == "it does not look ahead, nor back"
    assert undeclared(lambda x: x * float("nan"))["causality"].evidence == "it may look ahead"
    finding = undeclared(SeesNextInTraining())["causality"]
    assert finding.verdict == "not declared" and " in training; pass causal=True" in finding.evidence


def test_the_headline_counts_all_verdicts_and_says_when_nothing_was_tested():
    report = undeclared(sees_next)
    counts = {verdict: sum(f.verdict == verdict for f in report.findings) for verdict in VERDICTS}
    said = "{holds} hold, {broken} broken, {not declared} not declared, {not testable} not testable".format(**counts)
    assert min(counts["holds"], counts["not declared"], counts["not testable"]) > 1 and report.headline == said
    assert str(report).splitlines()[0] == f"Mixes: {said}" and repr(report) == f"<Report of Mixes: {said}>"
    untested = check(nn.Linear(3, 3))
    assert str(untested).splitlines()[0].startswith("Linear: 0 hold, 0 broken, ")
    assert untested.headline.endswith(
        ": nothing could be tested (its vocabulary is unknown: give an example of tokens)"
    )
    one = check(weft.build("nano-gpt"), laws=("causality",))
    assert one.headline == "1 holds, 0 broken, 0 not declared, 0 not testable"


def leaky() -> torch.nn.Module:
    torch.manual_seed(0)
    return f.TextbookGPT(attention=f.SeesNext)


def test_the_page_draws_both_matrices_and_refers_to_nothing_outside(tmp_path):
    report = check(f.TextbookSubject.of(leaky()))
    text = write_page(report, tmp_path / "laws.html").read_text(encoding="utf-8")
    assert text.count("<svg") == 2 and "207,34,46" in text and "blocks.1.attention" in text
    outside = text.replace("http://www.w3.org/2000/svg", "")
    assert "http" not in outside and "<script" not in outside and "src=" not in outside
    with pytest.raises(weft.WeftError, match="cannot write"):
        write_page(report, tmp_path / "nowhere" / "laws.html")
    tree = report.to_tree()
    assert tree["broken"] == len(report.broken) and {row["law"] for row in tree["laws"]} == set(LAWS)
    assert "blame: blocks.1.attention" in str(report)


def weft_command(*arguments, cwd=None):
    return subprocess.run([sys.executable, "-m", "weft", *arguments], capture_output=True, text=True, cwd=cwd)


def test_the_command(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "class Decoder(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.embedding, self.mix, self.head = nn.Embedding(23, 8), nn.Linear(8, 8), nn.Linear(8, 23)\n"
        "    def forward(self, tokens):\n"
        "        x = self.embedding(tokens)\n"
        "        return self.head(x + self.mix(x.mean(1, keepdim=True)))\n"
        "broken = Decoder()\n"
        "def fails():\n"
        "    raise ValueError('no luck')\n"
    )
    out = weft_command(
        "laws", "--module", "mine:broken", "--vocabulary", "23", "--json", "--html", "a.html", cwd=tmp_path
    )
    assert out.returncode == 1, out.stderr
    tree = json.loads(out.stdout)
    causality = next(row for row in tree["laws"] if row["law"] == "causality")
    assert causality["verdict"] == "broken" and tree["broken"] >= 1
    assert "named a decoder" in tree["assumed"][0] and (tmp_path / "a.html").exists()
    good = weft_command("laws", "mixtral-8x7b")
    assert good.returncode == 0 and "checked at a smaller size" in good.stdout and ", 0 broken, " in good.stdout
    for arguments, word in (
        ((), "either a preset or run, or a module"),
        (("gpt2", "--module", "mine:broken"), "either a preset or run, or a module"),
        (("nonsense",), "there is no preset 'nonsense'"),
        (("--module", "mine"), "names no factory"),
        (("--module", "mine:nothing"), "has no 'nothing'"),
        (("--module", "nowhere:x"), "there is no module 'nowhere'"),
        (("--module", "mine:fails"), "ValueError: no luck"),
        (("--module", "mine:broken", "--example", "a,b"), "token ids"),
    ):
        bad = weft_command("laws", *arguments, cwd=tmp_path)
        assert bad.returncode == 2 and word in bad.stderr and "Traceback" not in bad.stderr, bad.stderr


def test_the_fixture(pytester):
    pytester.makepyfile(
        """
        import torch
        from torch import nn

        class Decoder(nn.Module):
            def __init__(self, leak):
                super().__init__()
                self.embedding, self.head, self.leak = nn.Embedding(23, 8), nn.Linear(8, 23), leak
            def forward(self, tokens):
                x = self.embedding(tokens)
                return self.head(x + self.leak * x.mean(1, keepdim=True))

        def test_sound(weft_laws):
            assert not weft_laws(Decoder(0.0), torch.randint(0, 23, (1, 40)), vocabulary=23).broken

        def test_leaky(weft_laws):
            weft_laws(Decoder(1.0), torch.randint(0, 23, (1, 40)), vocabulary=23)
        """
    )
    result = pytester.runpytest("-p", "no:xdist", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*causality*broken*"])


# --- faults of laws and of models ------------------------------------------------------------------------------------


def faulty_law(monkeypatch, law):
    monkeypatch.setitem(LAWS._loaded, "causality", law)
    return check(weft.build(shrink(weft.preset("nano-gpt"))), laws=("causality",))["causality"]


def test_a_bug_in_a_law_is_an_error_that_names_it(monkeypatch):
    with pytest.raises(
        weft.WeftError, match=r"the law 'causality' itself fails \(AttributeError: 'Probe'.*: report it"
    ):
        faulty_law(monkeypatch, lambda probe: probe.nothing)
    with pytest.raises(KeyboardInterrupt):
        faulty_law(monkeypatch, lambda probe: (_ for _ in ()).throw(KeyboardInterrupt))


def test_a_bug_in_a_hook_of_a_law_is_an_error_too(monkeypatch):
    """The hook runs inside the model's forward, but it is not the model that fails."""
    monkeypatch.setattr("weft.laws.trace.tensors_in", lambda value: value.nothing)
    with pytest.raises(weft.WeftError, match="the law 'finite outputs' itself fails"):
        check(f.TextbookGPT(mlp=NotFinite), torch.randint(0, 11, (1, 9)), laws=("finite outputs",))


class NotFinite(nn.Module):
    def forward(self, x):
        return x / 0.0


def test_a_model_that_fails_is_not_testable_with_its_reason():
    class Fails(nn.Module):
        def forward(self, x):
            raise RuntimeError("out of luck\nsecond line")

    report = check(Fails(), torch.randint(0, 11, (1, 9)), causal=True)
    assert report["causality"].verdict == "not testable" and report.dependence is None
    assert report["causality"].evidence == "calling it fails: RuntimeError: out of luck"
    assert not [finding for finding in report.findings if finding.verdict in ("holds", "broken")]


def test_an_answer_of_the_wrong_shape_is_the_models_fault():
    class Short(Subject):
        def run(self, call):
            return call.content[:, 1:, None].double()

    subject = Short(nn.Identity(), weft.preset("nano-gpt").declares(), example=torch.randint(0, 11, (1, 9)))
    finding = check(subject, laws=("causality",))["causality"]
    assert (
        finding.verdict == "not testable" and "has shape (13, 12, 1), not one vector for each token" in finding.evidence
    )


def test_kernels_of_our_models_are_compared():
    """A name that went stale in the adapter once turned this law into `not testable` for every model."""
    for name in ("nano-gpt", "nano-t5", "nano-vit"):
        assert check(weft.build(name), laws=("backend equality",))["backend equality"].verdict == "holds"
