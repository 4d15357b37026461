"""Interventions: switch parts off or replace their outputs, and measure the effect."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
