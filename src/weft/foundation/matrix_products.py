"""One matrix product as plain numbers: the unit in which parts count their FLOPs.

One multiply-add counts 2 FLOPs. Shapes are for one sequence, with the letters of `weft.foundation.shapes`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MatrixProduct:
    """`copies` products (one per head, group or active expert) of [rows x inner] with [inner x columns]."""

    name: str
    formula: str
    rows: int
    inner: int
    columns: int
    copies: int = 1

    @property
    def flops(self) -> int:
        """2 per multiply-add."""
        return 2 * self.copies * self.rows * self.inner * self.columns

    @property
    def shapes(self) -> str:
        """What is multiplied with what, in numbers: `12 x [1024 x 64] [64 x 1024] -> [1024 x 1024]`."""
        rows, inner, columns = self.rows, self.inner, self.columns
        times = "" if self.copies == 1 else f"{self.copies} x "
        return f"{times}[{rows} x {inner}] [{inner} x {columns}] -> [{rows} x {columns}]"


@dataclass(frozen=True)
class ProductView:
    """`queries` tokens look at a sequence of `keys`, each at `seen` of them at most (fewer than all with a window)."""

    queries: int
    keys: int
    seen: int

    @staticmethod
    def full(queries: int, keys: int | None = None) -> ProductView:
        """Each query sees all keys; a causal mask is not discounted."""
        keys = queries if keys is None else keys
        return ProductView(queries, keys, keys)


Products = tuple[MatrixProduct, ...]
