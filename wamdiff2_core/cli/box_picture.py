"""Boxes drawn on a picture."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from wamdiff2_core.outputs import disk_errors_named
from wamdiff2_core.tasks.grounding import Detection, pixels_from_box

GOLDEN_TURN = 0.618  # hues of successive labels lie far apart


def draw_boxes(rgb: np.ndarray, detections: Sequence[Detection], scores: Sequence[float]) -> np.ndarray:
    """A copy of the picture with every box, its label and its score; one colour a label.

    Args:
        rgb: (H, W, 3) uint8.
        detections: boxes on the grid.
        scores: of each, in [0, 1].

    Returns:
        (H, W, 3) uint8.
    """
    from PIL import Image, ImageDraw, ImageFont

    picture = Image.fromarray(rgb)
    canvas = ImageDraw.Draw(picture)
    hues: dict[str, float] = {}
    line_px = max(1, round(min(picture.size) / 200))
    font = ImageFont.load_default(max(10, round(min(picture.size) / 45)))
    for found, score in zip(detections, scores, strict=True):
        hue = hues.setdefault(found.label, len(hues) * GOLDEN_TURN % 1.0)
        red, green, blue = (round(255 * part) for part in colorsys.hsv_to_rgb(hue, 0.9, 1.0))
        x_min, y_min, x_max, y_max = pixels_from_box(found.box, *picture.size)
        edges = (x_min, y_min, max(x_min, x_max - 1), max(y_min, y_max - 1))  # the last pixel inside each far edge
        canvas.rectangle(edges, outline=(red, green, blue), width=line_px)
        text = f"{found.label} {score:.2f}".encode("latin-1", "replace").decode("latin-1")  # what the font can draw
        corner = x_min + line_px, y_min + line_px
        canvas.rectangle(canvas.textbbox(corner, text, font), fill=(red, green, blue))
        bright = 0.3 * red + 0.6 * green + 0.1 * blue > 127
        canvas.text(corner, text, "black" if bright else "white", font)
    return np.asarray(picture)


def save_boxes(file: Path, rgb: np.ndarray, detections: Sequence[Detection], scores: Sequence[float]) -> None:
    """Write `draw_boxes` as a PNG file.

    Raises:
        OSError: the disk is full or fails; it names the file.
    """
    from PIL import Image

    with disk_errors_named(file):
        Image.fromarray(draw_boxes(rgb, detections, scores)).save(file, format="PNG")
