"""Bench: contestants in processes of their own that take turns, fair timing, machine limits, ratios to peers.

- running/: the contestants' processes, their turns, what disturbed them, and what the machine allows;
- cases/: one file per case of `weft bench`: which contestants compute what, and how they are made;
- models/: the same models in other libraries, with Weft's weights;
- reporting/: results as text, JSON, a page and a picture.

Nothing here asserts anything about speed.
"""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
