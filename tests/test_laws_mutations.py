"""Planted faults: each is caught by the right law and blamed on the right submodule; the sound model breaks none."""

from __future__ import annotations

import types
from dataclasses import replace

import pytest
import torch

import faulty as f
import weft
from weft.laws import BrokenLawError, check
from weft.models.shrink import shrink
from weft.parts.attention_context import AttentionContext
from weft.parts.convolution import Convolution
from weft.parts.masks import Causal, Window
from weft.parts.recurrence import Recurrence
from weft.parts.token_positions import TokenPositions

ATTENTION, MLP, NORM = "blocks.1.attention", "blocks.1.mlp", "blocks.1.norm1"

TEXTBOOK = [
    ({"attention": f.SeesNext}, "causality", ATTENTION, "shifted by one"),
    ({"attention": f.HidesItself}, "finite outputs", ATTENTION, "softmax over nothing"),
    ({"attention": f.Inverted}, "causality", ATTENTION, "no mask|inverted"),
    ({"attention": f.Unmasked}, "causality", ATTENTION, "no mask"),
    ({"attention": f.LostInTraining}, "causality", ATTENTION, "in training"),
    ({"attention": f.MaskedAfterSoftmax}, "causality", ATTENTION, "mask"),
    ({"attention": f.SoftmaxOverQueries}, "causality", ATTENTION, "wrong axis"),
    ({"attention": f.SoftMask}, "causality", ATTENTION, "mask"),
    ({"attention": f.UpperLeftMaskWithCache}, "cache = full forward", ATTENTION, "wrong corner"),
    ({"attention": f.UnmaskedWithCache}, "cache = full forward", ATTENTION, ""),
    ({"attention": f.ForgetsOldKeys}, "cache = full forward", ATTENTION, "from step 6 on: the cache is overwritten"),
    ({"attention": f.StaleCache}, "cache = full forward", ATTENTION, "stale"),
    ({"attention": f.CacheInWrongOrder}, "cache = full forward", ATTENTION, ""),
    ({"attention": f.ValuesNotCached}, "cache = full forward", ATTENTION, "first cached step"),
    ({"attention": f.IgnoresPadding}, "left padding", ATTENTION, "padding is looked at"),
    ({"attention": f.InvertedPadding}, "left padding", ATTENTION, "padding is looked at"),
    ({"attention": f.ShiftedPadding}, "left padding", ATTENTION, "padding is looked at"),
    ({"attention": f.OneRowsPaddingForAll}, "left padding", None, "padding of one row"),
    ({"attention": f.SubtractsMeanValue}, "causality", ATTENTION, ""),
    ({"attention": f.SharedBuffer}, "batch independence", ATTENTION, "shared between rows"),
    ({"attention": f.StaleBuffer}, "eval is deterministic", ATTENTION, "stale state"),
    ({"attention": f.TemperatureByLength}, "all lengths", ATTENTION, "length"),
    ({"norm1": f.BatchNormOverTime}, "causality", "blocks.1.norm1.norm", "in training"),
    ({"norm1": f.BatchNormOverTime}, "batch independence", "blocks.1.norm1.norm", "statistics over the batch"),
    ({"norm1": f.LayerNormOverTime}, "causality", NORM, "statistics over the sequence"),
    ({"norm1": f.CentersOverTime}, "causality", NORM, "statistics over the sequence"),
    ({"mlp": f.GlobalMax}, "causality", MLP, ""),
    ({"mlp": f.DropoutInEval}, "eval is deterministic", MLP, "randomness"),
    ({"mlp": f.ExpertChoice}, "causality", MLP, ""),
    ({"mlp": f.CapacityOverBatch}, "batch independence", MLP, "rows"),
    ({"mlp": f.Detached}, "gradients reach every parameter", "blocks.1.norm2", "detached"),
    ({"mlp": f.Unused}, "gradients reach every parameter", "blocks.1.mlp.extra", "not used"),
    ({"mlp": f.DividesByLength}, "all lengths", MLP, "length"),
    (f.CountsPadding, "left padding", "positions", "positions count the padding"),
    (f.RestartsPositions, "cache = full forward", "positions", "cache offset"),
    (f.PositionsOffByOneWithCache, "cache = full forward", "positions", "cache offset"),
    (f.LooksAtTheLabel, "causality", "tokens", "shifted by one"),
    (f.StartsTooLarge, "initial loss", None, "too large"),
    (f.Unseeded, "same seed, same bits", "norm", None),
]


