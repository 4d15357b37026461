"""The checker on our own presets, its report, its page and its pytest fixture."""

from __future__ import annotations

import re
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
from weft.laws.probe import Probe
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
    with pytest.raises(weft.WeftError, match=r"an example is a tensor of tokens \[B, T\].*, not a str"):
        check(nn.Identity(), "some text")
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
    assert str(report).splitlines()[0] == f"Mixes: {said}" and repr(report).startswith(f"<Report of Mixes: {said};")
    untested = check(nn.Linear(3, 3))
    assert str(untested).splitlines()[0].startswith("Linear: 0 hold, 0 broken, ")
    assert untested.headline.endswith(
        ": nothing could be tested (its vocabulary is unknown: give an example of tokens)"
    )
    one = check(weft.build("nano-gpt"), laws=("causality",))
    assert one.headline == "1 holds, 0 broken, 0 not declared, 0 not testable"


def test_a_check_that_tests_nothing_does_not_pass():
    with pytest.raises(weft.laws.BrokenLawError, match=r"no law of Linear could be tested \(its vocabulary is unknown"):
        check(nn.Linear(3, 3)).raise_if_broken()


def test_the_report_in_a_notebook():
    report = check(f.TextbookSubject.of(leaky()), laws=("causality", "finite outputs"))
    html = report._repr_html_()
    assert html.index("broken") < html.index("<details>") < html.index("finite outputs")
    assert "blocks.1.attention" in html and html.count("<svg") == 2 and "<script" not in html and "<html" not in html


# --- answers of whole texts ------------------------------------------------------------------------------------------


class Pooled(nn.Module):
    """An encoder of whole texts; `pool` makes one vector of those of all tokens and the mask."""

    def __init__(self, pool):
        super().__init__()
        self.embedding, self.head, self.pool = nn.Embedding(23, 8), nn.Linear(8, 5), pool
        self.mix = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, tokens, padding_mask=None):
        x = self.embedding(tokens)
        x = x + self.mix(x, x, x, key_padding_mask=padding_mask, need_weights=False)[0]
        real = torch.ones_like(tokens, dtype=torch.bool) if padding_mask is None else ~padding_mask
        return self.head(self.pool(x, real[..., None].to(x.dtype)))


def over_real(x, real):
    return (x * real).sum(1) / real.sum(1)


def over_all(x, real):
    return x.mean(1)


def of_the_batch(x, real):
    return over_real(x, real) + 1e-6 * x.mean((0, 1))


WHOLE_TEXT = {"batch independence", "left padding", "right padding", "all lengths", "eval is deterministic",
              "gradients reach every parameter", "finite outputs"}  # fmt: skip


@pytest.mark.parametrize(
    ("pool", "breaks"),
    [
        (over_real, set()),
        (over_all, {"left padding", "right padding"}),
        (of_the_batch, {"batch independence", "left padding", "right padding"}),
    ],
)
def test_answers_of_whole_texts_are_judged(pool, breaks):
    torch.manual_seed(0)
    report = check(Pooled(pool), laws=(*sorted(WHOLE_TEXT), "causality", "document isolation"))
    assert {finding.law for finding in report.broken} == breaks, str(report)
    assert all(report[law].verdict == "holds" for law in WHOLE_TEXT - breaks), str(report)
    assert "one answer per text" in report["document isolation"].evidence and report.dependence is None
    if pool is over_all:
        assert "averaged in" in report["right padding"].cause and report["right padding"].blame == ""


def test_a_random_answer_of_a_whole_text_is_found():
    finding = check(Pooled(lambda x, real: over_real(x, real) * torch.rand(())), laws=("eval is deterministic",))
    assert finding["eval is deterministic"].verdict == "broken"


def test_one_number_per_token_is_no_answer_of_a_whole_text():
    report = check(lambda tokens: tokens.double().flip(1), torch.randint(0, 23, (1, 12)), causal=True)
    assert report["causality"].verdict == "broken"


# --- what masks and arguments say ------------------------------------------------------------------------------------


class Masked(nn.Module):
    """Attention by torch under a name that says nothing, with the mask it is given, and a leak beside it."""

    def __init__(self, mask, attend, leak=0.0):
        super().__init__()
        self.embedding, self.head, self.mask, self.attend, self.leak = (
            nn.Embedding(23, 8), nn.Linear(8, 23), mask, attend, leak)  # fmt: skip
        self.mix = nn.MultiheadAttention(8, 2, batch_first=True)
        self.stack = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 9, batch_first=True), 1)

    def forward(self, tokens):
        x = self.embedding(tokens)
        return self.head(self.attend(self, x, self.mask(x.shape[1])) + self.leak * x.mean(1, keepdim=True))


def by_kernel(self, x, hidden):
    return nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=None if hidden is None else ~hidden)


def by_flag(self, x, hidden):
    return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=hidden is not None)


def by_softmax(self, x, hidden):
    scores = x @ x.transpose(-2, -1)
    return (scores if hidden is None else scores.masked_fill(hidden, -1e9)).softmax(-1) @ x


