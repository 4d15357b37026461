"""What a task is: how its data are read, its default model, loss, metric, prediction, and the name of its picture.

The loop that trains knows none of this: it asks a `Split` of the data for batches and a `Task` for losses. Other rooms
ask a task for its capabilities, never for its name. A task needs `prepare`, `read`, `default_model`, `loss` and
`predict`, and a split `__len__`, `tokens` and `batch`; all else has defaults.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BeforeValidator
from torch import Tensor, nn

from weft.data.samples import ReferenceScore, Sample, sample, samples
from weft.data.tokenizers.tokenizer import Tokenizer
from weft.foreign.user_module import ModuleInterface
from weft.foundation.errors import WeftError
from weft.foundation.spec import Spec, Tree
from weft.inference.decoding.request import Overflow
from weft.inference.decoding.sampling import Sampling
from weft.models.build import AnySpec
from weft.models.plain_presets import plain_preset
from weft.tasks.support.splits.split import Batch as Batch
from weft.tasks.support.splits.split import Split as Split

if TYPE_CHECKING:
    from weft.tasks.support.evaluation.example_scores import ExampleScores, Report
    from weft.tasks.support.language.conversation import Conversation
    from weft.tasks.support.language.few_shot import FewShotOptions

SAMPLE = "sample:"


def _as_names(value: Any) -> Any:
    """`a,b` and `a` as the command line writes lists."""
    return tuple(name.strip() for name in value.split(",")) if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_as_names)]


class DataSpec(Spec):
    """Options of the data that all tasks share: `validation` files, or a share of the data held out."""

    validation: Names = ()
    held_out: float = 0.1


@dataclass(frozen=True)
class Loss:
    """The sum of losses in nats over `count` answers, and auxiliary losses (experts' balance), already weighted."""

    total: Tensor
    count: int
    auxiliary: Tensor | None = None

    @property
    def mean(self) -> Tensor:
        """Nats per answer."""
        return self.total / max(self.count, 1)


@dataclass(frozen=True)
class Size:
    """What the time plan chooses of a model: numbers that every family has, and how strongly it is regularized."""

    width: int = 128
    layers: int = 4
    context: int = 256
    dropout: float = 0.0

    @classmethod
    def of(cls, spec: AnySpec) -> Size:
        """That of a model; what its family does not have is as usual."""
        layers, context = getattr(spec, "layers", cls.layers), getattr(spec, "length", cls.context)
        return cls(spec.width, layers, context, spec.dropout)

    @property
    def heads(self) -> int:
        """Heads of 32 numbers, wider models have wider ones; so many that they divide the width into even parts."""
        most = min(1024, max(1, self.width // (32 if self.width < 384 else 64)))
        return next((heads for heads in range(most, 1, -1) if self.width % (2 * heads) == 0), 1)


# Widths, depths and contexts that a plan tries, small to large.
LADDER = (
    Size(48, 2, 64),
    Size(64, 3, 64),
    Size(96, 4, 64),
    Size(128, 4, 64),
    Size(160, 5, 128),
    Size(192, 6, 128),
    Size(256, 6, 256),
    Size(384, 8, 256),
    Size(512, 8, 512),
    Size(768, 12, 1024),
)


@dataclass(frozen=True)
class Recipe:
    """A task's training defaults: dropout, options, and the most epochs and the largest batch in tokens that help."""

    dropout: float = 0.0
    training: Tree = field(default_factory=dict)
    most_epochs: float = 40.0
    most_batch: int | None = None


@dataclass(frozen=True)
class GenerationOptions:
    """How `predict` answers; tasks take what concerns them.

    `repetition` above 1 makes tokens seen before less likely; a text ends before any of the `stop` strings.
    `speculative`: speculative decoding by prompt look-up, which changes the time only; if not given, for one greedy
    text by models of 20 million weights or more where the native step runs, which computes tokens bit for bit alike.
    `chat`: the input is what a user says, and the answer is the assistant's.
    `overflow`: a text longer than the model was trained for slides (its older half is forgotten), is refused, or goes
    on as it is (extend). `top`: number of likeliest first tokens that a task which generates gives with their
    probabilities, 8 or all there are if not given; `steps`: those of every further step too. `labels`: texts, of which
    the one that fits an image best is its answer. `question`: what is asked about an image. `abstain`: an answer of a
    smaller probability than this is withheld.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    beam: int | None = None
    max_tokens: int | None = None
    seed: int = 0
    samples: int = 1
    repetition: float = 1.0
    stop: Sequence[str] = ()
    speculative: bool | None = None
    overflow: Overflow = "slide"
    chat: bool = False
    batch: int = 64
    top: int | None = None
    steps: bool = False
    labels: Sequence[str] = ()
    question: str | None = None
    abstain: float | None = None

    def __post_init__(self) -> None:
        self.sampling(0.0)  # which checks its own numbers
        least = {"max_tokens": self.max_tokens, "beam": self.beam, "samples": self.samples, "batch": self.batch}
        for name, number in least.items():
            if number is not None and number < 1:
                raise WeftError(f"{name} {number} gives no answer: use 1 or more, or leave it out")
        if self.top is not None and self.top < 0:
            raise WeftError(f"top {self.top} is not a number of tokens: use 0 (no probabilities) or more")
        if isinstance(self.labels, str) or not all(isinstance(label, str) and label.strip() for label in self.labels):
            raise WeftError(f"labels are a list of texts, such as ['a cat', 'a dog'], not {self.labels!r:.60}")
        if len(set(self.labels)) < len(self.labels) or len(self.labels) == 1:
            raise WeftError(f"{', '.join(self.labels)}: give two or more labels, each once, to choose between")
        if self.abstain is not None:
            from weft.tasks.support.abstention import expect_threshold

            expect_threshold(self.abstain)

    def sampling(self, temperature: float) -> Sampling:
        """How tokens are chosen, `temperature` if none is asked for."""
        given = temperature if self.temperature is None else self.temperature
        return Sampling(given, self.top_k, self.top_p, self.min_p, self.repetition)


@dataclass(frozen=True)
class Answer:
    """One prediction; `more` holds probabilities, tokens, alignment, low and high where they exist."""

    input: Any
    output: Any
    more: Tree = field(default_factory=dict)

    def to_tree(self) -> Tree:
        """As `--json` prints it."""
        return {"input": self.input, "output": self.output, **self.more}


@dataclass(frozen=True)
class PreparedData:
    """Data that was read: the task that learned from it, its two splits, and the best possible score if it is known.

    `notes`: what users should know of how their data were taken. `test`: a split that no part of training sees.
    """

    task: Task
    train: Split
    validation: Split
    best: ReferenceScore | None = None
    notes: tuple[str, ...] = ()
    test: Split | None = None


class Task(ABC):
    """One task, with what it learned from its training data (tokenizer, classes, statistics).

    `metric` is the score that users quote, among those of `measure`; training itself watches the loss. `picture` names
    what `weft look` draws, one of `inspection.pictures.task_picture`; without it, tokens, attention, probabilities.
    """

    name: ClassVar[str]
    families: ClassVar[tuple[str, ...]]
    metric: str = "loss"
    reference_metric: ClassVar[str | None] = None  # the one that `references` are scores of, if not `metric`
    picture: ClassVar[str | None] = None
    example: ClassVar[str] = "INPUT"  # what may follow `weft predict RUN`
    Options: ClassVar[type[DataSpec]] = DataSpec
    compatible_tasks: ClassVar[tuple[str, ...]] = ()  # other tasks whose runs may be trained on as this one
    fine_tuning_options: ClassVar[Tree] = {}  # options of data that suit a model which was trained elsewhere
    plain_options: ClassVar[Tree] = {}  # options of data that suit a plain preset
    auto: ClassVar[str] = ""  # what `default_model` is, in words for --help
    formats: ClassVar[str] = ""  # what DATA may be, in lines for --help, with an example where a format is our own

    # Capabilities
    trainable: ClassVar[bool] = True  # else its runs are imported
    generates: ClassVar[bool] = False  # the answer is a text, written token by token
    continues_input: ClassVar[bool] = False  # and that text goes on from the input: a language model
    ranks_tokens: ClassVar[bool] = False  # the answer is not generated, but tells the `top` likeliest tokens
    takes_images: ClassVar[bool] = False
    takes_questions: bool = False  # each input, an image, comes with a question about it
    takes_labels: ClassVar[bool] = False  # it chooses between labels that are given with the input
    takes_module: ClassVar[bool] = False  # of the user's own, called by `module_interface`
    examined: ClassVar[tuple[str, ...]] = ()  # the facts that `examine` learns
    evaluates_on_tail: ClassVar[bool] = False  # of data it was trained on, `read` gives only the end that was held out

    options: Any
    tokenizer: Tokenizer | None = None

    def __init__(self, options: Any, tokenizer: Tokenizer | None = None) -> None:
        self.options, self.tokenizer = options, tokenizer

    @classmethod
    @abstractmethod
    def prepare(cls, paths: Sequence[str], options: Any, seed: int, cache: Path, known: Any = None) -> PreparedData:
        """Read files or `sample:NAME`, learn what is to be learned, hold a share out.

        `known` is the task of a run that is trained on, this one or one of `compatible_tasks`: what it learned
        (tokenizer, scales) stays; its classes too, unless the data have others.
        """

    @classmethod
    def restore(cls, options: Any, facts: Tree, tokenizer: Tokenizer | None) -> Task:
        """The task of a saved run."""
        return cls(options, tokenizer)

    def facts(self) -> Tree:
        """What was learned from the data besides the tokenizer, as plain JSON."""
        return {}

    @abstractmethod
    def read(self, paths: Sequence[str], cache: Path) -> Split:
        """Data to evaluate on, in the terms learned in training."""

    @abstractmethod
    def default_model(self, size: Size) -> AnySpec:
        """The spec that suits this task, of this size."""

    def fit(self, spec: AnySpec) -> AnySpec:
        """A preset's spec with vocabulary, classes and lengths of this data."""
        raise WeftError(f"task {self.name} has a model of its own: leave --preset out")

    def expect_model(self, spec: AnySpec) -> None:
        """Refuse a model that cannot take this data, whatever was changed in its spec."""
        return  # most tasks leave it to the families that they take

    def fit_plain(self, name: str, size: Size) -> AnySpec:
        """The plain preset of this name and size, with vocabulary, classes and lengths of this data."""
        return self.fit(self.plain_model(name, size)).replace(dropout=size.dropout)

    def plain_model(self, name: str, size: Size) -> AnySpec:
        """The plain preset of this name and size, for inputs of this task's kind."""
        spec = plain_preset(name, size.width, size.layers, size.heads)
        return spec.replace(length=size.context) if "length" in type(spec).model_fields else spec

    @property
    def judged_by(self) -> str:
        """The metric that simple methods are compared in."""
        return self.reference_metric or self.metric

    def module_interface(self) -> ModuleInterface:
        """How a module of the user's own is called, where the task takes one."""
        raise WeftError(f"task {self.name} takes no module of your own: leave it out")

    @property
    def sample_seed(self) -> int:
        """The seed of the built-in sample that the run is evaluated on."""
        return 0

    @property
    def answers(self) -> tuple[str, ...] | None:
        """The names of classes or tags, where a model chooses among such."""
        return None

    def with_new_classes(self, spec: AnySpec) -> AnySpec:
        """A trained model with this task's classes in place of its own; all else as it was."""
        raise WeftError(f"task {self.name} cannot take over a model with other answers: leave --from out")

    def sizes(self, train: Split) -> Sequence[Size]:
        """The sizes that a time plan chooses from, small to large."""
        return LADDER

    def recipe(self, size: Size, epochs: float) -> Recipe:
        """How a model of this size is trained over so many epochs; the plan asks for it."""
        return Recipe()

    @abstractmethod
    def loss(self, module: nn.Module, batch: Batch, smoothing: float = 0.0) -> Loss:
        """The training loss; without smoothing also the one that is reported."""

    def measure(self, module: nn.Module, split: Split, size: int) -> dict[str, Any]:
        """The task's metrics on a split, in batches of about `size` tokens."""
        from weft.tasks.support.losses import mean_loss  # which knows what a task is

        return {"loss": mean_loss(self, module, split, size)}

    def score_examples(self, module: nn.Module, split: Split, size: int, report: Report | None = None) -> ExampleScores:
        """`measure` with what intervals and paired tests need: what each example adds to each metric.

        By default the loss of each example, of at most a thousand that are evenly spread.
        """
        from weft.tasks.support.evaluation.example_scores import loss_scores

        return loss_scores(self, module, split, size, report)

    def evaluation_subset(self, module: nn.Module, split: Split, seconds: float) -> Split:
        """What `measure` is given at the end of a timed training; a slow measure takes less, for about `seconds`."""
        return split

    def start(self, module: nn.Module, train: Split, seconds: float | None = None) -> None:
        """Fit what a model has besides trained weights to the training data, in at most about `seconds`."""
        return  # most models have nothing of the kind

    def blend(self, module: nn.Module, validation: Split) -> bool:
        """Weigh what `start` has fitted against the trained model, on held-out data; whether the model has changed."""
        return False

    def examine(self, module: nn.Module, validation: Split) -> bool:
        """Learn from the trained model, on held-out data, what its answers need; whether `facts` have changed."""
        return False

    @abstractmethod
    def predict(self, module: nn.Module, inputs: Sequence[Any], generation: GenerationOptions) -> list[Answer]:
        """Answers to inputs as the command line gives them: texts or paths."""

    def stream(self, module: nn.Module, given: Any, generation: GenerationOptions) -> Iterator[str]:
        """The answer to one input, piece by piece as it is written."""
        raise WeftError(f"task {self.name} answers at once: use predict")

    def chat(
        self, module: nn.Module, generation: GenerationOptions, system: str | None = None, template: str | None = None
    ) -> Conversation:
        """A conversation with the model; `template` is the name or file of a chat template in place of its own."""
        raise WeftError(f"a run of task {self.name} holds no conversation: use a language model that was trained to")

    def few_shot(self, module: nn.Module, data: Sequence[str | Path], options: FewShotOptions) -> dict[str, Any]:
        """How well the model labels texts after labeled examples in its prompt; nothing is learned."""
        raise WeftError(f"task {self.name} takes no examples in a prompt: evaluate without shots, or a language model")

    def embed(self, module: nn.Module, texts: Sequence[Any]) -> Tensor:
        """Vectors [N, D] of texts, or of images by their paths, where the task gives any."""
        raise WeftError(f"a run of task {self.name} gives no vectors: import an embedding model")

    def preview(self, module: nn.Module, split: Split) -> str:
        """A line or two on what the model does now, shown while it trains."""
        return ""

    def references(self, train: Split, split: Split) -> dict[str, float]:
        """Scores of simple methods that learn from `train`, on a split: to be printed beside the model's own."""
        return {}

    def baseline_facts(self, train: Split) -> Tree:
        """The little that `quick_references` needs to know of the training data, as plain JSON."""
        return {}

    def quick_references(self, facts: Tree, split: Split) -> dict[str, float]:
        """Scores of the simplest methods on any split: the same answer to everything, the input as its own answer."""
        return {}


def find_sample(task: str, paths: Sequence[str], seed: int) -> Sample[Any] | None:
    """The built-in sample that `sample:` or `sample:NAME` means, or None if paths are files."""
    if not any(str(path).startswith(SAMPLE) for path in paths):
        return None
    if len(paths) != 1:
        raise WeftError("a built-in sample stands alone: give sample:NAME or files, not both")
    name = str(paths[0]).removeprefix(SAMPLE) or task
    own = samples().get(task, ())
    if not own:
        raise WeftError(f"task {task} has no built-in sample: give files")
    if name != task and name not in own:
        known = ", ".join(f"sample:{known}" for known in own)
        raise WeftError(f"task {task} has no sample {name!r}: choose one of {known}")
    return sample(name, seed)
