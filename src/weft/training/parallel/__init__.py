"""Training on many processes and machines, by torch.distributed: how a run is spread, and how it is started.

A batch is split over the data ranks; with `fsdp` so are weights, gradients and moments; with `tp=N` each layer's
matrices are split over N processes. What one process would compute is computed, to rounding.
"""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
