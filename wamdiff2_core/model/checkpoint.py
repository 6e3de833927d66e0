"""Checkpoints: Hugging Face folders of Qwen3-VL or WAM-Diff2, with our serving record beside the weights.

WAM-Diff2 is Qwen3-VL under other `model_type` names with the same state-dict keys, so both load into the stock class;
names change in memory only. Nothing is ever downloaded, and no code from a folder is run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from wamdiff2_core.chat import ChatCodec
from wamdiff2_core.config import ImagePolicy
from wamdiff2_core.errors import UserError, unknown_name
from wamdiff2_core.images import make_image_processor
from wamdiff2_core.json_file import read_json_object
from wamdiff2_core.serving_record import QWEN_EOS_TOKEN_ID, QWEN_MASK_TOKEN_ID, RECORD_NAME, ServingRecord

if TYPE_CHECKING:
    import torch
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    from wamdiff2_core.model.backends import Backend

MODEL_TYPES = ("qwen3_vl", "wam_diff2")
ATTENTION = ("sdpa", "eager")
TOKENIZER_FILES = ("tokenizer.json", "vocab.json")
HASH_LENGTH = 12


@dataclass
class Checkpoint:
    """A loaded checkpoint.

    Attributes:
        model: stock Qwen3-VL in evaluation mode.
        tokenizer: None when the folder has none and none was required.
        image_processor: with the image policy's limits.
        record: None when the folder has no serving record.
        images: image policy of the record, else the caller's, else the default one.
        mask_token_id, eos_token_id: of the record, else the caller's, else Qwen's.
        hash: 12 hex digits over weights, configuration and record.
        folder: where it was loaded from.
        backend: name of what runs the model (`wamdiff2_core.model.backends`), never `auto`.
        lock: held while the runner is at work.
    """

    model: Qwen3VLForConditionalGeneration
    tokenizer: Any
    image_processor: Any
    record: ServingRecord | None
    images: ImagePolicy
    mask_token_id: int
    eos_token_id: int
    hash: str
    folder: Path
    backend: str = "eager"

    def __post_init__(self) -> None:
        self.lock = Lock()
        self._chat: ChatCodec | None = None
        if self.tokenizer is not None:
            self._chat = ChatCodec(
                self.tokenizer, self.image_processor, self.images, self.model.config.image_token_id,
                self.eos_token_id, _processor_template(self.folder, self.tokenizer),
            )

    @cached_property
    def runner(self) -> Backend:
        """What runs the model, made when it is first asked for: all generators share its weights and buffers.

        Raises:
            UserError: it lacks something on this machine.
        """
        from wamdiff2_core.model.backends import make_backend

        return make_backend(self.backend, self.model)

    @property
    def chat(self) -> ChatCodec:
        """Text and images <-> ids.

        Raises:
            UserError: the checkpoint was loaded without a tokenizer.
        """
        if self._chat is None:
            raise UserError(str(self.folder), "a checkpoint with a tokenizer", "none", "add the tokenizer's files")
        return self._chat


def read_model_config(folder: Path, field: str = "checkpoint") -> Qwen3VLConfig:
    """Stock configuration of a checkpoint folder, WAM-Diff2 names turned into Qwen3-VL's.

    Args:
        folder: of the checkpoint.
        field: option that names it, for messages.

    Raises:
        UserError: no such folder, no `config.json`, or another kind of model.
    """
    from transformers import Qwen3VLConfig

    if not folder.is_dir():
        raise UserError(field, "a checkpoint folder", str(folder),
                        "nothing is downloaded: give the path of a folder with config.json and safetensors")
    data = read_json_object(folder / "config.json")
    if data.get("model_type") not in MODEL_TYPES:
        raise UserError(f"{folder / 'config.json'}: model_type", "one of " + ", ".join(MODEL_TYPES),
                        str(data.get("model_type")))
    data.pop("auto_map", None)
    data["model_type"] = "qwen3_vl"
    data["architectures"] = ["Qwen3VLForConditionalGeneration"]
    for part, name in (("text_config", "qwen3_vl_text"), ("vision_config", "qwen3_vl_vision")):
        data[part] = {**(data.get(part) or {}), "model_type": name}
    return Qwen3VLConfig.from_dict(data)


def check_device(device: str | torch.device) -> None:
    """Raise `UserError` when it is no device of a kind that we run on, or this machine has none of it."""
    import torch

    from wamdiff2_core.model.devices import ACCELERATORS, registered_npu

    kind = str(device).partition(":")[0]
    if kind == "npu":
        registered_npu()
    known = kind in ("cpu", *ACCELERATORS)
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, ImportError):
        known = False
    if not known:
        raise UserError("device", "a device of this machine: cpu, cuda, cuda:N, npu or npu:N", str(device),
                        "`wamdiff2 doctor` lists what is here")


def load_checkpoint(
    folder: Path | str,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | str | None = None,
    attn_implementation: str = "sdpa",
    mask_token_id: int | None = None,
    eos_token_id: int | None = None,
    images: ImagePolicy | None = None,
    require_tokenizer: bool = True,
    backend: str = "auto",
) -> Checkpoint:
    """Load a checkpoint folder.

    Args:
        folder: Hugging Face folder with single or sharded safetensors.
        device: where to put the model.
        dtype: of the weights; None is the stored one on an accelerator and float32 on a CPU, where bfloat16 is slow.
        attn_implementation: `sdpa` or `eager`.
        mask_token_id, eos_token_id: for folders without a record; a record that says otherwise is not overruled.
        images: for folders without a record; likewise.
        require_tokenizer: False lets a folder without a tokenizer load, for callers that bring ids.
        backend: what will run the model, of `BACKENDS`; `auto` is the one made for the device.

    Raises:
        UserError: the folder is not a complete checkpoint, the arguments contradict its record, or the backend is
            unknown or not for this device.
    """
    import torch

    from wamdiff2_core.model.backends import choose_backend

    folder = Path(folder)
    check_device(device)
    backend = choose_backend(backend, device)
    if attn_implementation not in ATTENTION:
        raise unknown_name("attn_implementation", attn_implementation, ATTENTION)
    config = read_model_config(folder)
    record = ServingRecord.load(folder)
    weights = _weight_files(folder)
    tokenizer = load_tokenizer(folder) if require_tokenizer or _has_tokenizer(folder) else None
    if dtype is None and torch.device(device).type == "cpu":
        dtype = torch.float32
    model = _load_weights(folder, config, dtype or "auto", attn_implementation)
    policy = _settle("images", record and record.images, images, ImagePolicy())
    mask_id = _settle("mask_token_id", record and record.mask_token_id, mask_token_id, QWEN_MASK_TOKEN_ID)
    eos_id = _settle("eos_token_id", record and record.eos_token_id, eos_token_id, QWEN_EOS_TOKEN_ID)
    rows = config.get_text_config().vocab_size
    for name, token in (("mask_token_id", mask_id), ("eos_token_id", eos_id)):
        if not 0 <= token < rows:
            raise UserError(name, f"an id below the vocabulary's {rows}", token,
                            f"the folder has no {RECORD_NAME}: give the id" if record is None else "")
    return Checkpoint(
        model=model.to(device).eval(), tokenizer=tokenizer,
        image_processor=make_image_processor(policy, config.vision_config, folder), record=record, images=policy,
        mask_token_id=mask_id, eos_token_id=eos_id, hash=checkpoint_hash(folder, weights), folder=folder,
        backend=backend,
    )


def save_checkpoint(
    model: Any, tokenizer: Any, record: ServingRecord | None, folder: Path,
    state_dict: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Write a folder that `load_checkpoint`, and stock transformers, can load.

    Args:
        model: stock Qwen3-VL; weights are stored in its dtype.
        tokenizer: fast tokenizer, or None.
        record: serving record, or None.
        folder: made when missing.
        state_dict: weights to store in place of the model's own, which may be shards.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder, state_dict=state_dict)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    policy = record.images if record is not None else ImagePolicy()
    make_image_processor(policy, model.config.vision_config).save_pretrained(folder)
    if record is not None:
        record.save(folder)


def load_tokenizer(folder: Path) -> Any:
    """The folder's fast tokenizer.

    Raises:
        UserError: the folder has none.
    """
    from transformers import AutoTokenizer

    if not _has_tokenizer(folder):
        raise UserError(str(folder), "a tokenizer beside the weights (tokenizer.json)", "none",
                        "copy the tokenizer's files into the folder")
    return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def load_chat_codec(folder: Path | str) -> tuple[ChatCodec, ServingRecord | None]:
    """Text and images <-> ids of a checkpoint folder, and its record; weights are not read, and need not be there.

    Raises:
        UserError: no such folder, or one without a configuration or a tokenizer.
    """
    folder = Path(folder)
    config, record = read_model_config(folder), ServingRecord.load(folder)
    tokenizer = load_tokenizer(folder)
    policy = ImagePolicy() if record is None else record.images
    return ChatCodec(
        tokenizer, make_image_processor(policy, config.vision_config, folder), policy, config.image_token_id,
        QWEN_EOS_TOKEN_ID if record is None else record.eos_token_id, _processor_template(folder, tokenizer),
    ), record


def checkpoint_hash(folder: Path, weights: list[Path] | None = None) -> str:
    """First 12 hex digits of the SHA-256 over weights, configuration and record, in that order."""
    digest = hashlib.sha256()
    others = [path for path in (folder / "config.json", folder / RECORD_NAME) if path.exists()]
    for path in [*(weights or _weight_files(folder)), *others]:
        digest.update(path.name.encode() + b"\0")
        with path.open("rb") as file:
            while chunk := file.read(1 << 24):
                digest.update(chunk)
    return digest.hexdigest()[:HASH_LENGTH]


def _load_weights(
    folder: Path, config: Qwen3VLConfig, dtype: torch.dtype | str, attn_implementation: str
) -> Any:
    """The stock model with the folder's weights; every key must be there, and no other."""
    from safetensors import SafetensorError
    from transformers import Qwen3VLForConditionalGeneration
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        loaded: Any = Qwen3VLForConditionalGeneration.from_pretrained(
            folder, config=config, dtype=dtype, attn_implementation=attn_implementation, local_files_only=True,
            use_safetensors=True, output_loading_info=True, ignore_mismatched_sizes=True,
        )
    except SafetensorError as error:
        raise UserError(f"{folder}: weights", "readable safetensors", str(error), "copy the folder again") from None
    model, report = loaded
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if report[kind]:
            raise UserError(f"{folder}: weights", "exactly Qwen3-VL's keys and shapes",
                            f"{kind.replace('_', ' ')}: {', '.join(map(str, sorted(report[kind])[:3]))}")
    return model


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).exists() for name in TOKENIZER_FILES)


def _weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder: one, or the shards its index names."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if index.exists() and not single.exists():
        files = [folder / name for name in sorted(set(read_json_object(index).get("weight_map", {}).values()))]
    else:
        files = [single]
    for file in files:
        if not file.is_file():
            raise UserError(str(folder), f"weights in {file.name}", "no such file", "the folder is not complete")
    return files


def _settle(name: str, recorded: Any, asked: Any, default: Any) -> Any:
    """The recorded value, else the caller's, else the default; a caller who contradicts the record is refused."""
    if recorded is not None:
        if asked is not None and asked != recorded:
            raise UserError(name, f"{recorded} (the checkpoint's record)", str(asked), "leave it out")
        return recorded
    return default if asked is None else asked


def _processor_template(folder: Path, tokenizer: Any) -> str | None:
    """Chat template that older folders keep with the processor instead of the tokenizer; None when not needed."""
    path = folder / "chat_template.json"
    if getattr(tokenizer, "chat_template", None) or not path.exists():
        return None
    template = read_json_object(path).get("chat_template")
    return template if isinstance(template, str) else None
