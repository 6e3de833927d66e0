"""A compact tokenizer in Qwen's manner for the nano checkpoint.

Byte-level BPE with Qwen's pre-tokenizer expression (every digit is a token of its own), Qwen-VL's special tokens, and
a mask token, which Qwen's own vocabulary lacks. At most 1,024 entries keep the nano's embedding small; every word of
the planning prompts is one token.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from training.model_factory import LEAST_VOCABULARY
from training.tokenizer_corpus import corpus
from wamdiff2_core.errors import UserError
from wamdiff2_core.outputs import disk_errors_named, writable_folder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

VOCAB_SIZE = 1024
OWN_FILES = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
EOS_TOKEN, PAD_TOKEN, MASK_TOKEN = "<|im_end|>", "<|endoftext|>", "<|mask|>"
SPECIAL_TOKENS = (
    PAD_TOKEN, "<|im_start|>", EOS_TOKEN, "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>",
    MASK_TOKEN,
)
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message.role + '\n' -}}"
    "{%- if message.content is string -%}{{- message.content -}}{%- else -%}"
    "{%- for part in message.content -%}"
    "{%- if part.type == 'image' -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}"
    "{%- elif part.type == 'video' -%}{{- '<|vision_start|><|video_pad|><|vision_end|>' -}}"
    "{%- else -%}{{- part.text -}}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}"
    "{{- '<|im_end|>\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)


def build_tokenizer(vocab_size: int = VOCAB_SIZE) -> PreTrainedTokenizerFast:
    """Train the tokenizer on the repository's own corpus; the same call gives the same tokenizer."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN_SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=list(SPECIAL_TOKENS), min_frequency=2, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=EOS_TOKEN, pad_token=PAD_TOKEN, mask_token=MASK_TOKEN,
        extra_special_tokens=list(SPECIAL_TOKENS), clean_up_tokenization_spaces=False, padding_side="left",
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def write_tokenizer(folder: Path, vocab_size: int = VOCAB_SIZE) -> int:
    """Train the tokenizer and write its files into `folder`; returns the number of entries.

    Raises:
        UserError: nothing can be written there, or the folder holds something else than an earlier tokenizer of ours.
        OSError: the disk is full; an earlier tokenizer stays.
    """
    writable_folder(folder, "out")
    if any(folder.iterdir()) and not _is_ours(folder):
        raise UserError("out", "an empty folder, or one written by this command", str(folder), "choose another folder")
    tokenizer = build_tokenizer(vocab_size)
    with tempfile.TemporaryDirectory(dir=folder) as draft:
        with disk_errors_named(folder):
            tokenizer.save_pretrained(draft)
        for file in Path(draft).iterdir():
            file.replace(folder / file.name)
    return len(tokenizer)


def _is_ours(folder: Path) -> bool:
    """Whether the folder holds nothing but a tokenizer of this module, which its special tokens tell."""
    if not {path.name for path in folder.iterdir()} <= OWN_FILES:
        return False
    try:
        added = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
        return tuple(token["content"] for token in added) == SPECIAL_TOKENS
    except (OSError, ValueError, KeyError, TypeError):
        return False


def tokenizer(
    out: Annotated[Path, typer.Option(help="Folder for the tokenizer's files.")],
    vocab_size: Annotated[int, typer.Option(min=LEAST_VOCABULARY, help="Entries at most.")] = VOCAB_SIZE,
) -> None:
    """Train the nano's tokenizer and write it; the same command gives the same files."""
    from rich.console import Console

    entries = write_tokenizer(out, vocab_size)
    Console().print(f"{entries} entries, {len(SPECIAL_TOKENS)} of them special: {out}")
