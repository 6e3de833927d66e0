"""Published layouts, built small, become conversation files: frames, axes, rounding, commands, and what is left out."""

from __future__ import annotations

import gzip
import json
import math
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from training.data.check import FileCheck
from training.data.command import data
from training.data.converters import coco, drivelm, navsim, simlingo
from training.data.converters.common import Writer
from wamdiff2_core.cli.main import as_command
from wamdiff2_core.dataset import Sample, read_dataset
from wamdiff2_core.errors import UserError


def convert(*arguments: object) -> int:
    return int(as_command(data, "data")(["convert", *map(str, arguments)], standalone_mode=False))


def picture(path: Path, size: tuple[int, int] = (64, 32)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size).save(path)
    return path


def written(out: Path) -> list[Sample]:
    """What a converter wrote, after `data check` has found nothing wrong with it but that it may be empty."""
    report = FileCheck(out).run()
    assert set(report.counts) <= {"empty_file"}, report.examples
    samples = read_dataset(out)
    assert all(path.is_file() for sample in samples for path in sample.images)
    return samples


# --- NAVSIM -----------------------------------------------------------------------------------------------------------

LOG = "2021.05.25.14.16.10_veh-35_01690_02183"


def navsim_frame(root: Path, number: int, yaw: float = math.pi / 2, command: int = 0, **changes: Any) -> dict[str, Any]:
    """The car goes north at 4 m/s, and drifts to the east, its right."""
    token = f"token{number:02}"
    cams = {}
    for camera in ("CAM_F0", "CAM_L0", "CAM_R0"):
        name = f"{LOG}/{camera}/{token}.jpg"
        picture(root / "sensor_blobs" / "mini" / name)
        cams[camera] = {"data_path": name, "cam_intrinsic": np.eye(3), "distortion": np.zeros(5)}
    one_hot = np.zeros(4, dtype=int)
    one_hot[command] = 1
    return {
        "token": token, "timestamp": 1_600_000_000_000_000 + number * 500_000, "log_name": LOG,
        "roadblock_ids": ["1"],
        "ego2global_translation": np.array([587000.0 + 0.1 * number, 4475000.0 + 2 * number, 0]),
        "ego2global_rotation": np.array([math.cos(yaw / 2), 0, 0, math.sin(yaw / 2)]),
        "ego_dynamic_state": [4.0, -0.2, 0.171, -1.526], "driving_command": one_hot, "cams": cams,
        "traffic_lights": [(1234, True)], "anns": {"gt_names": np.array(["vehicle"]), "gt_boxes": np.zeros((1, 7))},
        **changes,
    }


def navsim_root(tmp_path: Path, frames: list[dict[str, Any]] | None = None) -> Path:
    root = tmp_path / "navsim"
    frames = [navsim_frame(root, number) for number in range(15)] if frames is None else frames
    (root / "navsim_logs" / "mini").mkdir(parents=True, exist_ok=True)
    (root / "navsim_logs" / "mini" / f"{LOG}.pkl").write_bytes(pickle.dumps(frames, pickle.HIGHEST_PROTOCOL))
    (root / "sensor_blobs" / "mini").mkdir(parents=True, exist_ok=True)
    return root


def test_navsim_windows_become_the_authors_prompt(tmp_path: Path) -> None:
    out = tmp_path / "out" / "mini.jsonl"
    assert convert("navsim", navsim_root(tmp_path), out, "--split", "mini") == 0
    first, second = written(out)
    assert (first.conversation.id, second.conversation.id) == ("token03", "token04")
    assert first.prompt == (
        "Here is a front-view images from a driving vehicle: <image>\nThe navigation information is: left\n"
        "The current position is (0.00,0.00)\n"
        "The current velocity is: (4.00,-0.20) and current accelerate is: (0.17,-1.53)\n"
        "Instruction: Based on the visual motion cues from the image (such as the relative speed of other vehicles and "
        "the changing distance to the intersection) and the provided telemetry, predict the optimal driving action for "
        "the next 4 seconds with 8 new waypoints."
    )
    # North is forward and east is right, so y, which is to the left, is negative.
    assert first.answer == ",".join(f"{2 * k}.00,-{0.1 * k:.2f}" for k in range(1, 9))
    assert [path.name for path in first.images] == ["token03.jpg"]
    assert first.conversation.images[0].startswith(f"..{os.sep}navsim{os.sep}sensor_blobs{os.sep}mini")
    assert first.extra == {"log": LOG, "command": "LEFT", "speed_mps": 4.0}


