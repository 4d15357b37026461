"""Kinds that other packages add, by entry points."""

from __future__ import annotations

import sys

import pytest

from plugins import write_distribution
from weft.foundation.errors import WeftError
from weft.foundation.plugins import Registry


@pytest.fixture
def installed(tmp_path, monkeypatch):
    def install(code, points, group="weft.toys"):
        monkeypatch.syspath_prepend(str(write_distribution(tmp_path, "toys", {"toy_kinds": code}, {group: points})))
        return Registry(group, "toy", {"ball": "weft.foundation.errors:WeftError", "bear": 7})

    return install


def test_kinds_of_other_packages_are_found_by_name(installed):
    registry = installed("kite = 11\n", {"kite": "toy_kinds:kite"})
    assert registry.names() == ("ball", "bear", "kite")
    assert registry["kite"] == 11 and registry["bear"] == 7 and registry["ball"] is WeftError
    assert "kite" in registry and "drum" not in registry
    with pytest.raises(WeftError, match="there is no toy 'drum': choose one of ball, bear, kite"):
        registry["drum"]


def test_a_plugin_cannot_replace_a_built_in_kind(installed):
    registry = installed("bear = 13\n", {"bear": "toy_kinds:bear"})
    assert registry["bear"] == 7 and registry.names() == ("ball", "bear")


def test_a_plugin_that_does_not_load_is_named(installed, monkeypatch):
    monkeypatch.delitem(sys.modules, "toy_kinds", raising=False)
    registry = installed("raise ValueError('no string')\n", {"kite": "toy_kinds:kite"})
    with pytest.raises(WeftError, match=r"toy 'kite' of package toys cannot be loaded \(ValueError: no string\)"):
        registry["kite"]