def name_of(case) -> str:
    kind = next(iter(case.values())) if isinstance(case, dict) else case
    return kind.__name__ if hasattr(kind, "__name__") else str(kind)


def build(case) -> torch.nn.Module:
    torch.manual_seed(3)
    return f.TextbookGPT(**case) if isinstance(case, dict) else case()


def expect(finding, path, cause) -> None:
    assert finding.verdict == "broken", finding
    assert finding.blame == path, finding
    if cause:
        assert any(word in (finding.cause or "") for word in cause.split("|")), finding


def test_the_sound_textbook_model_breaks_nothing():
    report = check(f.TextbookSubject.of(build({})))
    assert not report.broken, str(report)
    tested = {finding.law for finding in report.findings if finding.verdict == "holds"}
    laws = {law for _, law, _, _ in TEXTBOOK}
    assert laws <= tested
    assert report["causality"].violation == 0.0


@pytest.mark.parametrize(
    ("case", "law", "path", "cause"), TEXTBOOK, ids=[f"{name_of(c)}-{law}" for c, law, *_ in TEXTBOOK]
)
def test_textbook_faults(case, law, path, cause):
    laws = (law,)
    expect(check(f.TextbookSubject.of(build(case)), laws=laws)[law], path, cause)


# --- statistics over batch and time, however weak ------------------------------------------------------------------

MEETS = {"batch": {"batch independence"}, "time": {"causality"}, "both": {"causality", "batch independence"}}
STATISTICS = [
    *(("std", "both", strength, False) for strength in (0.03, 0.01, 0.003, 0.001)),
    *((taken, over, 1e-6, False) for taken in f.STATISTICS for over in MEETS),
    ("mean", "batch", 1.0, False),
    ("mean", "batch", 1e-3, True),
    ("std", "both", 1e-6, True),
    ("maximum", "time", 1e-6, True),
    ("median", "batch", 1e-6, True),
    ("variance", "both", 1e-9, False),
    ("mean", "time", 1e-12, False),
]


@pytest.mark.filterwarnings("ignore:std.* degrees of freedom:UserWarning")
@pytest.mark.parametrize(("taken", "over", "strength", "training_only"), STATISTICS)
def test_statistics_over_batch_and_time_are_caught_and_told_apart(taken, over, strength, training_only):
    """A fault used to raise its own tolerance, and one between rows to be reported as one in time."""
    module = build({"norm1": lambda: f.AddsStatistic(taken, over, strength, training_only)})
    report = check(f.TextbookSubject.of(module), laws=("causality", "batch independence"))
    assert {finding.law for finding in report.broken} == MEETS[over], str(report)
    for finding in report.broken:
        assert finding.blame == NORM, finding
        assert ("in training" in finding.evidence) == training_only, finding


@pytest.mark.parametrize("place", ["norm1", "mlp"])
@pytest.mark.parametrize("leak", [0.0, 1e-9])
def test_a_fourier_transform_rounds_and_a_leak_beside_it_grows(leak, place):
    """It mixes all places, so that later ones change the last bits of earlier ones; before a norm, by their size."""
    report = check(f.TextbookSubject.of(build({place: lambda: f.FourierConvolution(leak)})), laws=("causality",))
    finding = report["causality"]
    assert finding.verdict == ("broken" if leak else "holds"), finding
    assert leak or (0 < finding.violation < 1e-14 and "rounding" in finding.evidence)


