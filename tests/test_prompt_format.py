"""Texts and chats for models that were taught elsewhere: their own starts, stops, templates, and short windows."""

from __future__ import annotations

import json

import numpy as np
import pytest

import weft
from weft.data.readers.files import DataError
from weft.data.stores.token_store import open_token_store
from weft.data.tokenizers.tokenizer import train_tokenizer
from weft.foundation.errors import WeftError
from weft.models.teacher_forcing import IGNORED
from weft.tasks.support.language.prompt_format import ChatTemplate, PromptFormat
from weft.tasks.text import TextOptions, TextTask

MARKS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
BYTES = train_tokenizer("bytes", [], special_tokens=MARKS)
OPEN, CLOSE, END = (BYTES.id_of(mark) for mark in MARKS)
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TALK = (("system", "be"), ("user", "hi"), ("assistant", "hello"), ("user", "why"), ("assistant", "so"))
SMALL = {
    "width": 20, "layers": 1, "mixer.heads": 2, "length": 1031, "data.tokenizer": "bytes", "training.batch": 97,
    "training.threads": 1, "training.guard": False,
}  # fmt: skip
FAST = {name: value for name, value in SMALL.items() if name.startswith("training.")}


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))


def messages(*turns):
    return [{"role": role, "content": content} for role, content in turns]


def write(path, *rows):
    path.write_text("".join(json.dumps(row if isinstance(row, dict) else {"text": row}) + "\n" for row in rows))
    return path


def chat(*turns):
    return {"messages": messages(*turns)}


def store_of(tmp_path, prompt_format, *rows, tokenizer=BYTES):
    return open_token_store(
        [write(tmp_path / "a.jsonl", *rows)], tokenizer, tmp_path / "cache", prompt_format=prompt_format
    )


def shown(store, tokenizer=BYTES):
    """The whole text, and what counts of it."""
    tokens = store.tokens.tolist()
    counted = tokens if store.answers is None else np.array(tokens)[store.answers].tolist()
    return tuple(tokenizer.decode(ids, keep_special=True) for ids in (tokens, counted))


# --- starts and stops ---


def test_documents_stand_between_the_start_and_the_stop_that_were_taught(tmp_path):
    store = store_of(tmp_path, PromptFormat(before=(OPEN,), stops=(END, CLOSE)), "one", "two")
    assert shown(store) == (
        "<|im_start|>one<|endoftext|><|im_start|>two<|endoftext|>",
        "one<|endoftext|>two<|endoftext|>",
    )
    assert store.starts.tolist() == [0, 5] and store.bytes == 6 and store.counted == 8


def test_a_long_document_is_framed_once(tmp_path):
    text = "one two three " * 211
    store = store_of(tmp_path, PromptFormat(before=(OPEN,), stops=(END,)), text)
    assert store.tokens.tolist() == [OPEN, *BYTES.encode(text), END]
    assert (store.folder / "places.bin").stat().st_size > 7 * 8


def test_a_model_with_no_habits_has_the_store_of_a_fresh_one(tmp_path):
    fresh, same, other = (
        store_of(tmp_path, h, "one", "two") for h in (None, PromptFormat(), PromptFormat(stops=(END,)))
    )
    assert fresh.folder == same.folder != other.folder
    assert shown(fresh) == ("one<stop>two",) * 2 and fresh.answers is None


def test_training_on_and_judging_know_the_habits_and_training_afresh_has_none(tmp_path):
    known = TextTask(TextOptions(), BYTES, PromptFormat(before=(OPEN,), stops=(END,)))
    path = str(write(tmp_path / "b.jsonl", *["one", "two"] * 11))
    tuned = TextTask.prepare([path], TextOptions(), 0, tmp_path / "cache", known)
    for store in (tuned.train.store, known.read([path], tmp_path / "cache").store):
        assert store.tokens.tolist()[:6] == [OPEN, *BYTES.encode("one"), END, OPEN]
    batch = tuned.train.cut(11).batch([0])
    kept = batch.labels[batch.labels != IGNORED].tolist()
    assert OPEN not in kept and kept[:4] == [*BYTES.encode("one"), END]
    fresh = TextTask.prepare([path], TextOptions(tokenizer="bytes"), 0, tmp_path / "cache")
    assert shown(fresh.train.store, fresh.task.tokenizer)[0].startswith("one<stop>two<stop>")


