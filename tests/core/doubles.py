"""Tiny random Qwen3-VL models and a byte tokenizer, for tests of the model and decoding core."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3VLConfig, Qwen3VLForConditionalGeneration

from wamdiff2_core.chat import ModelInputs
from wamdiff2_core.decode import Generator

MS = 1_000_000  # nanoseconds

SPECIAL_TOKENS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
    "<|video_pad|>", "<|mask|>",
)
PAD, IM_START, EOS, VISION_START, VISION_END, IMAGE, VIDEO, MASK = range(256, 264)
VOCAB_SIZE = 272  # the last eight rows belong to no token
PATCH_DIM = 3 * 2 * 16 * 16


def byte_tokenizer(chat_template: str | None = None) -> PreTrainedTokenizerFast:
    """One token a byte, Qwen's split and special tokens; `chat_template` None leaves it without one."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\p{N}|\s*[\r\n]+|[^\s\p{N}]+|\s+"), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>",
        extra_special_tokens=list(SPECIAL_TOKENS), clean_up_tokenization_spaces=False,
    )
    fast.chat_template = chat_template
    return fast


def tiny_config(**text: Any) -> Qwen3VLConfig:
    """Configuration of a two-layer model; `text` overrides its text part, `tie_word_embeddings` both parts."""
    tied = text.pop("tie_word_embeddings", True)
    return Qwen3VLConfig(
        text_config={
            "vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 4096,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2], "mrope_interleaved": True,
            },
            "tie_word_embeddings": tied, "eos_token_id": EOS, "pad_token_id": PAD,
        } | text,
        vision_config={
            "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 16,
            "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": text.get("hidden_size", 64),
            "num_position_embeddings": 64, "deepstack_visual_indexes": [0],
        },
        image_token_id=IMAGE, video_token_id=VIDEO, vision_start_token_id=VISION_START, vision_end_token_id=VISION_END,
        tie_word_embeddings=tied,
    )


def tiny_model(
    seed: int = 0, attn_implementation: str = "sdpa", gain: float = 1.0, **text: Any
) -> Qwen3VLForConditionalGeneration:
    """A random model in fp32, evaluation mode.

    Args:
        seed: of the weights.
        attn_implementation: `sdpa` or `eager`.
        gain: of the text layers against the embedding; a higher one makes answers repeat themselves less, and values
            larger.
        **text: overrides of `tiny_config`.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3VLForConditionalGeneration._from_config(
            tiny_config(**text), attn_implementation=attn_implementation
        ).eval()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if weight.ndim >= 2 and "embed" not in name and "lm_head" not in name:
                    weight.normal_(0, (1 if "visual" in name else gain) * weight[0].numel() ** -0.5)
                elif "embed_tokens" in name or "lm_head" in name:
                    weight.normal_(0, 0.3)
    return model


def save_tiny(folder: Path, seed: int = 0, tokenizer: bool = True, **kwargs: Any) -> Path:
    """Write a tiny model, and its tokenizer, as a Hugging Face folder."""
    tiny_model(seed, **kwargs).save_pretrained(folder)
    if tokenizer:
        byte_tokenizer().save_pretrained(folder)
    return folder


def random_inputs(seed: int, text_len: int, images: tuple[tuple[int, int], ...] = ()) -> ModelInputs:
    """Random ids with random images.

    Args:
        seed: of ids and pixels.
        text_len: number of text tokens, at least two more than images.
        images: height and width of each image in patches, both even.
    """
    rng = np.random.default_rng(seed)
    text = rng.integers(0, 256, text_len).tolist()
    if not images:
        return ModelInputs(torch.tensor(text))
    ids = text[:2]
    for index, (height, width) in enumerate(images):
        ids += [VISION_START] + [IMAGE] * (height * width // 4) + [VISION_END, text[2 + index]]
    ids += text[2 + len(images) :]
    pixels = rng.normal(size=(sum(height * width for height, width in images), PATCH_DIM)).astype(np.float32)
    grids = torch.tensor([[1, height, width] for height, width in images])
    return ModelInputs(torch.tensor(ids), torch.from_numpy(pixels), grids)


class FakeClock:
    """Monotonic nanoseconds that pass only where somebody says so; counts how often it is read."""

    def __init__(self) -> None:
        self.now_ns, self.reads = 123 * MS, 0

    def __call__(self) -> int:
        self.reads += 1
        return self.now_ns


def timed(
    decoder: Generator, prefill_ms: float, step_ms: float, joint_ms: float | None = None,
    length: Callable[[], float] = lambda: 1.0,
) -> FakeClock:
    """Let a generator's forwards take so much of a clock that is returned, and nothing else any.

    Args:
        decoder: is changed.
        prefill_ms: of the prompts.
        step_ms: of a step.
        joint_ms: of a step that commits the block before it; as any other by default.
        length: drawn at every step, which takes so many times longer.
    """
    clock, model = FakeClock(), decoder.blocks
    prefill, forward = model.prefill, model.forward

    def slow_prefill(*args: Any) -> torch.Tensor:
        clock.now_ns += round(prefill_ms * MS)
        return prefill(*args)

    def slow_forward(
        ids: torch.Tensor, offset: int, commit: int = 0, wanted: torch.Tensor | None = None
    ) -> torch.Tensor:
        took_ms = step_ms if joint_ms is None or not commit else joint_ms
        clock.now_ns += round(took_ms * length() * MS)
        return forward(ids, offset, commit, wanted)

    decoder.clock, model.prefill, model.forward = clock, slow_prefill, slow_forward  # type: ignore[method-assign]
    return clock