@pytest.mark.parametrize("leak", [0.0, 1e-9])
def test_experts_round_and_a_leak_beside_them_grows(leak):
    module = model("nano-moe")
    part = module.stack.blocks[1].feedforward
    forward = type(part).forward
    part.forward = types.MethodType(
        lambda self, x, auxiliary=None: forward(self, x, auxiliary) + leak * x.mean(1, True), part
    )
    finding = check(module, laws=("causality",))["causality"]
    assert finding.verdict == ("broken" if leak else "holds"), finding
    assert finding.blame == (FEED if leak else None)


def test_a_mean_over_the_batch_breaks_batch_independence_alone():
    module = build({"norm1": lambda: f.AddsStatistic("mean", "batch", 0.3)})
    report = check(f.TextbookSubject.of(module))
    assert {finding.law for finding in report.broken} == {"batch independence"}, str(report)
    assert report.dependence[0][1] == 0.0


# --- faults in Weft's own models -----------------------------------------------------------------------------------


def model(name: str, **changes) -> torch.nn.Module:
    return weft.build(shrink(weft.preset(name), layers=3).replace(**changes))


def wider_window(m):
    masks = list(m.stack.masks)
    masks[1] = Causal() & Window(6)
    m.stack.masks = tuple(masks)


def no_window(m):
    m.stack.masks = (m.stack.masks[0], Causal(), m.stack.masks[2])


def missing_scale(m):
    score = m.stack.blocks[1].mixer.score
    score.as_dot_product = types.MethodType(lambda self, q: (q, 1.0), score)


def wrap_context(m, change):
    part = m.stack.blocks[1].mixer
    forward = type(part).forward

    def faulty(self, x, context=None, state=None):
        return forward(self, x, change(context), state)

    part.forward = types.MethodType(faulty, part)


def documents_leak(m):
    def change(s):
        return AttentionContext(replace(s.queries, documents=None, packed=False), None, s.mask, s.position)

    wrap_context(m, change)


def documents_count_on(m):
    part = m.input.position
    forward = type(part).forward
    part.forward = types.MethodType(
        lambda self, x, p: forward(self, x, TokenPositions.run(0, x.shape[1], x.device)), part
    )


def absolute_leak(m):
    part = m.stack.blocks[1].mixer
    forward = type(part).forward

    def faulty(self, x, context=None, state=None):
        ramp = torch.sin(context.queries.positions.to(x.dtype))[..., None]
        return forward(self, x + 0.1 * ramp, context, state)

    part.forward = types.MethodType(faulty, part)


def index_leak(m):
    part = m.stack.blocks[1].mixer
    forward = type(part).forward

    def faulty(self, x, context=None, state=None):
        return forward(self, x + torch.linspace(0, 1, x.shape[1], dtype=x.dtype)[:, None], context, state)

    part.forward = types.MethodType(faulty, part)


def graph_ignored(m):
    wrap_context(m, lambda s: AttentionContext(s.queries, s.keys, None, s.position))


def source_hidden(m):
    part = m.source_input
    forward = type(part).forward

    def faulty(self, x, token_positions, segments=None):
        x = x.clone()
        x[:, -1] = 0
        return forward(self, x, token_positions, segments)

    part.forward = types.MethodType(faulty, part)


def source_padding_seen(m):
    part = m.decoder.blocks[1].cross
    forward = type(part).forward

    def faulty(self, x, memory, context=None, state=None):
        plain = AttentionContext(context.queries, TokenPositions.run(0, memory.shape[1], x.device))
        return forward(self, x, memory, plain, state)

    part.forward = types.MethodType(faulty, part)


def steps_over_padding(m):
    part = m.stack.blocks[1].mixer.recurrent
    forward = type(part).forward

    def faulty(self, x, token_positions, start=None, document=None):
        return forward(self, x, TokenPositions.run(0, x.shape[1], x.device), start, document)

    part.forward = types.MethodType(faulty, part)


