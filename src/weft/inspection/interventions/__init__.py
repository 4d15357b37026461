"""Interventions: switch parts off or replace their outputs, and measure the effect."""
