"""Statistics: what an engine has done, and what it holds now."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class EngineStatistics:
    """What an engine has done, and what it holds now.

    Decoding `steps`, and `rows` in all of them; prompt tokens read (`prompt_tokens`) and taken from the prefix cache
    (`reused_tokens`), tokens generated, those `proposed` by speculation and `accepted`; requests `finished`,
    `cancelled`, `failed` and `refused`; those that are `waiting`, `prefilling` and `decoding` now.
    """

    slots: int
    steps: int = 0
    rows: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    generated_tokens: int = 0
    proposed: int = 0
    accepted: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    refused: int = 0
    waiting: int = 0
    prefilling: int = 0
    decoding: int = 0

    @property
    def occupancy(self) -> float:
        """Share of the slots that an average decoding step used."""
        return self.rows / (self.steps * self.slots) if self.steps else 0.0
