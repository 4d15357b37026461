"""A run is what users hold: module, tokenizer, task and spec, with `predict` and `evaluate`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from weft.checkpoints.run_folder import RunFolder, RunSpec
from weft.checkpoints.sample_runs import address_of, locate_run
from weft.data.hub import local_sources
from weft.data.tokenizers.tokenizer import Tokenizer, load_tokenizer
from weft.figures.web.page import Page
from weft.foreign.wrap_module import GivenModule, rewrap_module
from weft.foundation.errors import ShapeError, WeftError
from weft.foundation.files.atomic_files import DiskError
from weft.foundation.files.folders import cache_folder
from weft.foundation.numerics import pick_device
from weft.inference.fast.quantize import WeightKind, quantize_model
from weft.models.build import AnySpec, build, read_spec
from weft.models.estimates import estimate
from weft.models.module_spec import ModuleSpec
from weft.parts.quantized import dequantized_state, hold_blocks
from weft.tasks.registry import TASKS, task_named
from weft.tasks.support.abstention import expect_probabilities, expect_threshold, withhold
from weft.tasks.support.evaluation.example_scores import ExampleScores, Report
from weft.tasks.support.evaluation.references import losing_to
from weft.tasks.support.language.conversation import Conversation
from weft.tasks.support.language.few_shot import FewShotOptions
from weft.tasks.task import Answer, GenerationOptions, Split, Task

EVALUATION_BATCH = 8192  # tokens per batch when a run is evaluated


@dataclass(frozen=True, repr=False)
class Run:
    """A trained model with all that is needed to use it."""

    module: nn.Module
    task: Task
    spec: RunSpec
    folder: Path

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.task.tokenizer

    def __repr__(self) -> str:
        return f"Run({self.task.name}, {self._model}, {self.folder})"

    @property
    def _model(self) -> str:
        """The kind of the model and its size, in words."""
        spec = read_spec(self.spec.model)
        if isinstance(spec, ModuleSpec):
            return f"{spec.name}, {spec.parameters:,} parameters"
        return f"{spec.family}, {estimate(spec).parameters:,} parameters"

    def _repr_html_(self) -> str:
        """In a notebook: what it is, what it reached, and what can be done with it."""
        rows = [
            ("task", self.task.name),
            ("model", self._model),
            ("folder", address_of(self.folder)),
        ]
        if self.tokenizer is not None:
            rows.insert(2, ("tokenizer", f"{self.tokenizer.vocabulary:,} tokens"))
        reached: dict[str, Any] = {}
        for row in RunFolder(self.folder).read_metrics():
            reached = row.get("metrics", reached)
        rows += [(name, f"{value:.4g}") for name, value in reached.items() if isinstance(value, (int, float))]
        rows.append(("next", "run.predict(...), run.evaluate(data), weft.watch(run), weft.laws.check(run.module)"))
        page = Page(f"Run {self.folder.name}")
        page.table(("", ""), rows)
        return page.fragment()

    def predict(self, inputs: Any, **options: Any) -> Any:
        """The answer to one input, or a list of answers to a list: `run.predict("Once", max_tokens=80, seed=1)`."""
        one = isinstance(inputs, (str, Path))
        outputs = [answer.output for answer in self.answer([inputs] if one else inputs, **{"top": 0, **options})]
        return outputs[0] if one and len(outputs) == 1 else outputs

    def answer(self, inputs: Sequence[Any], **options: Any) -> list[Answer]:
        """Answers with what belongs to them: probabilities, tokens, alignments, bands."""
        if not isinstance(inputs, Iterable):
            raise WeftError(f"predict takes one text or path, or a list of inputs, not {inputs!r:.40}")
        generation = _generation_options(options)
        ranks = self.task.generates or self.task.ranks_tokens
        if (generation.top and not ranks) or (generation.steps and not self.task.generates):
            raise WeftError(
                f"a run of task {self.task.name} generates no tokens: leave top and steps out, its answers come whole"
            )
        if generation.question is not None and not self.task.takes_questions:
            raise WeftError("this run was trained without questions about images: leave the question out")
        if generation.labels and not self.task.takes_labels:
            raise WeftError(
                f"a run of task {self.task.name} does not choose between labels that are given: leave labels out, or "
                "import a model of images and texts, such as CLIP"
            )
        if generation.abstain is not None:
            expect_probabilities(self.task, generation.labels)
        answers = self.task.predict(self.module, list(inputs), generation)
        for answer in answers:
            _expect_finite((answer.output, answer.more), "its answer")
        return answers if generation.abstain is None else [withhold(one, generation.abstain) for one in answers]

    def stream(self, given: Any, **options: Any) -> Iterator[str]:
        """The answer to one input, piece by piece as it is written: `for piece in run.stream("Once"): ...`."""
        return self.task.stream(self.module, given, _generation_options(options))

    def chat(self, system: str | None = None, template: str | None = None, **options: Any) -> Conversation:
        """A conversation with a language model: `for piece in run.chat().say("hello"): ...`.

        `template` is the name or file of a chat template, for models that have none of their own.
        """
        return self.task.chat(self.module, _generation_options(options), system, template)

    def evaluate(
        self,
        data: str | Path | Sequence[str | Path],
        shots: int | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        limit: int | None = None,
        abstain: float | None = None,
        report: Report | None = None,
        **few_shot: Any,
    ) -> dict[str, Any]:
        """The task's metrics on other data; with `shots`, those of a language model that labels texts, see `few_shot`.

        `options` say how these data are read where they differ from training: `{"columns": ["text", "mood"]}`. At most
        `limit` examples are taken; `report` is told the share that is done. Besides the metrics: `intervals` of 95 %
        (bootstrap over examples), `references` (simple methods on these data), `loses_to` (those that are not beaten)
        and `training` (the same on training's validation data, if the run has stored it); `trust` says in words whether
        probabilities, bands or confidences are to be trusted. Of classes also `reliability`: how often answers of about
        the same probability are right; and with `abstain`, a probability, `abstention`: the share of answers that are
        at least as probable, and their accuracy.
        """
        if shots is not None:
            if limit is not None:
                raise WeftError("limit does not go with shots: give fewer examples")
            if abstain is not None:
                raise WeftError("abstain does not go with shots: leave one of them out")
            return self.few_shot(data, shots, **{**few_shot, **(options or {})})
        if few_shot:
            raise WeftError(f"{', '.join(few_shot)}: these go with shots")
        if abstain is not None:
            expect_threshold(abstain)
            expect_probabilities(self.task)
        split = self.read(data, options, limit)
        scores = self.task.score_examples(self.module, split, EVALUATION_BATCH, report)
        known = RunFolder(self.folder).read_references()
        references = self.task.quick_references(known.pop("facts", {}), split)
        metric = self.task.judged_by
        value = scores.metrics.get(metric)
        _expect_finite(scores.metrics.get("loss"), "its loss on these data")
        return {
            **scores.metrics,
            "intervals": scores.intervals(),
            "references": references,
            "loses_to": [] if value is None else losing_to(metric, value, references),
            **({"training": known} if known else {}),
            **_trust(scores, abstain),
        }

    def read(
        self,
        data: str | Path | Sequence[str | Path],
        options: Mapping[str, Any] | None = None,
        limit: int | None = None,
    ) -> Split:
        """Data to evaluate on, in the terms learned in training; at most `limit` examples, evenly spread."""
        if limit is not None and limit < 1:
            raise WeftError(f"a limit of {limit} leaves no example: use 1 or more, or leave it out")
        paths = [data] if isinstance(data, (str, Path)) else data
        task = self.task
        if options:
            task = copy(task)
            task.options = type(task.options)(**{**task.options.to_tree(), **options})
        split = task.read(local_sources([str(path) for path in paths]), cache_folder())
        split = split.fit(cast(AnySpec, self.module.spec))
        # Models from elsewhere read so much at once that windows of that length would take all memory.
        if (getattr(self.module.spec, "length", None) or 0) > EVALUATION_BATCH:
            split = split.cut(EVALUATION_BATCH)
        return split if limit is None else split.limit(limit)

    def few_shot(
        self,
        data: str | Path | Sequence[str | Path],
        shots: int = 0,
        *,
        labels: Sequence[str] | None = None,
        examples: str | Path | None = None,
        prompt: str | None = None,
        seed: int = 0,
        columns: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Label texts by what follows a prompt of so many labeled examples; nothing is learned.

        `labels` are words for the labels, in their order; `examples` is the file that examples are drawn from, else
        the data itself, less what was drawn; `prompt` says options each is written: "Review: {text}\\nMood: {label}";
        `columns` are those of text and label.
        """
        paths = [data] if isinstance(data, (str, Path)) else data
        return self.task.few_shot(self.module, paths, FewShotOptions(shots, labels, examples, prompt, seed, columns))

    def embed(self, texts: Sequence[str | Path]) -> Tensor:
        """Vectors [N, D] of texts, where the run is an embedding model; of images by their paths, if it reads them."""
        if isinstance(texts, (str, Path)):
            raise WeftError(f"embed takes a list of texts, such as [{str(texts)!r:.40}], not one")
        vectors = self.task.embed(self.module, list(texts))
        _expect_finite(float(vectors.abs().max()) if vectors.numel() else 0.0, "its vector")
        return vectors


def _expect_finite(value: Any, what: str) -> None:
    """Refuse NaN and infinity anywhere in a value: a broken model would look like one that answers."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for one in value:
            _expect_finite(one, what)
    elif isinstance(value, float) and not math.isfinite(value):
        raise WeftError(
            f"the model computes {value} for {what}, which is no finite number: its weights or the input are broken; "
            "import it again, or train again with a smaller training.rate"
        )


def _trust(scores: ExampleScores, abstain: float | None) -> dict[str, Any]:
    """How far probabilities, bands and confidences can be trusted, where the answers have any."""
    words = scores.describe_trust()
    found: dict[str, Any] = {} if words is None else {"trust": words}
    if scores.calibration is not None:
        found["reliability"] = [row._asdict() for row in scores.calibration.table()]
        if abstain is not None:
            found["abstention"] = scores.calibration.abstain(abstain)._asdict()
    return found


def _generation_options(options: dict[str, Any]) -> GenerationOptions:
    try:
        return GenerationOptions(**options)
    except TypeError as error:
        raise WeftError(f"predict: {str(error).removeprefix('GenerationOptions.__init__() ')}") from None


def task_of(place: RunFolder, spec: RunSpec) -> Task:
    """The task of a run, with what it learned from its data."""
    if spec.task not in TASKS:
        raise WeftError(
            f"{place.path} is a run of task {spec.task!r:.60}, which no installed package provides: "
            "install the package that adds it"
        )
    kind = task_named(spec.task)
    tokenizer = load_tokenizer(place.tokenizer) if place.tokenizer is not None else None
    return kind.restore(kind.Options(**spec.data), spec.facts, tokenizer)


def load(
    folder: str | Path,
    device: str | None = None,
    quantize: WeightKind | None = None,
    module: GivenModule | None = None,
) -> Run:
    """The run in a folder, or `sample:dates-run`; `quantize` rounds its weights, for less memory and more speed.

    `module` makes the module of a run that was trained with one of your own: the class or function, or a module, whose
    weights are then the run's in a copy.
    """
    place = RunFolder(locate_run(folder))
    spec = place.read_spec()
    task = task_of(place, spec)
    model = read_spec(spec.model)
    if isinstance(model, ModuleSpec):
        if quantize is not None:
            raise WeftError(f"{folder} is of a module of your own, which is not quantized: leave quantize out")
        loaded: nn.Module = rewrap_module(module, model, task.module_interface())
    elif module is not None:
        raise WeftError(f"{folder} holds a model of Weft's own, family {model.family}: leave --module out")
    else:
        loaded = build(model, device="meta")
    try:
        # The weights stay mapped from their file; those of half precision are widened, which CPUs compute faster in.
        # Those in blocks stay so where there is native code for them.
        weights, layouts = place.read_stored_model()
        if pick_device(device).type == "cpu":
            hold_blocks(loaded, layouts)
        else:
            weights = dequantized_state(weights, layouts)
        loaded.load_state_dict(weights, assign=not isinstance(model, ModuleSpec))
        loaded.float()
    except (RuntimeError, ShapeError) as error:
        line = str(error).splitlines()[-1].strip()
        raise DiskError(f"{folder}: model.safetensors does not fit spec.json ({line[:160]}): train again") from None
    loaded.eval()
    if quantize is not None:
        quantize_model(loaded, quantize)
    return Run(loaded.to(pick_device(device)), task, spec, place.path)
