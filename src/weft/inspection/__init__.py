"""Inspection: watching at full speed, through the observers that parts tell what they do; looking changes no bit.

- watch.py: `with watch(run_or_module) as seen:`; `seen.attention(layer=2, head=1)` is the map (T, S);
- statistics.py: entropy, mean distance, column mass of all heads at once, blockwise; sharpness at initialization;
- alignment.py: which head aligns best, alignment error rate; rollout.py and flow.py: attention through all layers;
- lens.py: residual-stream norms, logit lens, next tokens step by step, loss by position; routing.py: experts;
- filters.py: principal components of patch filters, similarity of positions; reach.py: gradients of far tokens;
- interventions.py: switch off or replace heads, feed-forwards, positions, tokens; effects.py: which head does it;
- explain.py: one attention output unfolded into its numbers; compare.py: where two models diverge, and why.

Everything takes a `Run` (by its `module`) or any torch module.
"""
