"""COCO detection to grounding samples.

Layout (COCO's download): `SRC/annotations/instances_train2017.json` and `SRC/train2017/*.jpg`. Boxes are (x, y, width,
height) in pixels; prompt and answer are the `grounding` task's, y first on a grid of 1000 x 1000.

Descriptions are names of categories. An image gives one sample that asks for all its categories, or one for each of
them; the paper's 117,266 samples are as many as there are training images with annotations, so it is taken to ask for
all at once. Crowds and boxes without an area are left out; an image with nothing else gives no sample.
"""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from typing import Any, Literal

from training.data.converters.common import Writer, existing, read_json
from wamdiff2_core.errors import UserError
from wamdiff2_core.tasks.grounding import (
    Detection,
    Grounding,
    GroundingRequest,
    box_from_pixels,
    format_grounding,
    grounding_prompt,
)


def convert(src: Path, writer: Writer, split: str = "train2017", per: Literal["image", "category"] = "image") -> None:
    """Write the grounding samples of a split.

    Args:
        src: folder with `annotations` and the images' folder.
        writer: where to.
        split: `train2017` or `val2017`.
        per: whether a sample asks for all categories of an image or for one.

    Raises:
        UserError: the layout is not there.
    """
    file = src / "annotations" / f"instances_{split}.json"
    data = read_json(file, f"COCO's layout, annotations/instances_{split}.json")
    existing(src / split, f"COCO's layout, {split}")
    try:
        names = {int(category["id"]): str(category["name"]) for category in data["categories"]}
        boxes: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for annotation in data["annotations"]:
            boxes[int(annotation["image_id"])].append(annotation)
        images = sorted(data["images"], key=lambda image: int(image["id"]))
    except (KeyError, TypeError, ValueError) as error:
        got = f"{type(error).__name__}: {error}"
        raise UserError(str(file), "COCO's images, annotations and categories", got) from None
    for image in images:
        if writer.full:
            return
        _convert_image(image, boxes[int(image["id"])], names, src / split, writer, per)


def _convert_image(
    image: dict[str, Any], annotations: list[dict[str, Any]], names: dict[int, str], folder: Path, writer: Writer,
    per: Literal["image", "category"],
) -> None:
    objects: list[tuple[int, tuple[int, int, int, int]]] = []
    try:
        width_px, height_px = int(image["width"]), int(image["height"])
        for annotation in annotations:
            box = [float(value) for value in annotation["bbox"]]
            if annotation.get("iscrowd"):
                writer.leave_out("crowd")
            elif len(box) != 4 or not all(map(math.isfinite, box)) or not min(box[2:]) > 0:
                writer.leave_out("box without an area")
            else:
                category = int(annotation["category_id"])
                if category not in names:
                    raise ValueError(f"unknown category {category}")
                x, y, w, h = box
                objects.append((category, box_from_pixels(x, y, x + w, y + h, width_px, height_px)))
        path = folder / str(image["file_name"])
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        writer.problem("bad annotation", f"image {image.get('id')}: {type(error).__name__}: {error}")
        return
    if not objects:
        writer.leave_out("image without objects")
        return
    objects.sort()
    categories = sorted({category for category, _ in objects})
    groups = [categories] if per == "image" else [[category] for category in categories]
    for group in groups:
        asked = ", ".join(names[category] for category in group)
        name = f"coco-{image['id']}" + ("" if per == "image" else f"-{group[0]}")
        try:
            prompt = grounding_prompt(GroundingRequest(asked))
            found = tuple(Detection(box, names[category]) for category, box in objects if category in group)
        except ValueError as error:
            writer.problem("bad category", f"{name}: {error}")
            continue
        writer.add(name, [path], prompt, format_grounding(Grounding(found)))
