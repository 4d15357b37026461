"""Serving: runs behind an HTTP API that OpenAI's clients speak, with an endpoint for every other task.

- web/: connections, keys, limits, errors, request ids, the access log and metrics: what knows no model;
- served/: runs in threads of their own, and the tickets by which the event loop waits for them;
- requests/: bodies of requests, checked; answers/: log-probabilities, events of streams, usage;
- endpoints/: one file per group of paths.

The event loop never waits for a model: engines step in threads and hand over all new tokens once per step.
"""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