@pytest.mark.parametrize(("command", "word"), list(enumerate(["left", "straight", "right", "unknown"])))
def test_navsim_commands(tmp_path: Path, command: int, word: str) -> None:
    root = tmp_path / "navsim"
    frames = [navsim_frame(root, number, command=command) for number in range(14)]
    convert("navsim", navsim_root(tmp_path, frames), tmp_path / "a.jsonl", "--split", "mini", "--prompt", "paper")
    (sample,) = written(tmp_path / "a.jsonl")
    assert f"The navigation information is: {word}.\nThe current position is (0.00, 0.00).\n" in sample.prompt
    assert [path.parent.name for path in sample.images] == ["CAM_L0", "CAM_F0", "CAM_R0"]


def test_navsim_headings_are_the_devkits() -> None:
    # The yaw of pyquaternion 0.9.9 for this quaternion, which is how the devkit makes its labels.
    rotation = [0.8, 0.02, -0.03, 0.599]
    pose = navsim.ego_pose({"ego2global_translation": [1, 2, 0], "ego2global_rotation": rotation})
    q = np.array(rotation) / np.linalg.norm(rotation)
    assert pose.yaw_rad == pytest.approx(np.arctan2(2 * (q[0] * q[3] - q[1] * q[2]), 1 - 2 * (q[2] ** 2 + q[3] ** 2)))
    assert pose.yaw_rad == pytest.approx(2 * math.atan2(0.599, 0.8), abs=2e-3)


def test_navsim_scene_filters_choose_windows(tmp_path: Path) -> None:
    root = navsim_root(tmp_path)
    (tmp_path / "navtrain.yaml").write_text(
        "_target_: navsim.common.dataclasses.SceneFilter\nnum_history_frames: 4\nnum_future_frames: 10\n"
        f"frame_interval: 1\nhas_route: true\nmax_scenes: null\nlog_names: ['{LOG}']\ntokens: [token04, other]\n"
    )
    arguments = ("navsim", root, tmp_path / "a.jsonl", "--split", "mini", "--scene-filter", tmp_path / "navtrain.yaml")
    assert convert(*arguments) == 0
    assert [sample.conversation.id for sample in written(tmp_path / "a.jsonl")] == ["token04"]
    (tmp_path / "navtrain.yaml").write_text("log_names: [other]")
    convert(*arguments)
    assert written(tmp_path / "a.jsonl") == []
    (tmp_path / "navtrain.yaml").write_text("[1]")
    with pytest.raises(UserError, match="a NAVSIM scene filter"):
        convert(*arguments)


def test_navsim_leaves_out_by_rule_and_tells_what_is_broken(tmp_path: Path) -> None:
    root = tmp_path / "navsim"
    frames = [navsim_frame(root, number) for number in range(17)]
    frames[3]["roadblock_ids"] = []
    frames[4]["ego_dynamic_state"] = [float("nan"), 0, 0, 0]
    del frames[5]["cams"]
    (root / "sensor_blobs" / "mini" / frames[6]["cams"]["CAM_F0"]["data_path"]).unlink()
    navsim_root(tmp_path, frames)
    (root / "navsim_logs" / "mini" / "torn.pkl").write_bytes(b"\x80\x05torn")
    with Writer(tmp_path / "a.jsonl", "navsim") as writer:
        navsim.convert(root, writer, "mini")
    assert writer.count == 0
    assert writer.left_out == {"no route": 1, "the log ends before": 13}
    assert writer.problems == {"bad frame": 2, "unreadable log": 1, "missing image": 1}
    late = [navsim_frame(root, number) for number in range(14)]
    late[8]["timestamp"] += 400_000
    navsim_root(tmp_path, late)
    with Writer(tmp_path / "a.jsonl", "navsim") as writer:
        navsim.convert(root, writer, "mini")
    assert writer.left_out["frames missing in the future"] == 1


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch harmed",)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_log_cannot_run_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.pkl").write_bytes(pickle.dumps([{"token": Harmful()}], protocol))
    with pytest.raises(UserError, match=r"(posix|nt)\.system is neither a plain value nor a NumPy array"):
        navsim.load_log(tmp_path / "a.pkl")
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_logs_of_every_protocol_and_of_older_numpy_are_read(tmp_path: Path, protocol: int) -> None:
    frame = {"a": np.arange(3.0), "b": [np.float32(2.5), "x", None, (1, True)], "c": np.array(["car", "lorry"])}
    packed = pickle.dumps([frame], protocol)
    for content in (packed, packed.replace(b"cnumpy._core.", b"cnumpy.core.")):
        (tmp_path / "a.pkl").write_bytes(content)
        (read,) = navsim.load_log(tmp_path / "a.pkl")
        assert (read["a"].tolist(), read["c"].tolist()) == ([0, 1, 2], ["car", "lorry"])
        assert read["b"] == frame["b"]


