"""The largest tensor that is made while something runs, forward or backward: a deterministic measure of memory."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LargestTensor(TorchDispatchMode):
    """`numbers`: how many the largest one holds. Views count as what they show only if they own memory of that size."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for one in tree_leaves(out):
            if isinstance(one, Tensor):
                held = one.untyped_storage().nbytes() // one.element_size()
                self.numbers = max(self.numbers, min(one.numel(), held))
        return out
