"""Qwen3-VL's three-axis rotary positions, computed for each request.

Text counts up on all three axes; an image holds one time, its rows and its columns, and takes max(rows, columns) of
the count. Nothing is remembered between requests: transformers keeps `rope_deltas` on the model, and a text request
after an image request would use the image's.
"""

from __future__ import annotations

import torch
from torch import Tensor


def prompt_positions(input_ids: Tensor, image_grid_thw: Tensor | None, image_token_id: int, merge_size: int) -> Tensor:
    """Positions of a prompt.

    Args:
        input_ids: (P,) long, unpadded.
        image_grid_thw: (images, 3) patches in time, height and width, or None.
        image_token_id: id of the image tokens.
        merge_size: patches merged along each side.

    Returns:
        (3, P) long: time, height, width.
    """
    length = len(input_ids)
    positions = torch.arange(length).repeat(3, 1)
    if image_grid_thw is None or len(image_grid_thw) == 0:
        return positions.to(input_ids.device)
    image_slots = (input_ids == image_token_id).cpu().nonzero()[:, 0].tolist()
    start = 0
    for frames, height, width in image_grid_thw.tolist():
        rows, columns = height // merge_size, width // merge_size
        count = frames * rows * columns
        first = image_slots[start]
        start += count
        offset = int(positions[0, first])
        time, row, column = torch.meshgrid(
            torch.arange(frames), torch.arange(rows), torch.arange(columns), indexing="ij"
        )
        positions[:, first : first + count] = torch.stack([time, row, column]).reshape(3, -1) + offset
        after = length - first - count
        positions[:, first + count :] = torch.arange(after) + offset + max(rows, columns)
    return positions.to(input_ids.device)


def answer_positions(positions: Tensor, length: int) -> Tensor:
    """(3, R) positions of an answer of `length` tokens after a prompt at `positions` (3, P); equal on all axes."""
    start = positions.max() + 1
    return (start + torch.arange(length, device=positions.device)).expand(3, -1)
