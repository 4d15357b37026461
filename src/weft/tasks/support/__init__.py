"""Support: what several tasks share."""
