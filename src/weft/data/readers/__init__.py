"""Readers: one file per data format."""
