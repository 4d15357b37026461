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
    "bytes of text, bpe": "merges are learned from an even sample of at most 50 million characters. That takes about "
    "15 s however much longer the text is: most of the time of 16 MB, a twentieth of that of 2 GB. Encoding is in "
    "proportion to the text, 6 to 8 MB per second and thread",
}

MEMORY = {
    "bytes of text, bpe": "it grows until the sample for learning is full (50 million characters), and with it the "
    "look-up of words that were encoded before (it starts anew after 300,000), and is constant from 256 MB on",
}