def test_a_log_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(UserError, match="a list of frames, got dict"):
        navsim.load_log(tmp_path / "a.pkl")
    with pytest.raises(UserError, match="NAVSIM's layout, navsim_logs/trainval"):
        convert("navsim", tmp_path, tmp_path / "a.jsonl")


# --- DriveLM ----------------------------------------------------------------------------------------------------------


def drivelm_root(tmp_path: Path, questions: dict[str, list[Any]]) -> Path:
    root = tmp_path / "drivelm"
    paths = {}
    for view in ("CAM_BACK", *drivelm.VIEWS):  # another order than the prompt's
        picture(root / "nuscenes" / "samples" / view / f"n008__{view}__1.jpg")
        paths[view] = f"../nuscenes/samples/{view}/n008__{view}__1.jpg"
    scenes = {"scene": {"scene_description": "..", "key_frames": {
        "frame": {"key_object_infos": {}, "QA": questions, "image_paths": paths}}}}
    (root / "QA_dataset_nus").mkdir()
    (root / "QA_dataset_nus" / "v1_1_train_nus.json").write_text(json.dumps(scenes))
    return root


def pair(question: Any, answer: Any = "Going ahead.") -> dict[str, Any]:
    return {"Q": question, "A": answer, "C": None, "con_up": None, "con_down": None, "cluster": None, "layer": None}


def test_drivelm_questions_keep_their_words_and_get_one_view_or_six(tmp_path: Path) -> None:
    near = "What is the status of <c1,CAM_BACK,1088.3,497.5>?"
    both = "Would <c1,CAM_BACK,1.0,2.0> be in the way of <c2,CAM_FRONT,3.0,4.0>?"
    root = drivelm_root(tmp_path, {
        "perception": [pair("Any cars?")], "behavior": [pair(both)], "planning": [pair(near)], "prediction": [],
    })
    assert convert("drivelm", root, tmp_path / "a.jsonl") == 0
    cars, status, way = written(tmp_path / "a.jsonl")
    six = ("[CAM_FRONT] <image> [CAM_FRONT_LEFT] <image> [CAM_FRONT_RIGHT] <image> [CAM_BACK] <image> "
           "[CAM_BACK_LEFT] <image> [CAM_BACK_RIGHT] <image>\n")
    assert (cars.prompt, cars.answer, cars.conversation.id) == (six + "Any cars?", "Going ahead.", "scene_frame_0")
    assert [path.parent.name for path in cars.images] == list(drivelm.VIEWS)
    assert status.prompt == "[CAM_BACK] <image>\n" + near
    assert [path.parent.name for path in status.images] == ["CAM_BACK"]
    assert way.prompt == six + both
    assert [sample.extra["group"] for sample in (cars, status, way)] == ["perception", "planning", "behavior"]
    for views, count in (("six", 6), ("front", 1)):
        convert("drivelm", root / "QA_dataset_nus" / "v1_1_train_nus.json", tmp_path / "b.jsonl", "--views", views)
        assert {len(sample.images) for sample in written(tmp_path / "b.jsonl")} == {count}


def test_drivelm_problems_are_told_and_the_rest_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = drivelm_root(tmp_path, {"perception": [pair(None), pair("q", ["a"]), pair("q", " "), pair("<image>?"), "x",
                                                  pair("fine")]})
    assert convert("drivelm", root, tmp_path / "a.jsonl") == 1
    assert [sample.conversation.id for sample in written(tmp_path / "a.jsonl")] == ["scene_frame_5"]
    told = capsys.readouterr().err
    assert "problem: 4 bad question" in told
    assert "left out: 1 no answer" in told


