"""Stock Qwen3-VL with block-causal masks, positions and cache around it."""
