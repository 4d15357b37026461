"""Types of numpy arrays that several rooms share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]  # real numbers of any precision
Pixels = NDArray[np.uint8]  # gray values or colors, 0 to 255
