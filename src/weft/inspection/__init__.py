"""Inspection: watching at full speed, through the observers that parts tell what they do; looking changes no bit.

- recording/: `with watch(run_or_module) as seen:`; `seen.attention(layer=2, head=1)` is the map (T, S);
- analysis/: statistics of all heads, alignment, rollout and flow, residual stream and logit lens, routing of experts,
  patch filters and positions, gradient reach, one attention output explained number by number;
- interventions/: switch off or replace heads, feed-forwards, positions, tokens, and measure the effect;
- comparison/: where two models diverge, and why; pictures/: what `weft look` draws.

Everything takes a `Run` (by its `module`) or any torch module.
"""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