# --- LingoQA ----------------------------------------------------------------------------------------------------------


def lingoqa_root(tmp_path: Path, rows: list[dict[str, Any]], part: str = "scenery") -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    root = tmp_path / "lingoqa"
    (root / part).mkdir(parents=True)
    parquet.write_table(pyarrow.Table.from_pylist(rows), root / part / "train.parquet")
    for row in rows:
        for image in row["images"]:
            picture(root / part / image)
    return root


def lingoqa_row(name: str, answer: str = "Yes.", frames: int = 5) -> dict[str, Any]:
    images = [f"images/train/seg/{frame}.jpg" for frame in range(frames)]
    return {"question_id": name, "segment_id": "seg", "images": images, "question": "Any cars?", "answer": answer}


def test_lingoqa_rows_show_five_frames_in_order(tmp_path: Path) -> None:
    root = lingoqa_root(tmp_path, [lingoqa_row("a"), lingoqa_row("a", "There are."), lingoqa_row("b")])
    lingoqa_root(tmp_path, [lingoqa_row("c")], "action")
    assert convert("lingoqa", root, tmp_path / "a.jsonl") == 0
    samples = written(tmp_path / "a.jsonl")
    assert [sample.conversation.id for sample in samples] == ["a", "a-1", "b", "c"]
    assert samples[0].prompt == "<image> <image> <image> <image> <image>\nAny cars?"
    assert [path.name for path in samples[0].images] == [f"{frame}.jpg" for frame in range(5)]
    assert samples[1].answer == "There are."
    assert "action" in samples[3].conversation.images[0]


def test_lingoqa_problems(tmp_path: Path) -> None:
    root = lingoqa_root(tmp_path, [lingoqa_row("a", frames=4), lingoqa_row("b", " "), lingoqa_row("c")])
    assert convert("lingoqa", root / "scenery" / "train.parquet", tmp_path / "a.jsonl") == 1
    assert [sample.conversation.id for sample in written(tmp_path / "a.jsonl")] == ["c"]
    (tmp_path / "no.parquet").write_text("text")
    with pytest.raises(UserError, match="a parquet file"):
        convert("lingoqa", tmp_path / "no.parquet", tmp_path / "a.jsonl")
    with pytest.raises(UserError, match="LingoQA's layout"):
        convert("lingoqa", tmp_path, tmp_path / "a.jsonl")
    other = lingoqa_root(tmp_path, [{"images": ["a.jpg"]}], "other")
    with pytest.raises(UserError, match="without question_id, segment_id, question, answer"):
        convert("lingoqa", other / "other" / "train.parquet", tmp_path / "a.jsonl")


# --- COCO -------------------------------------------------------------------------------------------------------------


