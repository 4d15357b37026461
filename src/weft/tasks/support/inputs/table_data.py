"""Options of tasks whose data may be tables of texts: which columns, and whether there is a header."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator

from weft.data.readers.headers import Header
from weft.data.readers.tables import TableOptions
from weft.tasks.task import DataSpec, Names


def _as_word(value: Any) -> Any:
    """true and false, as TOML has them, for yes and no."""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else value


class TableDataSpec(DataSpec):
    """`columns`: by name or number from 1, such as text,label; without it they are recognized.

    `header`: whether the first line of a table names its columns: yes, no, or auto (by how it differs from the rest).
    """

    columns: Names = ()
    header: Annotated[Header, BeforeValidator(_as_word)] = "auto"

    def table_options(self, trained: Sequence[str] = ()) -> TableOptions:
        """How tables are read; `trained` are the columns that a run was trained on."""
        return TableOptions(self.columns, self.header, tuple(trained))
