"""One sample as it stands in the file and as a model sees it, and a picture of it with its waypoints."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from training.data.sources import ConversationIndex
from training.data.tokens import TokenCounter
from wamdiff2_core.chat import IMAGE_PLACEHOLDER, split_at_images
from wamdiff2_core.config import CameraSpec, PlanningTask
from wamdiff2_core.dataset import Sample
from wamdiff2_core.errors import UserError
from wamdiff2_core.tasks.planning import parse_waypoints
from wamdiff2_core.tasks.recognise import asked_waypoints
from wamdiff2_core.tasks.text import AnswerError

if TYPE_CHECKING:
    from PIL.Image import Image

_SHEET_HEIGHT_PX = 360
_GREEN, _GREY, _WHITE = (64, 200, 96), (120, 120, 120), (255, 255, 255)


def find_sample(index: ConversationIndex, wanted: str) -> int:
    """Number, from 0, of the sample with this id, or of the sample with this number, from 1, where no id fits.

    Raises:
        UserError: there is neither.
    """
    for number in range(len(index)):
        if wanted.encode() in index.raw(number):
            found = index.object(number)
            if isinstance(found, Mapping) and str(found.get("id")) == wanted:
                return number
    if wanted.isdigit() and 1 <= int(wanted) <= len(index):
        return int(wanted) - 1
    raise UserError("sample", f"an id in {index.file}, or a number from 1 to {len(index)}", wanted)


@dataclass(frozen=True)
class Part:
    """A piece of the prompt as it is laid out: who says it, the text or the image, and its size in tokens if known."""

    role: str
    text: str | None
    image: int | None = None
    tokens: int | None = None


def layout(sample: Sample, grid_tokens: list[int] | None = None, counter: TokenCounter | None = None) -> list[Part]:
    """The sample's parts in the order a model sees them, the answer last.

    Args:
        sample: one sample.
        grid_tokens: image tokens of each image, if known.
        counter: counts the tokens of texts, each alone: at the seams of a prompt they may join differently.
    """
    exchange = sample.conversation.exchange
    parts: list[Part] = []
    images = 0

    def add(role: str, text: str) -> None:
        parts.append(Part(role, text, tokens=None if counter is None else len(counter.codec.encode_text(text))))

    if exchange.system is not None:
        add("system", exchange.system)
    turns = [(turn.role, turn.text) for turn in exchange.history] + [("human", exchange.question)]
    for role, text in turns:
        for piece in split_at_images(text, text.count(IMAGE_PLACEHOLDER)) if role == "human" else [text]:
            if piece is not None:
                add(role, piece)
                continue
            parts.append(Part(role, None, images, None if grid_tokens is None else grid_tokens[images]))
            images += 1
    add("gpt (learnt)", exchange.answer)
    return parts


def waypoints_of(sample: Sample, y_axis: str) -> np.ndarray | None:
    """(T, 2) waypoints of a planning sample in metres, x forward, y left; None for any other sample.

    Args:
        sample: one sample.
        y_axis: `left` or `right`, as the task's text has it.
    """
    asked = asked_waypoints(sample.prompt)
    if asked is None:
        return None
    try:
        task = PlanningTask(waypoints=asked, y_axis="left" if y_axis == "left" else "right")
        return parse_waypoints(sample.answer, task).xy_m
    except (AnswerError, UserError):
        return None


def text_y_axis(sample: Sample) -> str:
    """Direction of y in a sample's text, by its prompt: NAVSIM's have y to the left, all others to the right."""
    return "left" if "current velocity is: (" in sample.prompt else "right"


def contact_sheet(images: Iterable[np.ndarray], xy_m: np.ndarray | None, rig: tuple[CameraSpec, ...] = ()) -> Image:
    """All images side by side, waypoints drawn on those whose camera is known, and a top view of them.

    Args:
        images: (H, W, 3) uint8 RGB.
        xy_m: (T, 2) waypoints, base_link, x forward, y left; None draws none.
        rig: cameras of the images, in their order.
    """
    from PIL import Image, ImageDraw

    tiles: list[Image.Image] = []
    for number, rgb in enumerate(images):
        tile = Image.fromarray(rgb)
        if xy_m is not None and number < len(rig):
            camera, pencil = rig[number], ImageDraw.Draw(tile)
            scale = np.array([tile.width / camera.width_px, tile.height / camera.height_px])
            for u, v in ground_to_pixels(camera, xy_m) * scale:
                radius = max(1.5, tile.height / 80)
                if 0 <= u < tile.width and 0 <= v < tile.height:
                    pencil.ellipse((u - radius, v - radius, u + radius, v + radius), fill=_GREEN, outline=_WHITE)
        tiles.append(tile.resize((max(1, round(tile.width * _SHEET_HEIGHT_PX / tile.height)), _SHEET_HEIGHT_PX)))
    if xy_m is not None:
        tiles.append(top_view(xy_m))
    sheet = Image.new("RGB", (max(1, sum(tile.width for tile in tiles)), _SHEET_HEIGHT_PX))
    left = 0
    for tile in tiles:
        sheet.paste(tile, (left, 0))
        left += tile.width
    return sheet


def top_view(xy_m: np.ndarray) -> Image:
    """Waypoints from above, the vehicle at the bottom heading up, rings every 10 m."""
    from PIL import Image, ImageDraw

    view = Image.new("RGB", (_SHEET_HEIGHT_PX, _SHEET_HEIGHT_PX), (24, 24, 24))
    pencil = ImageDraw.Draw(view)
    reach_m = max(10.0, float(np.abs(xy_m).max()) * 1.1)
    px_per_m = _SHEET_HEIGHT_PX * 0.9 / reach_m
    origin = np.array([_SHEET_HEIGHT_PX / 2, _SHEET_HEIGHT_PX * 0.95])
    for ring_m in range(10, int(reach_m) + 1, 10):
        radius = ring_m * px_per_m
        pencil.ellipse((*(origin - radius), *(origin + radius)), outline=_GREY)
    points = [tuple(origin), *(tuple(origin - np.array([y, x]) * px_per_m) for x, y in xy_m)]
    pencil.line(points, fill=_GREEN, width=2)
    for x, y in points:
        pencil.ellipse((x - 3, y - 3, x + 3, y + 3), fill=_GREEN, outline=_WHITE)
    return view


def ground_to_pixels(camera: CameraSpec, xy_m: np.ndarray) -> np.ndarray:
    """(T, 2) pixels, u right and v down, of points on flat ground; NaN for those behind the camera.

    Args:
        camera: a camera of the rig.
        xy_m: (T, 2) base_link, x forward, y left, metres; the ground is at z = 0.
    """
    roll, pitch, yaw = (math.radians(angle) for angle in (camera.roll_deg, camera.pitch_deg, camera.yaw_deg))
    (cr, cp, cy), (sr, sp, sy) = (np.cos([roll, pitch, yaw]), np.sin([roll, pitch, yaw]))
    base_from_camera = np.array([
        [cy * cp, cy * sp * sr - sy * cr, cy * sp * cr + sy * sr],
        [sy * cp, sy * sp * sr + cy * cr, sy * sp * cr - cy * sr],
        [-sp, cp * sr, cp * cr],
    ])
    points = np.column_stack([xy_m, np.zeros(len(xy_m))]) - [camera.x_m, camera.y_m, camera.z_m]
    x, y, z = (points @ base_from_camera).T  # forward, left, up of the camera
    ahead = np.where(x > 0.1, x, np.nan)
    u = camera.width_px / 2 - camera.focal_px * y / ahead
    v = camera.height_px / 2 - camera.focal_px * z / ahead
    return np.stack([u, v], axis=1)