def two_way_recurrence(m):
    m.stack.blocks[1].mixer = Recurrence(48, "gru", bidirectional=True)


def centered_convolution(m):
    m.stack.blocks[1].mixer = Convolution(48, 3, causal=False)


def softmax_over_nothing(m):
    part = m.stack.blocks[1].mixer

    def faulty(self, query, key, value, context):
        e = self.score(query, key)
        if context.form != "everything":
            e = e.masked_fill(~context.visible, float("-inf"))
        return e.softmax(-1) @ value

    part.gather = types.MethodType(faulty, part)


def sigmoid_for_softmax(m):
    part = m.stack.blocks[1].mixer
    part.weights = types.MethodType(lambda self, q, k, s: torch.sigmoid(self.score(q, k)), part)


def token_dropped(m):
    part = m.stack.blocks[1].feedforward
    forward = type(part).forward

    def faulty(self, x, auxiliary=None):
        rows = x.reshape(-1, x.shape[-1])
        kept = torch.arange(len(rows)) < int(0.6 * len(rows))
        return forward(self, x, auxiliary) * kept.view(x.shape[:-1])[..., None]

    part.forward = types.MethodType(faulty, part)


MIXER, FEED = "stack.blocks.1.mixer", "stack.blocks.1.feedforward"
OURS = [
    (wider_window, lambda: model("mistral-7b"), "reach", MIXER, "too wide"),
    (no_window, lambda: model("mistral-7b"), "reach", MIXER, "without its window"),
    (missing_scale, lambda: model("gpt2"), "backend equality", MIXER, "scale"),
    (documents_leak, lambda: model("llama-2-7b"), "document isolation", MIXER, "neighbor"),
    (documents_count_on, lambda: model("gpt2"), "document isolation", "input.position", "positions"),
    (absolute_leak, lambda: model("llama-2-7b"), "shift invariance", MIXER, "absolute"),
    (index_leak, lambda: model("bert-base", positions={"kind": "none"}), "permutation equivariance", MIXER, "index"),
    (graph_ignored, lambda: model("bert-base"), "graph reach", MIXER, "graph"),
    (source_hidden, lambda: model("t5-small"), "source seen", "source_input", "hides real tokens"),
    (source_padding_seen, lambda: model("t5-small"), "source padding", "decoder.blocks.1.cross", "looked at"),
    (steps_over_padding, lambda: model("nano-rnn"), "left padding", MIXER + ".recurrent.net", "looked at"),
    (two_way_recurrence, lambda: model("nano-rnn"), "causality", MIXER + ".recurrent.net", ""),
    (centered_convolution, lambda: model("nano-conv"), "causality", MIXER + ".taps", "shifted by one"),
    (softmax_over_nothing, lambda: model("bert-base"), "rows that see nothing", MIXER, "0 / 0"),
    (sigmoid_for_softmax, lambda: model("gpt2"), "attention rows are distributions", MIXER, "softmax"),
    (token_dropped, lambda: model("nano-moe"), "all lengths", FEED, "length"),
    (token_dropped, lambda: model("nano-moe"), "batch independence", FEED, "number of rows"),
]


@pytest.mark.parametrize(("fault", "make", "law", "path", "cause"), OURS, ids=[fault.__name__ for fault, *_ in OURS])
def test_faults_in_our_models(fault, make, law, path, cause):
    sound = make()
    assert check(sound, laws=(law,))[law].verdict == "holds"
    fault(sound)
    expect(check(sound, laws=(law,))[law], path, cause)


def test_there_are_enough_faults():
    assert len(TEXTBOOK) + len(OURS) >= 50


def test_a_broken_law_raises_with_the_words():
    with pytest.raises(BrokenLawError, match=r"breaks .* causality: output \d+ changes .* first in blocks.1.attention"):
        check(f.TextbookSubject.of(build({"attention": f.Unmasked}))).raise_if_broken()
    sound = check(f.TextbookSubject.of(build({})), laws=("causality",))
    assert sound.raise_if_broken() is sound
