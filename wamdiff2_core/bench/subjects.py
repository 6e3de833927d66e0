"""What is measured: a checkpoint with its own prompts, or random weights of a named shape.

Random weights are built in their final dtype without the stock initialisation, which for two billion parameters takes
longer than the measurement and twice the memory. What a step costs does not depend on their values.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from wamdiff2_core.chat import IMAGE_PLACEHOLDER, ChatRequest, ModelInputs
from wamdiff2_core.config import CameraSpec, DecodeConfig
from wamdiff2_core.dataset import read_dataset, read_images, read_picture, spread_over
from wamdiff2_core.errors import UserError, unknown_name
from wamdiff2_core.model.backends import AUTO, Backend
from wamdiff2_core.model.block_model import BlockModel
from wamdiff2_core.model.checkpoint import Checkpoint, check_device, load_checkpoint
from wamdiff2_core.serving_record import QWEN_EOS_TOKEN_ID, QWEN_MASK_TOKEN_ID, ServingRecord
from wamdiff2_core.tasks.planning import planning_prompt
from wamdiff2_core.types import CameraFrame, EgoState, Navigation, Observation

BLOCK_SIZES = (4, 8, 16, 32)
QWEN_VOCABULARY = 151936
QUESTION = f"{IMAGE_PLACEHOLDER}\nWhat is ahead?"
ONE_A_STEP = 2**16  # a step budget beyond every block
PICTURE_SIZE = (960, 544)  # of a checkpoint that names no camera
_PATTERN = 1_000_003  # a prime: rows of a weight matrix do not repeat one another
_WEIGHT_STD = 0.02


@dataclass(frozen=True)
class Shape:
    """Random weights of one form.

    Attributes:
        text, vision: parts of a `Qwen3VLConfig`.
        dtype: of the weights; None is float32 on a CPU and bfloat16 on an accelerator.
        image_px: (width, height) of the prompt's image, or None for a prompt of text.
        prompt_text: text tokens of the prompt, beside those of the image.
        new_tokens: of an answer.
    """

    text: dict[str, Any]
    vision: dict[str, Any]
    dtype: torch.dtype | None = None
    image_px: tuple[int, int] | None = None
    prompt_text: int = 128
    new_tokens: int = 64

    def config(self) -> Any:
        """The stock `Qwen3VLConfig`; embedding and head are one matrix."""
        from transformers import Qwen3VLConfig

        shared = {"vocab_size": QWEN_VOCABULARY, "tie_word_embeddings": True, "eos_token_id": QWEN_EOS_TOKEN_ID}
        return Qwen3VLConfig(
            text_config=self.text | shared, vision_config=self.vision | {"out_hidden_size": self.text["hidden_size"]},
            image_token_id=151655, video_token_id=151656, vision_start_token_id=151652, vision_end_token_id=151653,
            tie_word_embeddings=True,
        )


def _rope(theta: float, sections: list[int]) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta, "mrope_interleaved": True, "mrope_section": sections}


SHAPES = {
    "tiny-qwen-vocab": Shape(
        text={
            "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 4096,
            "rope_parameters": _rope(1e4, [6, 5, 5]),
        },
        vision={
            "depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 4, "num_position_embeddings": 256,
            "deepstack_visual_indexes": [0],
        },
    ),
    "2b": Shape(
        text={
            "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16,
            "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 262144,
            "rope_parameters": _rope(5e6, [24, 20, 20]),
        },
        vision={
            "depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16,
            "num_position_embeddings": 2304, "deepstack_visual_indexes": [5, 11, 17],
        },
        dtype=torch.bfloat16, image_px=(960, 544),
    ),
}


@dataclass
class Subject:
    """A model and what it is asked.

    Attributes:
        name: folder or shape.
        model: stock Qwen3-VL in evaluation mode.
        prompts: requests; at least one.
        mask_token_id: fills open positions.
        eos_token_id: ends an answer in service; measured answers have a fixed length.
        decode: how blocks are decoded, of the largest block size measured.
        record: serving record; None without one, and for a shape.
        load_ms: wall clock of loading or building.
        new_tokens: length of every answer; None: each prompt's own, as the model answers it.
        backend: what runs the model in our rows, or its name.
    """

    name: str
    model: Any
    prompts: Sequence[ModelInputs]
    mask_token_id: int
    eos_token_id: int
    decode: DecodeConfig
    record: ServingRecord | None
    load_ms: float
    new_tokens: int | None = None
    backend: Backend | str = AUTO

    _made: tuple[Backend | str, BlockModel] | None = field(default=None, init=False, repr=False)

    @property
    def blocks(self) -> BlockModel:
        """The model as our rows run it; made once for a backend."""
        if self._made is None or self._made[0] is not self.backend:
            self._made = self.backend, BlockModel(self.model, self.backend)
        return self._made[1]

    @property
    def device(self) -> torch.device:
        """Where the model lives."""
        device: torch.device = self.model.device
        return device


def find_shape(name: str) -> Shape:
    """The shape of that name.

    Raises:
        UserError: there is none.
    """
    if name not in SHAPES:
        raise unknown_name("shape", name, SHAPES)
    return SHAPES[name]


def random_subject(
    name: str, device: str = "cpu", dtype: torch.dtype | None = None, backend: str = "auto"
) -> Subject:
    """Random weights of a shape, and one random prompt.

    Decoding fixes one token a step, the worst case of block diffusion: random weights are never sure of anything.

    Args:
        name: of `SHAPES`.
        device: torch device.
        dtype: of the weights; None is the shape's.
        backend: what runs the model.

    Raises:
        UserError: no such shape or device.
    """
    shape = find_shape(name)
    check_device(device)
    default = torch.float32 if torch.device(device).type == "cpu" else torch.bfloat16
    started = time.perf_counter()
    model = random_model(shape.config(), dtype or shape.dtype or default, device)
    decode = DecodeConfig(denoising_steps=ONE_A_STEP, strategy="low_confidence_static")
    return Subject(
        name, model, [random_prompt(model.config, shape.prompt_text, shape.image_px)], QWEN_MASK_TOKEN_ID,
        QWEN_EOS_TOKEN_ID, decode, None, (time.perf_counter() - started) * 1e3, shape.new_tokens, backend,
    )


def random_model(config: Any, dtype: torch.dtype, device: str) -> Any:
    """A stock model with random weights, made where it will live; embedding and head stay one matrix if tied."""
    import transformers
    from transformers.initialization import no_init_weights

    # not by way of the meta device: tables that are no weights, such as rotary frequencies, would be lost
    with no_init_weights(), torch.device(device):
        stock: Any = transformers.Qwen3VLForConditionalGeneration
        model = stock._from_config(config, dtype=dtype, attn_implementation="sdpa")
    model.tie_weights()
    pattern = torch.randn(_PATTERN, generator=torch.Generator().manual_seed(0)).mul_(_WEIGHT_STD).to(device, dtype)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1:
                weight.fill_(0.0 if name.endswith("bias") else 1.0)
                continue
            for part in weight.view(-1).split(_PATTERN):
                part.copy_(pattern[: len(part)])
    return model.eval()


def random_prompt(config: Any, text_tokens: int, image_px: tuple[int, int] | None = None) -> ModelInputs:
    """Random words, after a random image if there is one.

    Args:
        config: stock `Qwen3VLConfig`.
        text_tokens: words, none of them a special token.
        image_px: (width, height), cut down to whole merged patches; None for text alone.
    """
    generator = torch.Generator().manual_seed(1)
    # special tokens stand at either end of a vocabulary
    vocabulary = int(config.get_text_config().vocab_size)
    words = torch.randint(vocabulary // 4, vocabulary // 2, (text_tokens,), generator=generator)
    if image_px is None:
        return ModelInputs(words)
    vision = config.vision_config
    side = vision.patch_size * vision.spatial_merge_size
    columns, rows = (pixels // side * vision.spatial_merge_size for pixels in image_px)
    patch_dim = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    pixels = torch.randn(rows * columns, patch_dim, generator=generator)
    image = torch.full((rows * columns // vision.spatial_merge_size**2,), config.image_token_id)
    opened = torch.tensor([config.vision_start_token_id]), image, torch.tensor([config.vision_end_token_id])
    return ModelInputs(torch.cat([*opened, words]), pixels, torch.tensor([[1, rows, columns]]))


def checkpoint_subject(
    folder: Path, device: str = "cpu", dtype: torch.dtype | None = None, image: Path | None = None,
    data: Path | None = None, samples: int = 1, backend: str = "auto",
) -> Subject:
    """A checkpoint with the prompts of a file, or one of its own kind.

    Without `data`, a checkpoint that plans gets its planning prompt on `image`, or on a made-up picture; any other is
    asked what is ahead.

    Args:
        folder: checkpoint with a tokenizer.
        device: torch device.
        dtype: of the weights; None is that of `load_checkpoint`.
        image: picture file.
        data: conversation file.
        samples: of `data`, spread over the file.
        backend: what runs the model.

    Raises:
        UserError: folder, picture or file is missing or cannot be read.
    """
    if image is not None:
        read_picture(image, "image")  # told before the weights are read, as the file is
    asked = [] if data is None else _requests_of(data, samples)
    started = time.perf_counter()
    checkpoint = load_checkpoint(folder, device=device, dtype=dtype)
    load_ms = (time.perf_counter() - started) * 1e3
    asked = asked or [_own_request(checkpoint, image)]
    decode = checkpoint.record.decode if checkpoint.record is not None else DecodeConfig()
    return Subject(
        str(folder), checkpoint.model, [checkpoint.chat.encode(request) for request in asked],
        checkpoint.mask_token_id, checkpoint.eos_token_id,
        replace(decode, grammar="off", temperature=0.0, deadline_ms=0.0), checkpoint.record, load_ms, backend=backend,
    )


def observation(rig: Sequence[CameraSpec], image: Path | None = None) -> Observation:
    """A car at 6 m/s on a straight road, with `image`, or a made-up picture, in every camera.

    Raises:
        UserError: the picture cannot be read, or has another size than the rig's.
    """
    frames = []
    for camera in rig or (CameraSpec(),):
        size = camera.width_px, camera.height_px
        rgb = picture(size) if image is None else read_picture(image, "image")
        if rig and rgb.shape[1::-1] != size:
            raise UserError("image", f"{size[0]} x {size[1]} pixels, as the rig says",
                            f"{rgb.shape[1]} x {rgb.shape[0]}", "resize the picture")
        frames.append(CameraFrame(rgb, 0, camera.name))
    return Observation(
        tuple(frames), EgoState(velocity_mps=np.array([6.0, 0.0])), Navigation(np.array([[10.0, 0.0], [20.0, 0.0]]))
    )


def moved(seen: Observation, columns: int) -> Observation:
    """The same with every picture moved to the right, round the edge: another picture, which no cache knows."""
    frames = tuple(replace(frame, rgb=np.roll(frame.rgb, columns, axis=1)) for frame in seen.frames)
    return replace(seen, frames=frames)


def picture(size: tuple[int, int]) -> np.ndarray:
    """(H, W, 3) uint8: smooth colours of no meaning, the same every time."""
    from PIL import Image

    coarse = np.random.default_rng(0).integers(0, 255, (6, 8, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC))


def _own_request(checkpoint: Checkpoint, image: Path | None) -> ChatRequest:
    record = checkpoint.record
    if record is not None and record.planning is not None:
        seen = observation(record.rig, image)
        return ChatRequest(planning_prompt(seen, record.planning), tuple(frame.rgb for frame in seen.frames))
    return ChatRequest(QUESTION, (picture(PICTURE_SIZE) if image is None else read_picture(image, "image"),))


def _requests_of(data: Path, count: int) -> list[ChatRequest]:
    samples = read_dataset(data)
    if not samples:
        raise UserError("data", "a file with samples", f"{data} (empty)")
    return [
        ChatRequest(
            sample.prompt, tuple(read_images(sample, f"{data}: sample {sample.conversation.id!r}")),
            sample.conversation.system, sample.history,
        )
        for sample in spread_over(samples, count)
    ]
