"""Conversations: each turn is what `generate` makes of the whole chat; overflow, templates, the command."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace

import pytest
import torch

import weft
from runs_on_disk import llama, write_run
from weft.cli.main import app
from weft.data.readers.texts import CHAT_TOKENS
from weft.data.tokenizers.tokenizer import train_tokenizer
from weft.foundation.errors import LengthError, WeftError
from weft.inference.decoding.conditioning import Unconditioned, condition
from weft.inference.decoding.detokenizer import Detokenizer
from weft.inference.decoding.generate import generate
from weft.inference.decoding.request import GenerationRequest
from weft.inference.decoding.sessions import RewindableSession
from weft.inference.decoding.speculative import speculate, stream_speculative
from weft.tasks.support.language.chat_templates import TEMPLATES
from weft.tasks.support.language.conversation import Conversation
from weft.tasks.support.language.prompt_format import ChatTemplate, PromptFormat
from weft.tasks.task import GenerationOptions
from writers import full_logits, writer

MARKS = ("<|im_start|>", "<|im_end|>")
BYTES = train_tokenizer("bytes", [], special_tokens=MARKS)
LETTERS = train_tokenizer("characters", ["abcdefghijklmnopqrstuvwxyz .?0123456789ABCDEFG"], special_tokens=CHAT_TOKENS)
CHATML = PromptFormat(stops=(BYTES.id_of(MARKS[1]),), chat=ChatTemplate(TEMPLATES["chatml"]))
DECODERS = ["nano-gpt", "llama-3.2-1b", "nano-moe", "nano-rnn", "nano-conv", "window", "linear", "hybrid"]
SAID = ("hello there", "why is it so?", "tell me more", "and then")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_run(
        tmp_path_factory.mktemp("chat") / "run", llama(BYTES.vocabulary, length=211), "text", BYTES, CHATML.to_tree()
    )


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A model that was not trained to chat."""
    plain = train_tokenizer("bytes", [])
    return write_run(tmp_path_factory.mktemp("base") / "run", llama(plain.vocabulary, length=211), "text", plain)


@pytest.fixture
def run(capsys, monkeypatch):
    """`run(lines, "chat", ...)` gives (exit code, stdout, stderr)."""
    monkeypatch.delenv("WEFT_DEBUG", raising=False)

    def call(lines, *words):
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        with pytest.raises(SystemExit) as stopped:
            app([str(word) for word in words], prog_name="weft")
        return stopped.value.code or 0, *capsys.readouterr()

    return call


class Terminal(io.StringIO):
    def isatty(self):
        return True


def keys(monkeypatch, *pressed):
    """A user at a terminal, who types lines or presses Ctrl-C and Ctrl-D."""
    waiting = iter(pressed)

    def read(prompt=""):
        key = next(waiting)
        if isinstance(key, type):
            raise key
        return key

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr("builtins.input", read)


def conversation(name="nano-gpt", length=211, system=None, **options):
    options = GenerationOptions(**({"temperature": 0.0, "max_tokens": 23} | options))
    return Conversation(writer(name, length=length), LETTERS, PromptFormat(), options, system)


def alone(module, prompt_format, tokenizer, messages, generation, seed=0, **more):
    """The answer without any session: the whole chat read at once."""
    request = GenerationRequest(
        [prompt_format.chat_ids(messages, tokenizer)],
        generation.sampling(0.8),
        max_tokens=generation.max_tokens,
        stop=prompt_format.stopping(tokenizer),
        seeds=seed,
        detokenizer=Detokenizer(tokenizer),
        **more,
    )
    return (speculate if generation.speculative else generate)(module, request)[0]


# --- sessions that go on ---