def coco_root(tmp_path: Path, annotations: list[dict[str, Any]]) -> Path:
    root = tmp_path / "coco"
    images = [{"id": number, "file_name": f"{number:012}.jpg", "width": 640, "height": 480} for number in (9, 25)]
    for image in images:
        picture(root / "train2017" / image["file_name"], (640, 480))
    categories = [{"id": 3, "name": "car"}, {"id": 10, "name": "traffic light"}]
    (root / "annotations").mkdir()
    (root / "annotations" / "instances_train2017.json").write_text(
        json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return root


def box(image: int, category: int, *place: float, crowd: int = 0) -> dict[str, Any]:
    return {"image_id": image, "category_id": category, "bbox": list(place), "iscrowd": crowd}


def test_coco_boxes_are_on_the_grid_y_first(tmp_path: Path) -> None:
    root = coco_root(tmp_path, [
        box(25, 10, 0, 0, 64, 48), box(25, 3, 320.4, 120, 319.6, 360), box(25, 3, 64, 48, 64, 48),
        box(25, 3, 0, 0, 9, 9, crowd=1), box(25, 3, 5, 5, 0, 9),
    ])
    with Writer(tmp_path / "a.jsonl", "coco") as writer:
        coco.convert(root, writer)
    (sample,) = written(tmp_path / "a.jsonl")
    assert sample.prompt == (
        "<image>\nLocate every object that matches the description ‘‘car, traffic light’’ in the image. "  # noqa: RUF001 - the published marks
        "Report bbox coordinates in JSON format."
    )
    assert sample.answer == (
        '[{"bbox_2d": [100, 100, 200, 200], "label": "car"}, {"bbox_2d": [250, 501, 1000, 1000], "label": "car"}, '
        '{"bbox_2d": [0, 0, 100, 100], "label": "traffic light"}]'
    )
    assert (sample.conversation.id, sample.images[0].name) == ("coco-25", "000000000025.jpg")
    assert writer.left_out == {"crowd": 1, "box without an area": 1, "image without objects": 1}


def test_coco_may_ask_for_one_category_at_a_time(tmp_path: Path) -> None:
    root = coco_root(tmp_path, [box(25, 10, 0, 0, 64, 48), box(25, 3, 64, 48, 64, 48), box(9, 77, 1, 1, 2, 2)])
    assert convert("coco", root, tmp_path / "a.jsonl", "--per", "category") == 1
    samples = written(tmp_path / "a.jsonl")
    assert [sample.conversation.id for sample in samples] == ["coco-25-3", "coco-25-10"]
    assert [len(json.loads(sample.answer)) for sample in samples] == [1, 1]


@pytest.mark.parametrize(("per", "kept"), [("image", 0), ("category", 1)])
@pytest.mark.parametrize("name", ["<image>", " ", "\ud800"])
def test_coco_counts_a_category_that_nobody_can_ask_for(tmp_path: Path, capsys, per: str, kept: int, name: str) -> None:
    root = coco_root(tmp_path, [box(25, 10, 0, 0, 64, 48), box(25, 3, 64, 48, 64, 48)])
    file = root / "annotations" / "instances_train2017.json"
    file.write_text(file.read_text().replace('"traffic light"', json.dumps(name)))
    assert convert("coco", root, tmp_path / "a.jsonl", "--per", per) == 1
    assert len(written(tmp_path / "a.jsonl")) == kept
    assert "bad category: coco-25" in " ".join(capsys.readouterr().err.split())


def test_a_sample_without_utf_8_is_counted(tmp_path: Path) -> None:
    with Writer(tmp_path / "a.jsonl", "x") as writer:
        writer.add("a", [], "q", "\udfff")
        writer.add("\ud800", [tmp_path / ("x" * 300)], "q", "a")
        writer.add("b", [], "q", "a")
    assert (writer.count, writer.problems) == (1, {"no UTF-8": 1, "missing image": 1})
    assert "\\ud800" in "".join(writer.examples).encode().decode()


# --- SimLingo ---------------------------------------------------------------------------------------------------------


def carla_matrix(x: float, y: float, yaw_deg: float) -> list[list[float]]:
    c, s = math.cos(math.radians(yaw_deg)), math.sin(math.radians(yaw_deg))
    return [[c, -s, 0.0, x], [s, c, 0.0, y], [0.0, 0.0, 1.0, 0.3], [0.0, 0.0, 0.0, 1.0]]


def simlingo_route(tmp_path: Path, frames: int = 24, command: int = 4, **scores: Any) -> Path:
    """The car heads along CARLA's +y (yaw 90) at 4 m/s, and drifts to its right, which there is -x."""
    split = tmp_path / "simlingo" / "data" / "simlingo" / "training_1_scenario" / "routes_training" / "x"
    route = split / "Town12_Rep0"
    for frame in range(frames):
        measurement = {
            "ego_matrix": carla_matrix(100 - 0.05 * frame, 50 + frame, 90), "speed": 4.0049, "command": command,
            "next_command": 4, "target_point": [9.006, 3.4, 0.0], "target_point_next": [13.2, -0.001], "theta": 1.57,
        }
        file = route / "measurements" / f"{frame:04}.json.gz"
        file.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(file, "wt") as out:
            json.dump(measurement, out)
        picture(route / "rgb" / f"{frame:04}.jpg")
    result = {"scores": {"score_composed": 100.0, "score_route": 100.0}, "num_infractions": 0,
              "infractions": {"min_speed_infractions": [], "outside_route_lanes": [], "red_light": []}}
    result["scores"].update(scores.pop("scores", {}))
    result.update(scores)
    with gzip.open(route / "results.json.gz", "wt") as out:
        json.dump(result, out)
    return route


def test_simlingo_frames_become_the_bench2drive_prompt(tmp_path: Path) -> None:
    simlingo_route(tmp_path)
    with Writer(tmp_path / "a.jsonl", "simlingo") as writer:
        simlingo.convert(tmp_path / "simlingo", writer)
    samples = written(tmp_path / "a.jsonl")
    assert samples[0].prompt == (
        "Here is a front-view image from a driving vehicle:\n<image>\n"
        "The navigation information is: Target: [9.01, 3.40] [13.20, 0.00]. Command: follow the road\n"
        "Current velocity is: 4.00\n"
        "Predict the optimal driving action for the next 3 seconds with 6 new waypoints."
    )
    # Two measurements are half a second; y is to the right, so the drift is positive.
    assert samples[0].answer == ",".join(f"{2 * k}.00,{0.1 * k:.2f}" for k in range(1, 7))
    assert samples[0].conversation.id.endswith("Town12_Rep0/0010")
    assert [path.name for path in samples[0].images] == ["0010.jpg"]
    assert writer.left_out == {"start of a route": 10, "no three seconds ahead": 12}
    assert len(samples) == 2


@pytest.mark.parametrize(
    ("command", "words"),
    [(1, "go left at the next intersection"), (2, "go right at the next intersection"),
     (3, "go straight at the next intersection"), (4, "follow the road"), (5, "do a lane change to the left"),
     (6, "do a lane change to the right"), (-1, "follow the road")],
)
def test_simlingo_commands(tmp_path: Path, command: int, words: str) -> None:
    simlingo_route(tmp_path, 23, command)
    convert("simlingo", tmp_path / "simlingo", tmp_path / "a.jsonl")
    (sample,) = written(tmp_path / "a.jsonl")
    assert f"Command: {words}\n" in sample.prompt


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ({"scores": {"score_composed": 60.0}, "num_infractions": 1}, "route failed"),
        ({"scores": {"score_composed": 80.0, "score_route": 90.0}}, "route failed"),
        ({"scores": {"score_composed": 80.0, "score_route": 95.0}, "num_infractions": 2,
          "infractions": {"min_speed_infractions": ["x"], "outside_route_lanes": ["y"]}}, ""),
        ({"scores": {"score_composed": None}}, "route with an unreadable result"),
    ],
)
def test_simlingo_failed_routes_are_left_out(tmp_path: Path, result: dict[str, Any], reason: str) -> None:
    route = simlingo_route(tmp_path, 23, **result)
    assert simlingo.why_left_out(route) == reason
    convert("simlingo", tmp_path / "simlingo", tmp_path / "a.jsonl", "--failed-routes")
    assert len(written(tmp_path / "a.jsonl")) == 1
    (route / "results.json.gz").unlink()
    assert simlingo.why_left_out(route) == "route without a result"