def by_multihead(self, x, hidden):
    return self.mix(x, x, x, attn_mask=hidden, need_weights=False)[0]


def by_encoder(self, x, hidden):
    return self.stack(x, mask=hidden, is_causal=hidden is not None)


def ahead(T):
    return torch.ones(T, T, dtype=torch.bool).triu(1)


@pytest.mark.parametrize("attend", [by_kernel, by_flag, by_softmax, by_multihead, by_encoder])
def test_a_causal_mask_inside_says_that_causality_is_meant(attend):
    report = check(Masked(ahead, attend), laws=("causality",))
    assert report["causality"].verdict == "holds"
    assert report.assumed[0] == "1 of 1 attentions inside run with a causal mask, so it is taken to declare causality"
    assert check(Masked(ahead, attend, leak=1e-6), laws=("causality",))["causality"].verdict == "broken"
    assert check(Masked(lambda T: None, attend), laws=("causality",))["causality"].verdict == "not declared"
    said = check(Masked(ahead, attend, leak=1e-6), laws=("causality",), causal=False)["causality"]
    assert said.verdict == "not declared"


class Positioned(nn.Module):
    """Takes a mask and positions, as many do; `trusts` whether it counts padding unless it is given positions."""

    def __init__(self, trusts=True):
        super().__init__()
        self.embedding, self.places, self.head = nn.Embedding(23, 8), nn.Embedding(32, 8), nn.Linear(8, 23)
        self.trusts = trusts

    def forward(self, tokens, attention_mask=None, positions=None):
        T = tokens.shape[1]
        real = torch.ones_like(tokens) if attention_mask is None else attention_mask.long()
        if not self.trusts:
            positions = real.cumsum(1).sub(1).clamp(min=0)
        positions = torch.arange(T).expand_as(tokens) if positions is None else positions
        x = self.embedding(tokens) + self.places(positions)
        weights = real[:, None] * torch.ones(T, T, dtype=x.dtype).tril()
        return self.head(weights @ x / weights.sum(-1, keepdim=True).clamp(min=1))


def test_what_holds_only_with_an_argument_often_left_out_is_a_caution():
    report = check(Positioned(), laws=("left padding", "right padding"))
    finding = report["left padding"]
    assert finding.verdict == "caution" and not report.broken and report.cautions == (finding,)
    assert "without positions" in finding.evidence and finding.violation > 1e-3 and "pass positions" in finding.cause
    assert report["right padding"].verdict == "holds" and report.headline.startswith("1 holds, 0 broken, 1 caution, ")
    assert report.raise_if_broken() is report and report.to_tree()["cautions"] == 1
    assert check(Positioned(trusts=False), laws=("left padding",))["left padding"].verdict == "holds"


def test_casts_are_named_only_where_there_are_any():
    said = "its casts to narrower numbers inside are judged in float64"
    assert said not in undeclared(lambda x: x).assumed
    assert said in undeclared(lambda x: x.float()).assumed


class InFloat32(nn.Module):
    """Rounds to float32 by a way that cannot be widened, so that the number of rows changes the last bits."""

    def __init__(self, leak=0.0):
        super().__init__()
        self.embedding, self.mix, self.head = nn.Embedding(23, 64), nn.Linear(64, 64), nn.Linear(64, 23)
        self.leak = leak

    def forward(self, tokens):
        x = self.embedding(tokens)
        narrow = torch.from_numpy(self.mix(x).detach().numpy().astype("float32"))
        return self.head(narrow.to(x.dtype) + self.leak * x.mean((0, 1)))


def test_rounding_inside_is_measured_and_no_fault_raises_its_own_tolerance():
    probe = Probe(subject_of(InFloat32(), torch.randint(0, 23, (1, 12)), causal=True).widened())
    assert 1e-9 < probe.rounding < 1e-6 and probe.tolerance > 1e-8
    leaky = Probe(
        subject_of(f.TextbookSubject.of(f.TextbookGPT(norm1=lambda: f.AddsStatistic("std", "both", 1.0)))).widened()
    )
    assert leaky.rounding < 1e-12
    weak = check(InFloat32(leak=1e-3), torch.randint(0, 23, (1, 12)), causal=True, laws=("causality",))
    assert weak["causality"].verdict == "broken"


def test_an_infinite_output_hides_no_other_fault():
    def mix(x):
        y = x + x.mean(1, keepdim=True)
        return torch.cat((y[:, :-1], y[:, -1:] / 0.0), 1)

    report = check(Mixes(mix), torch.randint(0, 23, (1, 12)), causal=True, laws=("finite outputs", "causality"))
    assert {finding.law for finding in report.broken} == {"finite outputs", "causality"}, str(report)


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
        finding.verdict == "not testable" and "has shape (1, 12, 1), not one vector for each token" in finding.evidence
    )


def test_kernels_of_our_models_are_compared():
    """A name that went stale in the adapter once turned this law into `not testable` for every model."""
    for name in ("nano-gpt", "nano-t5", "nano-vit"):
        assert check(weft.build(name), laws=("backend equality",))["backend equality"].verdict == "holds"
