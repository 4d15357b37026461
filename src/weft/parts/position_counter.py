"""Which position comes next: each call of a cached model goes on counting where the last one ended."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from weft.foundation.errors import ShapeError
from weft.parts.masks import Mask, arrange
from weft.parts.token_positions import Pads, TokenPositions, document_begins


class PositionCounter:
    """Which position comes next in each row: a number while all rows agree, a tensor [B] once they do not.

    `origin` is the first position of every text (a model whose image stands before the text starts later). Documents
    are numbered anew over all calls, so that an id that comes again later is another document.
    """

    def __init__(self, batch: int, device: torch.device, origin: int = 0) -> None:
        self.batch, self.device, self.origin = batch, device, origin
        self.next: int | Tensor = origin
        self.last_id: Tensor | None = None
        self.number: Tensor | None = None

    @property
    def begun(self) -> bool:
        """Whether anything was counted yet."""
        return not isinstance(self.next, int) or self.next != self.origin

    def arrange(self, length: int, positions: Tensor | None, mask: Mask | None) -> TokenPositions:
        """Where the next `length` tokens stand, continuing each row."""
        implied = arrange(mask, length)
        if positions is not None:
            given = TokenPositions.of(positions, None if implied is None else implied.documents)
            if given.length != length:
                raise ShapeError(f"{given.length} positions for {length} tokens: give one position per token")
            if implied is not None and implied.real is not None:
                given = TokenPositions.of(torch.where(implied.real, given.positions, -1), given.documents)
            return self._numbered(given)[0]
        if implied is None:
            if isinstance(self.next, int) and self.number is None:
                return TokenPositions.run(self.next, length, self.device)
            implied = TokenPositions.run(0, length, self.device)
        numbered, going_on = self._numbered(implied)
        return self._shifted(numbered, going_on)

    def _shifted(self, token_positions: TokenPositions, going_on: Tensor | None) -> TokenPositions:
        """Count on from where each row is; documents that begin here count from the origin."""
        if isinstance(self.next, int) and self.next == 0:
            return token_positions
        nexts = torch.as_tensor(self.next, device=self.device).expand(self.batch)[:, None]
        if going_on is not None:
            nexts = torch.where(going_on, nexts, self.origin)
        positions = torch.where(token_positions.positions >= 0, token_positions.positions + nexts, -1)
        pads: Pads = "none" if token_positions.pads == "none" else "anywhere"
        return replace(token_positions, given=positions, start=None, pads=pads, packed=False)

    def _numbered(self, token_positions: TokenPositions) -> tuple[TokenPositions, Tensor | None]:
        """Documents by running numbers, and where a token goes on with its row's last document."""
        if token_positions.documents is None:
            if self.number is None:
                return token_positions, None
            return replace(
                token_positions, documents=self.number[:, None].expand(self.batch, token_positions.length)
            ), None
        ids = token_positions.documents.expand(self.batch, -1)
        real = (token_positions.positions >= 0).expand(self.batch, -1)
        begins = document_begins(ids) & real
        order = begins.long().cumsum(1) - 1
        if self.number is None or self.last_id is None:
            number, going_on = order, torch.zeros_like(real)
        else:
            first = ids.gather(1, real.long().argmax(1, keepdim=True))
            same = first == self.last_id[:, None]
            number = self.number[:, None] + order + (~same).long()
            going_on = same & (order == 0)
        numbered = replace(token_positions, documents=torch.where(real, number, -1), ids=ids)
        return numbered, going_on if self.begun else None

    def advance(self, token_positions: TokenPositions) -> None:
        """Count the tokens of a call that is done."""
        if token_positions.plain and token_positions.start is not None and token_positions.start == self.next:
            self.next = token_positions.start + token_positions.length
            return
        positions = token_positions.positions.expand(self.batch, -1)
        index = torch.where(positions >= 0, torch.arange(token_positions.length, device=self.device), -1)
        last = index.amax(1)
        self.next = _at_last(positions + 1, last, torch.as_tensor(self.next, device=self.device).expand(self.batch))
        if token_positions.documents is not None:
            numbers = token_positions.documents.expand(self.batch, -1)
            self.number = _at_last(numbers, last, self.number)
            if token_positions.ids is not None:
                self.last_id = _at_last(token_positions.ids, last, self.last_id)

    def reorder(self, rows: Tensor) -> None:
        """Keep rows[0], rows[1], ... in this order."""
        self.batch = len(rows)
        if isinstance(self.next, Tensor):
            self.next = self.next.index_select(0, rows)
        if self.number is not None:
            self.number = self.number.index_select(0, rows)
        if self.last_id is not None:
            self.last_id = self.last_id.index_select(0, rows)


def _at_last(values: Tensor, last: Tensor, before: Tensor | None) -> Tensor:
    """Each row's value at its last real token; what was before where there is none."""
    found = values.gather(1, last.clamp(min=0)[:, None])[:, 0]
    return torch.where(last >= 0, found, torch.full_like(found, -1) if before is None else before)