def test_simlingo_problems(tmp_path: Path) -> None:
    route = simlingo_route(tmp_path, 26)
    (route / "measurements" / "0025.json.gz").write_bytes(b"torn")
    (route / "rgb" / "0011.jpg").unlink()
    with gzip.open(route / "measurements" / "0012.json.gz", "rt") as stored:
        changed = {**json.load(stored), "target_point": [1.0]}
    with gzip.open(route / "measurements" / "0012.json.gz", "wt") as out:
        json.dump(changed, out)
    with Writer(tmp_path / "a.jsonl", "simlingo") as writer:
        simlingo.convert(tmp_path / "simlingo", writer)
    assert writer.count == 1
    assert writer.problems == {"unreadable measurement": 1, "missing image": 1, "bad measurement": 1}
    with pytest.raises(UserError, match="route folders with measurements and rgb"):
        convert("simlingo", route / "rgb", tmp_path / "a.jsonl")


# --- all --------------------------------------------------------------------------------------------------------------


def test_a_file_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("before")
    with pytest.raises(TypeError), Writer(tmp_path / "a.jsonl", "x") as writer:
        writer.add("a", [], "q", "a", {"unwritable": object()})
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]
    assert (tmp_path / "a.jsonl").read_text() == "before"
    with pytest.raises(UserError, match=r"ends in .jsonl"):
        convert("simlingo", tmp_path, tmp_path / "a.json")


def test_the_limit_ends_a_conversion(tmp_path: Path) -> None:
    simlingo_route(tmp_path)
    convert("simlingo", tmp_path / "simlingo", tmp_path / "a.jsonl", "--limit", 1)
    assert len(written(tmp_path / "a.jsonl")) == 1
