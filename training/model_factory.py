"""Fresh Qwen3-VL-shaped models of a few million parameters, built from stock `transformers` classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wamdiff2_core.config import Strict

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, Qwen3VLForConditionalGeneration


@dataclass(frozen=True)
class NanoShape(Strict):
    """Size of a fresh model; the defaults are the shipped nano's.

    Attributes:
        text_width, text_layers, text_heads, text_mlp: of the language model.
        head_dim: per attention head of the language model.
        vision_width, vision_layers, vision_heads, vision_mlp: of the vision tower; width / heads must divide by 4.
        patch_px: patch side; 2 x 2 patches merge into one token.
        deepstack_layers: vision layers whose features enter the first text layers.
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