# --- chats ---


def test_chats_are_written_by_the_template_and_answers_alone_count(tmp_path):
    prompt_format = PromptFormat(before=(OPEN,), stops=(CLOSE,), chat=ChatTemplate(CHATML))
    store = store_of(tmp_path, prompt_format, chat(*TALK), "text", chat(("user", "unheard")))
    whole, counted = shown(store)
    first = prompt_format.chat.render(messages(*TALK), answering=False)
    assert whole == f"{first}<|im_start|>text<|im_end|><|im_start|>user\nunheard<|im_end|>\n"
    assert counted == "hello<|im_end|>\nso<|im_end|>\ntext<|im_end|>"
    assert store.documents == 3 and store.bytes == len("hello<|im_end|>\nso<|im_end|>\ntext")
    place = BYTES.decode(prompt_format.chat_ids(messages(*TALK[:2]), BYTES), keep_special=True)
    assert whole.startswith(place + "hello")


def test_a_template_without_a_stop_is_given_one(tmp_path):
    plain = ChatTemplate("{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}")
    prompt_format = PromptFormat(stops=(END,), chat=plain)
    whole, counted = shown(store_of(tmp_path, prompt_format, chat(*TALK[1:3]), chat(("user", "x"))))
    assert whole == "u:hi;a:hello;<|endoftext|>u:x;<|endoftext|>" and counted == "a:hello;<|endoftext|>"


def test_letters_of_several_bytes_count_whole(tmp_path):
    prompt_format = PromptFormat(stops=(CLOSE,), chat=ChatTemplate(CHATML))
    _, counted = shown(store_of(tmp_path, prompt_format, chat(("user", "où ça"), ("assistant", " là — 中文 "))))
    assert counted == " là — 中文 <|im_end|>\n"


def test_an_answer_that_is_written_otherwise_later_makes_a_text_of_its_own():
    thinking = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content if loop.last else m.content.split('=')[-1] }}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    talk = messages(("user", "q"), ("assistant", "hm=a"), ("user", "r"), ("assistant", "oh=b"))
    found = ChatTemplate(thinking).training_texts(talk)
    assert [text for text, _ in found] == ["<user>q<assistant>hm=a", "<user>q<assistant>a<user>r<assistant>oh=b"]
    assert [[text[a:b] for a, b in spans] for text, spans in found] == [["hm=a"], ["oh=b"]]


def test_what_the_prompt_opens_and_the_answer_lacks_is_left_out():
    thoughts = CHATML.replace("assistant\n{% endif", "assistant\n<think>{% endif")
    ((text, spans),) = ChatTemplate(thoughts).training_texts(messages(("user", "q"), ("assistant", "a")))
    assert [text[a:b] for a, b in spans] == ["a<|im_end|>\n"]
    hidden = "{% for m in messages %}{{ loop.length }}{{ m.content }}{% endfor %}"
    with pytest.raises(WeftError, match="no answer can be located"):
        ChatTemplate(hidden).training_texts(messages(("user", "q"), ("assistant", "a")))


def test_chats_that_cannot_be_written_are_named(tmp_path):
    strict = "{% if messages[0].role == 'system' %}{{ raise_exception('no system here') }}{% endif %}" + CHATML
    with pytest.raises(DataError, match=r"a.jsonl, the chat that begins 'be': .* refuses .*no system here"):
        store_of(tmp_path, PromptFormat(chat=ChatTemplate(strict)), chat(*TALK))
    with pytest.raises(DataError, match="this model was not trained to chat: give texts, or take a model"):
        store_of(tmp_path, PromptFormat(), chat(*TALK))