@pytest.mark.parametrize("name", DECODERS)
def test_a_session_reads_only_what_is_new_and_gives_the_same_logits(name):
    model = writer(name, length=211)
    random = torch.Generator().manual_seed(7)
    a, b, c = (torch.randint(0, 53, (n,), generator=random).tolist() for n in (101, 67, 31))
    session, keeps_keys = RewindableSession(condition(model, 1)), name in ("nano-gpt", "llama-3.2-1b", "nano-moe")
    for prompt in (a, a + b, a + c, a + c, a[:5], a[:7] + b, c, c + a + b):
        pairs = zip(session.text, prompt, strict=False)
        common = next((n for n, (x, y) in enumerate(pairs) if x != y), min(len(session.text), len(prompt)))
        goes_on = common == len(session.text)
        logits = session.begin([prompt])
        assert (logits[0] - full_logits(model, prompt, {})[-1]).abs().max() < 1e-9
        # What keeps keys alone reads what is new; a recurrence or a ring at least where its text goes on.
        known = min(common, len(prompt) - 1)
        assert session.reused == known if keeps_keys or goes_on else session.reused <= known
        for token in (3, 5):
            prompt = [*prompt, token]
            logits = session.advance(torch.tensor([token]))
        assert (logits[0] - full_logits(model, prompt, {})[-1]).abs().max() < 1e-9


def test_a_session_has_one_row():
    session = RewindableSession(condition(writer("nano-gpt"), 1))
    with pytest.raises(WeftError, match="reads one text, not 2"):
        session.reorder(torch.tensor([0, 0]))


# --- turns ---


@pytest.mark.parametrize("speculative", [False, True], ids=["plain", "speculative"])
@pytest.mark.parametrize("name", DECODERS)
def test_each_turn_is_what_the_whole_chat_gives_alone(name, speculative):
    chat = conversation(name, system="be kind.", speculative=speculative)
    for said in SAID:
        messages = [*chat.messages(), {"role": "user", "content": said}]
        expected = alone(chat.module, PromptFormat(), LETTERS, messages, chat.generation)
        assert "".join(chat.say(said)) == expected.text == chat.turns[-1].assistant
        assert chat.turns[-1].tokens - len(expected.tokens) in (0, 1)
        assert chat.turns[-1].finish_reason == expected.finish_reason
    assert [turn.user for turn in chat.turns] == list(SAID) and chat.left_out == 0
    assert chat.turns[0].reused_tokens == 0 and min(turn.reused_tokens for turn in chat.turns[1:]) > 8


def test_sampled_turns_have_seeds_of_their_own_and_are_repeatable():
    first, second = (conversation(temperature=0.9, seed=5) for _ in range(2))
    for n, said in enumerate(SAID):
        messages = [*first.messages(), {"role": "user", "content": said}]
        expected = alone(first.module, PromptFormat(), LETTERS, messages, first.generation, 5 + n)
        assert "".join(first.say(said)) == "".join(second.say(said)) == expected.text
    before = first.turns[-1].assistant
    assert "".join(first.retry()) != before and [turn.user for turn in first.turns] == list(SAID)


def test_a_speculative_stream_has_the_texts_of_generate_and_ends_before_a_stop_string():
    model = writer("nano-gpt")
    both = GenerationRequest([[1], [2]], max_tokens=3)
    streamed = list(stream_speculative(model, both))
    for row, text in enumerate(generate(model, both)):
        assert [step.token for step in streamed if step.row == row] == text.tokens
    (plain,) = generate(model, GenerationRequest([[40, 41, 42]], max_tokens=19, detokenizer=Detokenizer(LETTERS)))
    stop = plain.text[len(plain.text) // 3 :][:2]
    request = GenerationRequest([[40, 41, 42]], max_tokens=19, detokenizer=Detokenizer(LETTERS, [stop]))
    steps = list(stream_speculative(model, request))
    (expected,) = generate(model, request)
    assert "".join(step.text for step in steps) == expected.text and steps[-1].finish_reason == "stop"
    assert [step.token for step in steps] == expected.tokens and len(steps) < 19 and stop in plain.text


def test_an_answer_that_is_broken_off_stays_and_the_next_is_right():
    chat = conversation()
    pieces = chat.say(SAID[0])
    begun = next(pieces) + next(pieces)
    pieces.close()
    assert (chat.turns[-1].assistant, chat.turns[-1].finish_reason) == (begun, "interrupted")
    messages = [*chat.messages(), {"role": "user", "content": SAID[1]}]
    expected = alone(chat.module, PromptFormat(), LETTERS, messages, chat.generation)
    assert "".join(chat.say(SAID[1])) == expected.text


@pytest.mark.parametrize("after", [0, 3])
def test_a_call_that_is_broken_off_leaves_no_trace_in_the_state(after, monkeypatch):
    chat = conversation()
    "".join(chat.say(SAID[0]))
    original, left = Unconditioned.call, [after]

    def interrupted(self, *given):
        found = original(self, *given)
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Unconditioned, "call", interrupted)
        with pytest.raises(KeyboardInterrupt):
            "".join(chat.say(SAID[1]))
        if not after:
            with pytest.raises(KeyboardInterrupt):
                "".join(chat.retry())
    assert len(chat.turns) == (2 if after else 1)
    messages = [*chat.messages(), {"role": "user", "content": SAID[2]}]
    expected = alone(chat.module, PromptFormat(), LETTERS, messages, chat.generation)
    assert "".join(chat.say(SAID[2])) == expected.text and chat.turns[-1].reused_tokens == 0


