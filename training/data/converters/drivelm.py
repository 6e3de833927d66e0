"""DriveLM-nuScenes: questions about key frames to samples with one view or six.

Layout (DriveLM's data preparation): `SRC/QA_dataset_nus/v1_1_train_nus.json` (or the JSON file itself) and
`SRC/nuscenes/samples/CAM_*/...jpg`. The JSON maps scene tokens to `key_frames`, those to `QA` in four groups of
`{"Q", "A"}` and to `image_paths` by camera, relative to the JSON's folder.

Questions and answers are unchanged; the prompt is the `drivebench` task's.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from training.data.converters.common import Writer, existing, read_json
from wamdiff2_core.errors import UserError
from wamdiff2_core.tasks.drivebench import VIEWS, DriveBenchRequest, drivebench_prompt

GROUPS = ("perception", "prediction", "planning", "behavior")
_TAG = re.compile(r"<c\d+,\s*(CAM_[A-Z_]+),")
_DEFAULT_FILE = Path("QA_dataset_nus") / "v1_1_train_nus.json"


def views_of(question: str, choice: Literal["auto", "six", "front"]) -> tuple[str, ...]:
    """The cameras that a question is shown with.

    Args:
        question: tags such as `<c1,CAM_BACK,1088.3,497.5>` name cameras.
        choice: `six` and `front` are as they say; `auto` is the one camera that all tags name, else six.
    """
    if choice == "front":
        return VIEWS[:1]
    named = set(_TAG.findall(question))
    if choice == "auto" and len(named) == 1 and named <= set(VIEWS):
        return tuple(named)
    return VIEWS


def convert(src: Path, writer: Writer, views: Literal["auto", "six", "front"] = "auto") -> None:
    """Write a sample for each question.

    Args:
        src: folder with `QA_dataset_nus`, or the JSON file.
        writer: where to.
        views: see `views_of`.

    Raises:
        UserError: the layout is not there, or the file is not a mapping of scenes.
    """
    file = src if src.is_file() else existing(src / _DEFAULT_FILE, f"DriveLM's layout, {_DEFAULT_FILE}",
                                              "or name the JSON file itself")
    scenes = read_json(file, "DriveLM's JSON file")
    if not isinstance(scenes, dict):
        raise UserError(str(file), "a mapping of scenes", type(scenes).__name__)
    for scene_token, scene in scenes.items():
        for frame_token, frame in _key_frames(scene, scene_token, writer):
            if writer.full:
                return
            _convert_frame(f"{scene_token}_{frame_token}", frame, file.parent, writer, views)


def _key_frames(scene: Any, token: str, writer: Writer) -> list[tuple[str, Any]]:
    frames = scene.get("key_frames") if isinstance(scene, dict) else None
    if not isinstance(frames, dict):
        writer.problem("bad scene", f"{token}: expected key_frames")
        return []
    return list(frames.items())


def _convert_frame(
    name: str, frame: Any, folder: Path, writer: Writer, choice: Literal["auto", "six", "front"]
) -> None:
    try:
        paths = {view: folder / path for view, path in frame["image_paths"].items()}
        pairs = [(group, pair) for group in GROUPS for pair in frame["QA"].get(group, [])]
    except (KeyError, TypeError, AttributeError) as error:
        writer.problem("bad frame", f"{name}: {type(error).__name__}: {error}")
        return
    for number, (group, pair) in enumerate(pairs):
        question, answer = (pair.get("Q"), pair.get("A")) if isinstance(pair, dict) else (None, None)
        if not isinstance(question, str) or not isinstance(answer, str):
            writer.problem("bad question", f"{name}_{number}: expected texts Q and A, got {question!r}, {answer!r}")
            continue
        if not answer.strip():
            writer.leave_out("no answer")
            continue
        views = views_of(question, choice)
        if missing := [view for view in views if view not in paths]:
            writer.problem("bad frame", f"{name}: no {missing[0]} among its images")
            continue
        try:
            prompt = drivebench_prompt(DriveBenchRequest(question, views))
        except UserError as error:
            writer.problem("bad question", f"{name}_{number}: {error}")
            continue
        writer.add(f"{name}_{number}", [paths[view] for view in views], prompt, answer, {"group": group})