# --- templates ---


def test_json_in_templates_is_plain_and_marked_answers_are_written():
    found = ChatTemplate("{{ messages | tojson }}").render(messages(("user", "<b> it's & ö")))
    assert found == '[{"role": "user", "content": "<b> it\'s & ö"}]'
    assert ChatTemplate("{{ {'b': 1, 'a': [2]} | tojson(indent=1) }}").render([]) == '{\n "b": 1,\n "a": [\n  2\n ]\n}'
    marked = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %};{% endfor %}"
    assert ChatTemplate(marked).render(messages(*TALK[:3])) == "be;hi;hello;"


# --- training on ---


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """A run with a template and a long context, as an import leaves it."""
    folder = tmp_path_factory.mktemp("base")
    (folder / "a.txt").write_text("the quick brown fox jumps over the lazy dog. " * 91)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFT_CACHE", str(folder / "cache"))
        weft.train("text", folder / "a.txt", folder / "run", steps=1, set=SMALL)
    spec = json.loads((folder / "run" / "spec.json").read_text())
    stop = weft.load(folder / "run").tokenizer.stop
    spec["facts"] = PromptFormat(
        before=(1,), stops=(stop,), chat=ChatTemplate(CHATML.replace(MARKS[1], "<stop>"))
    ).to_tree()
    (folder / "run" / "spec.json").write_text(json.dumps(spec))
    return folder / "run"


def measured(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return next(row["metrics"] for row in rows if "metrics" in row)


@pytest.mark.parametrize(("chosen", "context", "batch"), [({}, 512, 512), ({"data.context": 211}, 211, 211)])
def test_windows_are_short_and_the_model_keeps_its_length(tmp_path, imported, chosen, context, batch):
    (tmp_path / "b.txt").write_text("the lazy dog jumps over the quick brown fox. " * 151)
    run = weft.train("text", tmp_path / "b.txt", tmp_path / "run", base=imported, steps=1, set=FAST | chosen)
    assert measured(run.folder)["context"] == context
    assert run.module.spec.length == 1031 and run.evaluate(tmp_path / "b.txt")["context"] == 1031
    plan = json.loads((run.folder / "plan.json").read_text())
    assert plan["batch"] == plan["tokens"] == batch


def test_a_fresh_model_has_windows_of_its_own_length_unless_told(tmp_path):
    (tmp_path / "b.txt").write_text("the lazy dog jumps over the quick brown fox. " * 151)
    for name, chosen, context in (("a", {}, 601), ("b", {"data.context": 53}, 53)):
        changes = SMALL | {"length": 601} | chosen
        run = weft.train("text", tmp_path / "b.txt", tmp_path / name, steps=1, set=changes)
        assert measured(run.folder)["context"] == context and run.module.spec.length == 601
    prepared = TextTask.prepare([str(tmp_path / "b.txt")], TextOptions(context=307), 0, tmp_path / "cache")
    assert prepared.task.default_model(weft.tasks.task.Size(16, 1, 64)).length == 307


def test_a_model_with_a_template_learns_from_chats(tmp_path, imported):
    rows = [chat(("user", f"say {n}"), ("assistant", "ho ho ho")) for n in range(60)]
    path = write(tmp_path / "chats.jsonl", *rows)
    before = weft.load(imported).evaluate(path)["loss"]
    changes = FAST | {"data.context": 97, "training.rate": 0.02, "training.evaluate_every": 13}
    run = weft.train("text", path, tmp_path / "run", base=imported, steps=13, set=changes)
    assert run.evaluate(path)["loss"] < before - 0.7
    assert run.task.prompt_format == weft.load(imported).task.prompt_format
    part = run.task.read([str(path)], tmp_path / "cache").cut(97)
    labels = np.concatenate([part.batch(e).labels.numpy().ravel() for e in part.batches(970, None)])
    said = run.tokenizer.decode(labels[labels != IGNORED].tolist(), keep_special=True)
    assert said == "ho ho ho<stop>\n" * 60