def test_what_a_conversation_cannot_do_is_said():
    with pytest.raises(WeftError, match="leave beam and samples out"):
        conversation(beam=3)
    with pytest.raises(WeftError, match="no answer to try again"):
        next(conversation().retry())
    with pytest.raises(WeftError, match="holds no conversation"):
        weft.tasks.task.Task.chat(weft.tasks.registry.task_named("images"), None, None)


# --- overflow ---


def test_the_oldest_turns_are_left_out_and_the_system_prompt_never():
    chat = conversation(length=97, system="be kind.", max_tokens=17)
    left = []
    for n in range(7):
        "".join(chat.say(f"say it {n}"))
        first = chat.left_out
        left.append(first)
        asked = [{"role": "system", "content": "be kind."}]
        for turn in chat.turns[first:-1]:
            asked += [{"role": "user", "content": turn.user}, {"role": "assistant", "content": turn.assistant}]
        asked.append({"role": "user", "content": f"say it {n}"})
        ids = PromptFormat().chat_ids(asked, LETTERS)
        assert chat.turns[-1].prompt_tokens == len(ids) <= 97 - 17 + 1
        assert chat.turns[-1].assistant == alone(chat.module, PromptFormat(), LETTERS, asked, chat.generation).text
    assert left == sorted(left) and left[0] == 0 and 0 < left[-1] < 6
    assert len(chat.messages()) == 1 + 2 * 7
    chat.clear()
    assert chat.messages() == [{"role": "system", "content": "be kind."}] and chat.left_out == 0


def test_an_answer_takes_the_room_that_is_left_and_a_message_too_long_is_refused():
    chat = conversation(length=61, max_tokens=200)
    "".join(chat.say("x" * 50))
    assert chat.turns[-1].prompt_tokens + chat.turns[-1].tokens <= 62
    with pytest.raises(LengthError, match="are 72 tokens, but the model reads 61: shorten them"):
        "".join(chat.say("x" * 70))
    assert len(chat.turns) == 1
    for most in (None, 200):
        unlimited = conversation(length=61, max_tokens=most)
        "".join(unlimited.say("x"))
        assert unlimited.turns[-1].tokens == 61 - unlimited.turns[-1].prompt_tokens + 1
    # A large number must not push the chat so far out of the prompt.
    chat = conversation(length=211, max_tokens=300)
    chat.generation = replace(chat.generation, max_tokens=5)
    "".join(chat.say("hello"))
    chat.generation = replace(chat.generation, max_tokens=300)
    "".join(chat.say("why"))
    assert chat.left_out == 0 and chat.turns[-1].prompt_tokens > 13


# --- templates ---


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("chatml", "<|im_end|>"),
        ("llama-3", "<|eot_id|>"),
        ("zephyr", "</s>"),
        ("alpaca", "\n\n### Instruction:"),
        ("plain", "\nUser:"),
    ],
)
def test_named_templates_open_the_assistants_turn_and_end_it(name, end):
    template = ChatTemplate(TEMPLATES[name])
    said = [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}]
    opened = template.render(said)
    assert 0 <= opened.index("S") < opened.index("Q") and opened.startswith(template.render(said, answering=False))
    assert len(opened) > len(template.render(said, answering=False))
    whole = template.render([*said, {"role": "assistant", "content": "A"}], answering=False)
    assert whole.startswith(opened.rstrip()) and template.turn_end() == end


