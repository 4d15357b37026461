"""Fast: the single-token path, packed and quantized weights, native code."""
