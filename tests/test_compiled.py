"""torch.compile computes the same numbers, where a compiler exists."""

from __future__ import annotations

import shutil

import pytest
import torch

import weft
from subjects import Subject, build, shrink

compiler = pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="no C++ compiler")


@compiler
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["gpt2", "smollm2-135m", "mistral-7b", "t5-small"])
def test_compiled_equals_eager(name):
    one = Subject(build(shrink(weft.preset(name))))
    content = one.content(2, 11)
    eager = one.run(content)
    torch._dynamo.reset()
    module = one.module
    for stack in [m for m in module.modules() if type(m).__name__ == "Stack"]:
        stack.compile(dynamic=False)
    assert (one.run(content) - eager).abs().max() < 1e-10