def test_the_end_of_a_turn_where_a_template_says_little():
    assert ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}").turn_end() == ""
    assert ChatTemplate("{{ raise_exception('no') }}").turn_end() == ""
    once = "{% for m in messages %}{{ m.content }}<end>\n{% endfor %}{% if not add_generation_prompt %}.{% endif %}"
    assert ChatTemplate(once).turn_end() == "<end>"


def test_a_template_for_a_base_model_stops_at_its_own_end_and_begins_as_the_model_does(base, tmp_path):
    run = weft.load(base)
    named = run.chat(template="plain", temperature=0.0, max_tokens=5)
    assert named.stop_strings == ("\nUser:",) and named.stop == (run.tokenizer.stop,)
    (tmp_path / "t.jinja").write_text("{{ bos_token }}{% for m in messages %}[{{ m.content }}]{% endfor %}")
    own = run.chat(template=str(tmp_path / "t.jinja"), max_tokens=5)
    assert own.prompts.prompt_format.chat.render([{"role": "user", "content": "x"}]) == "<start>[x]"
    marked = Conversation(
        run.module, run.tokenizer, PromptFormat(before=(1,)), GenerationOptions(), template=str(tmp_path / "t.jinja")
    )
    ids = [run.tokenizer.id_of("<start>"), *run.tokenizer.encode("[x]")]
    assert marked.prompts.ids([{"role": "user", "content": "x"}]) == ids
    plain = Conversation(run.module, run.tokenizer, PromptFormat(before=(1,)), GenerationOptions(), template="plain")
    assert plain.prompts.ids([{"role": "user", "content": "x"}])[:2] == [1, run.tokenizer.encode("U")[0]]


def test_a_mark_that_is_a_token_stops_too(folder):
    run = weft.load(folder)
    chat = Conversation(run.module, BYTES, PromptFormat(stops=(2,), chat=CHATML.chat), GenerationOptions())
    assert chat.stop == (2, BYTES.id_of("<|im_end|>")) and chat.stop_strings == ()


# --- the command ---


def test_lines_of_a_pipe_are_turns(run, folder):
    code, out, err = run("hello\n\nwhy\n", "chat", folder, "--temperature", 0, "--max-tokens", 7, "--json")
    turns = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and err == "" and [turn["user"] for turn in turns] == ["hello", "why"]
    chat = weft.load(folder).chat(temperature=0.0, max_tokens=7)
    assert [turn["assistant"] for turn in turns] == ["".join(chat.say(said)) for said in ("hello", "why")]
    assert turns[1]["reused_tokens"] > 0 and {"prompt_tokens", "tokens", "finish_reason", "left_out"} <= turns[0].keys()
    code, out, _ = run("hello\nwhy\n", "chat", folder, "--temperature", 0, "--max-tokens", 7)
    assert code == 0 and out == "".join(f"{turn['assistant']}\n" for turn in turns)
    code, out, _ = run("hello\n", "chat", folder, "--max-tokens", 7, "--system", "Be brief.", "--json")
    assert json.loads(out)["prompt_tokens"] > turns[0]["prompt_tokens"]
    assert run("", "chat", folder) == (0, "", "")


