"""Chat templates are strangers' programs: they end, they fill no memory, and they say nothing to the terminal."""

from __future__ import annotations

import io
import os
import threading

import pytest
from rich.text import Text

from weft.cli import app as cli
from weft.cli.terminal import TerminalText, _SafeConsole, without_controls
from weft.foundation.errors import WeftError
from weft.tasks.support.language import sandboxed_templates
from weft.tasks.support.language.prompt_format import ChatTemplate
from weft.tasks.support.language.sandboxed_templates import _PROCESS, check_template, render_template

LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
DOUBLES = "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}"
USER = [{"role": "user", "content": "héllo\ud83d"}]


def test_templates_that_never_end(monkeypatch):
    monkeypatch.setattr(sandboxed_templates, "MOST_SECONDS", 0.5)
    with pytest.raises(WeftError, match=r"refuses these messages \(it does not end within 0.5 seconds\)"):
        ChatTemplate(LOOPS).render(USER)
    assert _PROCESS.process is None
    monkeypatch.setattr(sandboxed_templates, "MOST_SECONDS", 10.0)
    assert ChatTemplate("{{ messages[0].role }}").render(USER) == "user"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (DOUBLES, "too much memory|more than"),
        ("{{ 'a' * 3000000000 }}", "too much memory"),
        ("{{ 'a' * 300000000 }}", "too much memory|more than"),
        ("{% for i in range(99999) %}{{ 'a' * 999 }}{% endfor %}", r"more than 1,04\d,\d+ characters"),
        ("{{ '%2000000000d' % 1 }}", "too much memory"),
        ("{{ messages.__class__.__mro__ }}", "unsafe|undefined"),
        ("{{ raise_exception('no\x1b]0;title\x07\nsystem') }}", r"no \]0;title  system"),
        ("{{ 1 / 0 }}", "division by zero"),
    ],
)
def test_templates_that_take_too_much_or_say_too_much(template, words):
    with pytest.raises(WeftError, match=words) as caught:
        ChatTemplate(template).render(USER)
    assert str(caught.value).isprintable()


def test_what_templates_may_do_they_do():
    text = "{% for m in messages %}{% generation %}{{ m.content | trim }}{% endgeneration %}{% break %}{% endfor %}"
    assert ChatTemplate(text, {"bos_token": "<s>"}).render(USER) == USER[0]["content"]
    named = ChatTemplate("{{ messages | tojson }}{{ bos_token }}", {"bos_token": "<s>"})
    assert named.render([{"a": "<é>"}]) == '[{"a": "<é>"}]<s>'
    assert len(ChatTemplate("{{ strftime_now('%Y') }}").render(USER)) == 4
    long = [{"role": "user", "content": "x" * 3_000_000}]
    assert len(ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}").render(long)) == 3_000_000
    with pytest.raises(WeftError, match="line 2"):
        check_template("a\n{% for %}")


def test_threads_share_the_process_and_a_fork_has_its_own():
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda n=n: found.append(render_template("{{ n }}", {"n": n}))) for n in range(17)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found, key=int) == [str(n) for n in range(17)]
    assert _PROCESS.process is not None
    first = _PROCESS.process
    _PROCESS.owner = -1  # as in a process that was forked
    assert render_template("{{ 1 }}", {}) == "1" and _PROCESS.process.pid != first.pid
    assert _PROCESS.inherited.pop() is first and first.stdin is not None
    first.stdin.close()
    first.wait()
    os.kill(_PROCESS.process.pid, 9)
    _PROCESS.process.wait()
    assert render_template("{{ 2 }}", {}) == "2"  # a process that was killed is started again


def test_a_sentence_of_an_error_commands_no_terminal(capsys):
    cli._stop("bad \x1b[2J\x1b]0;title\x07\x9b31m file", 2)
    assert capsys.readouterr().err == "weft: bad 31m file\n"


def test_nothing_that_is_printed_on_a_terminal_commands_it():
    class Screen(io.StringIO):
        def isatty(self):
            return True

    screen = Screen()
    out = _SafeConsole(file=screen, force_terminal=True, color_system=None, width=80, highlight=False)
    out.print("a\x1b[2Jb\x1b]52;c;aGk=\x07\x07c\td", markup=False)
    out.print(Text("e\x1b[31mf"))
    assert screen.getvalue().split() == ["abc", "d", "ef"]
    assert "\x1b" not in screen.getvalue() and "\x07" not in screen.getvalue()
    shown = TerminalText(screen)
    for piece in ("x\x1b", "]0;ti", "tle", "\x07y"):
        shown.write(piece)
    assert screen.getvalue().endswith("xy") and without_controls("a\x1b[0mb\n") == "ab\n"
