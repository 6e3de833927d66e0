"""A small random model with the nano's tokenizer, and a small conversation set with images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from training.data.encode import EncodedSample
from wamdiff2_core.chat import ChatRequest
from wamdiff2_core.config import ImagePolicy
from wamdiff2_core.conversations import read_rgb
from wamdiff2_core.dataset import DatasetWriter, Sample, read_dataset
from wamdiff2_core.model.positions import prompt_positions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import PreTrainedTokenizerBase, Qwen3VLForConditionalGeneration

    from training.forward import AnswerModel
    from training.stages.stage import TokenIds
    from wamdiff2_core.chat import ChatCodec

POLICY = ImagePolicy(size_px=(64, 32), min_pixels=2048, max_pixels=2048)
PROMPTS = (
    "Target: [10.0, -0.5]. Command: follow the road\n",
    "Target: [9.8, 12.3] [19.1, -20.4]. Command: go left at the next intersection\nCurrent velocity is: 12.5",
    "Go.",
)
ANSWERS = ("1.0,2.0", "10.5,-3.4,20.1,-7.7", "3.3")


@pytest.fixture(scope="session")
def nano_tokenizer() -> PreTrainedTokenizerBase:
    from training.tokenizer import build_tokenizer

    return build_tokenizer()


@pytest.fixture(scope="session")
def small_model(nano_tokenizer: PreTrainedTokenizerBase) -> Qwen3VLForConditionalGeneration:
    """Two text and two vision layers, fp32; weights large enough that attention is not uniform."""
    import torch

    from training.model_factory import NanoShape, build_model

    shape = NanoShape(text_width=48, text_layers=2, text_heads=2, text_mlp=64, head_dim=24, vision_width=32,
                      vision_layers=2, vision_heads=2, vision_mlp=48, deepstack_layers=(0,))
    model = build_model(shape, nano_tokenizer, seed=1).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim >= 2:
                weight.mul_(4.0 if "embed" not in name else 20.0)
    return model


@pytest.fixture(scope="session")
def codec(nano_tokenizer: PreTrainedTokenizerBase, small_model: Qwen3VLForConditionalGeneration) -> ChatCodec:
    from wamdiff2_core.chat import ChatCodec
    from wamdiff2_core.images import make_image_processor

    processor = make_image_processor(POLICY, small_model.config.vision_config)
    return ChatCodec(nano_tokenizer, processor, POLICY, small_model.config.image_token_id, nano_tokenizer.eos_token_id)


@pytest.fixture(scope="session")
def picture_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three samples of different lengths, one random image each."""
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    with DatasetWriter(folder) as writer:
        for index, (prompt, answer) in enumerate(zip(PROMPTS, ANSWERS, strict=True)):
            image = rng.integers(0, 256, (32, 64, 3), dtype=np.uint8)
            writer.add(str(index), f"Look:\n<image>\n{prompt}", answer, [image])
    return folder / "samples.jsonl"


@pytest.fixture(scope="session")
def text_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same samples without images."""
    folder = tmp_path_factory.mktemp("text")
    with DatasetWriter(folder) as writer:
        for index, (prompt, answer) in enumerate(zip(PROMPTS, ANSWERS, strict=True)):
            writer.add(str(index), prompt, answer)
    return folder / "samples.jsonl"


@pytest.fixture(scope="session")
def encoded(codec: ChatCodec, small_model: Qwen3VLForConditionalGeneration, picture_set: Path) -> list[EncodedSample]:
    """The samples of `picture_set`, encoded without the encoder under test."""
    return [encode(sample, codec, small_model) for sample in read_dataset(picture_set)]


def encode(sample: Sample, codec: ChatCodec, model: Qwen3VLForConditionalGeneration) -> EncodedSample:
    """One sample by the parts that serving uses."""
    import torch

    images = tuple(read_rgb(path) for path in sample.images)
    inputs = codec.encode(ChatRequest(sample.prompt, images))
    positions = prompt_positions(inputs.input_ids, inputs.image_grid_thw, model.config.image_token_id, 2)
    answer = torch.tensor(codec.encode_answer(sample.answer))
    return EncodedSample(inputs.input_ids, positions, answer, inputs.pixel_values, inputs.image_grid_thw, "", "")


@pytest.fixture
def student(small_model: Qwen3VLForConditionalGeneration) -> Iterator[AnswerModel]:
    """The small model as training sees it."""
    from training.forward import AnswerModel

    config = small_model.model.language_model.config
    serving = config._attn_implementation
    yield AnswerModel(small_model)
    config._attn_implementation = serving


@pytest.fixture
def token_ids(nano_tokenizer: PreTrainedTokenizerBase, small_model: Qwen3VLForConditionalGeneration) -> TokenIds:
    from training.stages.stage import TokenIds

    t = nano_tokenizer
    return TokenIds(t.pad_token_id, t.eos_token_id, t.mask_token_id, small_model.config.image_token_id)