def test_commands_inside_a_chat(run, folder, tmp_path):
    file = tmp_path / "saved.jsonl"
    lines = f"one\n/retry\n/retry\n/system Be odd.\n//slash\n/save {file}\n/clear\n/system\ntwo\n/help\n/quit\nnever\n"
    code, out, err = run(lines, "chat", folder, "--max-tokens", 5, "--json", "--temperature", 0)
    turns = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [turn["user"] for turn in turns] == ["one", "one", "one", "/slash", "two"]
    assert turns[0]["assistant"] == turns[1]["assistant"] and turns[4]["prompt_tokens"] == turns[0]["prompt_tokens"]
    assert "/save FILE" in err and f"saved to {file}" in err
    saved = json.loads(file.read_text())["messages"]
    assert [one["role"] for one in saved] == ["system", *("user", "assistant") * 2]
    assert saved[0]["content"] == "Be odd." and saved[-2]["content"] == "/slash"


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("/nonsense\n", "there is no command /nonsense: /help lists them"),
        ("/save\n", "/save needs a file"),
        ("/save absent/x.jsonl\n", "absent/x.jsonl"),
        ("/retry\n", "there is no answer to try again"),
        ("x" * 300 + "\n", "but the model reads 211: shorten them"),
    ],
)
def test_what_goes_wrong_inside_a_chat(run, folder, lines, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(lines, "chat", folder, "--max-tokens", 5)
    assert (code, out) == (2, "") and sentence in err and err.count("\n") == 1


def test_overflow_is_said_once(run, folder):
    code, out, err = run("12345678\n" * 9, "chat", folder, "--max-tokens", 19, "--json")
    left = [json.loads(line)["left_out"] for line in out.splitlines()]
    assert code == 0 and len(left) == 9 and left[-1] > 1
    assert err.count("the oldest turns are left out") == 1 and "211 tokens" in err


def test_ctrl_c_stops_the_answer_only_and_ctrl_d_ends(run, folder, monkeypatch, capsys):
    original, calls = Unconditioned.call, []

    def interrupted(self, *given):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return original(self, *given)

    monkeypatch.setattr(Unconditioned, "call", interrupted)
    keys(monkeypatch, "one", "/what", "two", EOFError)
    with pytest.raises(SystemExit) as stopped:
        app(["chat", str(folder), "--max-tokens", "5", "--json"], prog_name="weft")
    out, err = capsys.readouterr()
    turns = [json.loads(line) for line in out.splitlines()]
    assert not stopped.value.code and "no command /what" in err
    assert [(turn["user"], turn["finish_reason"]) for turn in turns] == [("one", "interrupted"), ("two", "length")]
    keys(monkeypatch, KeyboardInterrupt)
    with pytest.raises(SystemExit) as stopped:
        app(["chat", str(folder)], prog_name="weft")
    assert not stopped.value.code and capsys.readouterr().out == ""


def test_a_terminal_gets_no_control_characters(folder, monkeypatch):
    keys(monkeypatch, "one", EOFError)
    shown = Terminal()
    monkeypatch.setattr(sys, "stdout", shown)
    pieces = ("a\x1b", "[2", "Jb\x07\n", "\x1b]0;title\x07c\x9b")
    monkeypatch.setattr(Conversation, "say", lambda self, text: (piece for piece in pieces))
    with pytest.raises(SystemExit):
        app(["chat", str(folder)], prog_name="weft")
    assert shown.getvalue() == "ab\nc\n"


def test_help_names_all_templates(run):
    code, out, _ = run("", "chat", "--help")
    assert code == 0 and all(f" {name}," in " ".join(out.split()) for name in TEMPLATES)


def test_errors_of_the_command(run, folder, base, tmp_path):
    (tmp_path / "bad.jinja").write_text("{% for %}")
    (tmp_path / "latin.jinja").write_bytes(b"\xff\xfe")
    for words, sentence in (
        ((base,), "this model has no chat template, it was not trained to chat: give one with --template (chatml, "),
        ((base, "--template", "absent"), "there is no chat template 'absent': choose one of chatml, "),
        ((base, "--template", tmp_path / "bad.jinja"), "bad.jinja is not a chat template in Jinja (line 1"),
        ((base, "--template", tmp_path / "latin.jinja"), "is not UTF-8 text"),
        ((folder, "--max-tokens", 0), "max_tokens 0 gives no answer"),
        ((tmp_path,), "is not a run folder"),
    ):
        code, out, err = run("hello\n", "chat", *words)
        assert (code, out) == (2, "") and sentence in err and err.count("\n") == 1
    code, out, _ = run("hello\n", "chat", base, "--template", "plain", "--max-tokens", 5, "--json")
    assert code == 0 and json.loads(out)["tokens"] <= 5
