"""Interventions: switch parts off or replace what they say, and measure the effect."""
