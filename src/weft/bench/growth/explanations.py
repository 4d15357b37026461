"""The axes of growth in words: what is measured, and why some depart from theory, with the figures that show it."""

from __future__ import annotations

_LAYER = "a forward of one layer of attention over N tokens, width 256, 4 heads, projections included"
_STEP = "a training step (AdamW, float32) of a GPT of"
_READ = "a tokenizer is learned from a file of text, all of it is encoded and its tokens are stored"

CALLS = {
    "length, causal attention": _LAYER,
    "length, window of 256": f"{_LAYER}; each token sees the last 256",
    "length, linear attention": f"{_LAYER}; a running sum in place of keys and values",
    "length, training step": f"{_STEP} 4 layers of width 128 on one row of N tokens",
    "length so far, one token decoded": "one more token of a GPT of 6 layers of width 384 after N others",
    "batch, training step": f"{_STEP} 4 layers of width 128 on B rows of 64 tokens",
    "width, training step": f"{_STEP} 4 layers of width D on 4 rows of 64 tokens",
    "layers, training step": f"{_STEP} L layers of width 128 on 4 rows of 64 tokens",
    "vocabulary, training step": f"{_STEP} 2 layers of width 128 with a vocabulary of C, on 2 rows of 256 tokens",
    "experts, forward": "2,048 tokens of width 256 through E experts of 512 hidden units, 2 of them active per token",
    "bytes of text, characters": f"{_READ}; each character is a token",
    "bytes of text, bpe": f"{_READ}; byte-level BPE of 8,192 tokens",
}

TIME = {
    "batch, training step": "a part of a step does not depend on the batch: about 2,400 operator calls (torch's "
    "profiler counts 2,430 events with 1 row and 2,480 with 64) and the update of all weights. It is most "
    "of a step of 1 row; from 16 rows on, p from the size before is about 1",
    "length so far, one token decoded": "the 43 MB of weights are read at about 30 GB/s, keys and values, each head's "
    "for itself, at 14 to 20: so a long text weighs more than its bytes",
    "width, training step": "as many operator calls at all widths (torch's profiler counts 2,467 events at 64), which "
    "cost more than the products of narrow matrices do; p from the size before rises towards 2 with the width",
    "layers, training step": "embedding, output and loss are there once, about half of a step of 1 layer; then 3 ms a "
    "layer",
    "experts, forward": "the weights of all experts are read: 6 MB of 4 experts, which fit a processor's cache, 101 MB "
    "of 64; and each product has 64 rows on average instead of 1,024",
    "bytes of text, bpe": "merges are learned from an even sample of at most 50 million characters. That takes about "
    "15 s however much longer the text is: most of the time of 16 MB, a twentieth of that of 2 GB. Encoding is in "
    "proportion to the text, 6 to 8 MB per second and thread",
}

MEMORY = {
    "layers, training step": "the gradients of embedding and output, and a layer's largest tensor, are there once: "
    "about 3.5 MB, then 2 MB a layer",
    "length, window of 256": "1,024 tokens take one mask of all 2^20 pairs, which is the limit for masks in memory; "
    "from 2,048 on blocks of 128 queries see only the keys in their windows, and p from the size before is 1",
    "bytes of text, bpe": "it grows until the sample for learning is full (50 million characters), and with it the "
    "look-up of words that were encoded before (it starts anew after 300,000), and is constant from 256 MB on",
}
