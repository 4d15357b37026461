"""Kinds of pictures that any run may have: attention, residual stream, model, one explained output."""
