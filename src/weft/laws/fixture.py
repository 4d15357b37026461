"""A pytest fixture, so that one line puts the laws into a user's own suite.

def test_my_model_is_lawful(weft_laws):
    weft_laws(MyModel(), torch.randint(0, 100, (1, 12)), causal=True)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def weft_laws() -> Callable[..., Any]:
    """`weft_laws(module, example, **declared)` fails the test if a declared law is broken or none can be tested."""

    def judge(module: Any, example: Any = None, **declared: Any) -> Any:
        from weft.laws import check

        report = check(module, example, **declared)
        if report.broken or not report.tested:
            pytest.fail(str(report), pytrace=False)
        return report

    return judge
