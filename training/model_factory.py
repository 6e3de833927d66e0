"""Fresh Qwen3-VL-shaped models of a few million parameters, built from stock `transformers` classes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wamdiff2_core.config import Strict
from wamdiff2_core.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, Qwen3VLForConditionalGeneration

LEAST_VOCABULARY = 300  # of the nano's tokenizer


@dataclass(frozen=True)
class NanoShape(Strict):
    """Size of a fresh model; the defaults are the shipped nano's.

    Attributes:
        text_width, text_layers, text_heads, text_mlp: of the language model.
        head_dim: per attention head of the language model; even.
        vision_width, vision_layers, vision_heads, vision_mlp: of the vision tower; width / heads must divide by 4.
        patch_px: patch side; 2 x 2 patches merge into one token.
        deepstack_layers: vision layers, from 0, whose features enter the first text layers.
        vocab_size: rows of the embedding; rows beyond the tokenizer's entries stay unused.
        rope_theta: base of the rotary embedding.
    """

    text_width: int = 192
    text_layers: int = 4
    text_heads: int = 6
    text_mlp: int = 512
    head_dim: int = 32
    vision_width: int = 96
    vision_layers: int = 3
    vision_heads: int = 4
    vision_mlp: int = 384
    patch_px: int = 16
    deepstack_layers: tuple[int, ...] = (1,)
    vocab_size: int = 1024
    rope_theta: float = 10000.0

    def __post_init__(self) -> None:
        for name in ("text_width", "text_layers", "text_heads", "text_mlp", "head_dim", "vision_width",
                     "vision_layers", "vision_heads", "vision_mlp", "patch_px", "vocab_size"):
            if getattr(self, name) < 1:
                raise UserError(name, "an integer >= 1", getattr(self, name))
        if self.vocab_size < LEAST_VOCABULARY:
            raise UserError("vocab_size", f"at least {LEAST_VOCABULARY}: bytes and special tokens", self.vocab_size)
        if self.head_dim % 2:
            raise UserError("head_dim", "an even number", self.head_dim, "rotary positions turn pairs of values")
        if self.vision_width % (4 * self.vision_heads):
            raise UserError("vision_width", f"a multiple of {4 * self.vision_heads}, 4 for each of vision_heads",
                            self.vision_width)
        layers = self.deepstack_layers
        if len(set(layers)) != len(layers) or not all(0 <= layer < self.vision_layers for layer in layers):
            raise UserError("deepstack_layers", f"different layers among 0..{self.vision_layers - 1}", layers)
        if len(layers) > self.text_layers:
            raise UserError("deepstack_layers", f"at most {self.text_layers}, one for each text layer", layers)
        if not 0 < self.rope_theta < math.inf:
            raise UserError("rope_theta", "a finite number > 0", self.rope_theta)


def build_model(shape: NanoShape, tokenizer: PreTrainedTokenizerBase, seed: int = 0) -> Qwen3VLForConditionalGeneration:
    """A randomly initialised model in fp32; the same seed gives the same weights."""
    import torch
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    def token(name: str) -> int:
        return int(tokenizer.convert_tokens_to_ids(name))

    spatial = shape.head_dim // 6  # height and width get equal shares of the rotary frequencies, time the rest
    config = Qwen3VLConfig(
        text_config={
            "vocab_size": shape.vocab_size, "hidden_size": shape.text_width, "intermediate_size": shape.text_mlp,
            "num_hidden_layers": shape.text_layers, "num_attention_heads": shape.text_heads,
            "num_key_value_heads": shape.text_heads, "head_dim": shape.head_dim, "max_position_embeddings": 4096,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": shape.rope_theta, "mrope_interleaved": True,
                "mrope_section": [shape.head_dim // 2 - 2 * spatial, spatial, spatial],
            },
            "tie_word_embeddings": True, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id,
        },
        vision_config={
            "depth": shape.vision_layers, "hidden_size": shape.vision_width, "intermediate_size": shape.vision_mlp,
            "num_heads": shape.vision_heads, "patch_size": shape.patch_px, "spatial_merge_size": 2,
            "temporal_patch_size": 2, "out_hidden_size": shape.text_width, "num_position_embeddings": 256,
            "deepstack_visual_indexes": list(shape.deepstack_layers),
        },
        image_token_id=token("<|image_pad|>"), video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"), vision_end_token_id=token("<|vision_end|>"),
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3VLForConditionalGeneration._from_config(config, attn_implementation="sdpa")
