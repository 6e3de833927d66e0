"""A small set, really driven: what it holds, that it repeats, and that a killed one goes on to the same end."""

from __future__ import annotations

import itertools
import json
import math
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("carla", reason="needs the carla client library")

from carla_bridge.collect import collect
from carla_bridge.collect.preview import write_preview
from carla_bridge.collect.records import FILES, GROUNDING, PLANNING, QA, Line, Record
from carla_bridge.collect.runner import CollectConfig, episodes
from carla_bridge.collect.schedule import Block
from carla_bridge.nano import NANO_TASK
from carla_bridge.routes import ROUTES_FOLDER
from training.vision_pretraining import read_pictures
from wamdiff2_core.conversations import read_rgb
from wamdiff2_core.dataset import Sample, read_dataset
from wamdiff2_core.errors import UserError
from wamdiff2_core.frames import inverse, transform_points
from wamdiff2_core.tasks.grounding import parse_grounding, pixels_from_box
from wamdiff2_core.tasks.planning import parse_waypoints
from wamdiff2_core.types import Pose2D

pytestmark = [pytest.mark.carla, pytest.mark.slow]
ROUTES = ROUTES_FOLDER / "embedded-40.xml"
SMALL = {"seed": 2, "seconds": 10.0, "fleet": 4, "vehicles": 10, "walkers": 20}
ANSWER = re.compile(
    r"No\.|Yes\.|There is none\.|\d\.|\d+ m\.|Yes, [a-z ]+, \d+ m\.|Yes, \d+ m(, standing|, driving)?\."
    r"|(Wait|Start|Stop|Slow down|Speed up|Go on|Keep your distance|Pass on the (left|right)), because [a-z ]+\."
    r"|(Clear|Cloudy|Rain|Fog|Dry), (day|low sun|night)\."
)


def run(out: Path, **more: object) -> None:
    collect(out, [ROUTES], **{"samples": 10_000, "max_episodes": 2, **SMALL, **more})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("collect") / "set"
    run(out)
    return out


@pytest.fixture(scope="module")
def samples(made: Path) -> list[Sample]:
    return read_dataset(made / PLANNING)


def test_every_line_can_be_read_and_shares_its_picture(made: Path, samples: list[Sample]) -> None:
    assert len(samples) > 60
    pictures = {sample.images[0] for sample in samples}
    assert len(pictures) == len(samples)
    for sample in samples:
        waypoints = parse_waypoints(sample.answer, NANO_TASK)
        assert np.abs(waypoints.xy_m - np.array(sample.extra["waypoints_m"])).max() <= 0.051
        x, y = sample.extra["targets_m"][0]  # the text has y to the right, the extra keys are REP-103
        shown = sample.prompt.partition("Target: [")[2].partition("]")[0].split(", ")
        assert [float(v) for v in shown] == pytest.approx([x, -y], abs=0.051)
        assert read_rgb(sample.images[0]).shape == (128, 256, 3)
    questions, boxes = read_dataset(made / QA), read_dataset(made / GROUNDING)
    assert len(questions) > len(samples) / 2
    assert len(boxes) > 10
    for sample in questions:
        assert sample.images[0] in pictures
        assert ANSWER.fullmatch(sample.answer), sample.answer
        assert sample.prompt.startswith("<image>\n")
    for sample in boxes:
        assert sample.images[0] in pictures
        assert all(found.label == sample.extra["description"] for found in parse_grounding(sample.answer).detections)


def test_half_a_second_later_a_vehicle_is_near_the_first_waypoint(samples: list[Sample]) -> None:
    by_moment = {(s.extra["episode"], s.extra["vehicle"], s.extra["t_s"]): s for s in samples}
    away_m = []
    for (episode, vehicle, t_s), sample in by_moment.items():
        later = by_moment.get((episode, vehicle, round(t_s + 0.5, 2)))
        if later is not None and "camera_aside" not in {**sample.extra, **later.extra}:
            here, there = (Pose2D(*s.extra["map_from_base"]) for s in (sample, later))
            place = transform_points(inverse(here), np.array([[there.x_m, there.y_m]]))[0]
            away_m.append(math.hypot(*(place - sample.extra["waypoints_m"][0])))
    assert len(away_m) > 20
    assert np.median(away_m) < 0.2  # noise, pushes and stops without a reason aside


def test_situations_say_what_their_plans_do(samples: list[Sample]) -> None:
    for sample in samples:
        way = np.vstack([[0.0, 0.0], sample.extra["waypoints_m"]])
        end_mps, speed_mps = math.hypot(*(way[-1] - way[-2])) / 0.5, sample.extra["speed_mps"]
        if sample.extra["situation"] == "stopping":
            assert end_mps < 0.5 * speed_mps + 0.1
        if sample.extra["situation"] == "starting":
            assert end_mps > speed_mps + 0.9


def test_the_vision_tower_reads_boxes_words_and_colours_where_the_picture_has_them(made: Path) -> None:
    pictures = read_pictures([str(made / PLANNING), str(made / QA)])
    lamps = sides = 0
    for picture in pictures:
        assert picture.objects is not None
        pixels = read_rgb(picture.sample.images[0]).astype(int)
        for label, box, _ in picture.objects:
            if label == "red traffic light":
                x1, y1, x2, y2 = (round(edge * size) for edge, size in zip(box, (256, 128, 256, 128), strict=True))
                inside = pixels[y1 : max(y2, y1 + 1), x1 : max(x2, x1 + 1)]
                assert (inside[:, :, 0] - inside[:, :, 1:].max(axis=2)).max() > 30
                lamps += 1
        people = [box for label, box, _ in picture.objects if label == "pedestrian"]
        said = re.search("on the (left|right)", picture.answers.get("pedestrian", ""))
        if len(people) == 1 and said and not picture.unsure:
            assert said[1] == ("left" if people[0][0] + people[0][2] < 1.0 else "right")
            sides += 1
    assert min(lamps, sides) > 0
    assert any(picture.unsure for picture in pictures)


def test_who_stands_has_zeros_for_waypoints(samples: list[Sample]) -> None:
    standing = [s for s in samples if s.extra["situation"] == "standing"]
    for sample in standing:
        assert np.abs(parse_waypoints(sample.answer, NANO_TASK).xy_m).max() <= 0.6
    still = [s for s in standing if abs(s.extra["speed_mps"]) < 0.02]
    assert all(np.abs(s.extra["waypoints_m"]).max() < 0.4 for s in still)


def test_a_red_light_that_is_boxed_shines_red_inside_its_box(made: Path) -> None:
    boxed = [s for s in read_dataset(made / GROUNDING) if s.extra["description"] == "red traffic light"]
    found = 0
    for sample in boxed:
        picture = read_rgb(sample.images[0]).astype(int)
        for detection in parse_grounding(sample.answer).detections:
            x0, y0, x1, y1 = (round(v) for v in pixels_from_box(detection.box, 256, 128))
            inside = picture[y0 : max(y1, y0 + 1), x0 : max(x1, x0 + 1)]
            assert (inside[:, :, 0] - inside[:, :, 1:].max(axis=2)).max() > 30
            found += 1
    assert found


def test_a_killed_set_goes_on_to_the_same_bytes_with_any_number_of_workers(made: Path, tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    shutil.copytree(made, killed)
    lines = (killed / "episodes.jsonl").read_text().splitlines(keepends=True)
    (killed / "episodes.jsonl").write_text("".join(lines[:2]) + '{"episode": 1, "sam')  # the second is torn
    for name in FILES:
        with (killed / name).open("a") as out:
            out.write('{"id": "torn')
    for picture in list((killed / "images").glob("00001-*"))[:5]:
        picture.write_bytes(b"half a pic")
    run(killed, workers=2)
    assert list((killed / "logs").iterdir()) == [], "of blocks that were begun and not wanted"
    for name in (*FILES, "episodes.jsonl", "collect.json"):
        assert (killed / name).read_bytes() == (made / name).read_bytes(), name
    for picture in (made / "images").iterdir():
        assert (killed / "images" / picture.name).read_bytes() == picture.read_bytes(), picture.name


def test_a_set_of_other_arguments_is_refused_and_a_larger_one_is_gone_on_with(made: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="same arguments"):
        run(made, seed=3)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="empty folder"):
        run(tmp_path)


def test_a_contact_sheet_shows_as_many_pictures_as_were_asked_for(made: Path, tmp_path: Path) -> None:
    from PIL import Image

    sheet = Image.open(write_preview(made, 7, tmp_path / "sheet.jpg"))
    assert sheet.size[0] == 3 * 512
    assert sheet.size[1] % 3 == 0


def test_without_pictures_only_plans_are_made(tmp_path: Path) -> None:
    run(tmp_path, images=False, max_episodes=1, seconds=8.0, fleet=1, walkers=0)
    samples = read_dataset(tmp_path / PLANNING)
    assert len(samples) > 5
    assert all(not sample.images and "<image>" not in sample.prompt for sample in samples)
    assert (tmp_path / QA).read_text() == ""


def test_a_learner_drives_and_the_expert_says_what_it_should_have_done(nano_folder: Path, tmp_path: Path) -> None:
    few = {"max_episodes": 1, "seconds": 8.0, "fleet": 2, "vehicles": 5, "walkers": 5}
    for name in ("one", "again"):
        run(tmp_path / name, learner=nano_folder, learner_share=1.0, **few)
    samples = read_dataset(tmp_path / "one" / PLANNING)
    assert len(samples) > 5
    assert {s.extra["driven_by"] for s in samples} == {"learner"}
    assert not any("camera_aside" in s.extra for s in samples)
    assert (tmp_path / "one" / PLANNING).read_bytes() == (tmp_path / "again" / PLANNING).read_bytes()
    run(tmp_path / "none", learner=nano_folder, learner_share=0.0, **few)
    assert not any("driven_by" in s.extra for s in read_dataset(tmp_path / "none" / PLANNING))


def test_bad_options_are_user_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="routes"):
        collect(tmp_path / "x", [tmp_path / "none.xml"])
    with pytest.raises(UserError, match="HOST:PORT"):
        run(tmp_path / "y", carla="nonsense")
    with pytest.raises(UserError, match="workers"):
        run(tmp_path / "z", carla="127.0.0.1:2000", workers=2)


def test_no_episode_is_driven_behind_the_last_one_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driven: list[int] = []

    def attempt(config: CollectConfig, block: Block, subscribe_s: float) -> Iterator[object]:
        for episode in block.episodes:
            driven.append(episode.index)
            yield fake(episode.index, 1)

    monkeypatch.setattr("carla_bridge.collect.runner._attempt", attempt)
    config = CollectConfig(routes=(ROUTES,), out=tmp_path)
    assert [episode.index for episode in episodes(config, 1, 1, 6)] == [1, 2, 3, 4, 5]
    assert driven == [0, 1, 2, 3, 4, 5]
    assert [episode.index for episode in itertools.islice(episodes(config, 6, 1), 4)] == [6, 7, 8, 9]


def fake(index: int, count: int) -> object:
    from carla_bridge.collect.episode import Driven

    def record(k: int) -> Record:
        name = f"{index:05d}-{k}"
        return Record(name, None, (Line(PLANNING, name, "Where to?", "1,2", {"situation": "free"}),))

    return Driven(index, tuple(record(k) for k in range(count)), "", 1.0)


def test_an_episode_that_was_cut_for_a_smaller_set_is_driven_again_for_a_larger_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made_up(config: CollectConfig, first: int, workers: int, end: int) -> Iterator[object]:
        for index in range(first, 100):
            yield fake(index, 10)

    monkeypatch.setattr("carla_bridge.collect.runner.episodes", made_up)
    for name, steps in (("whole", (25,)), ("grown", (5, 12, 25))):
        for count in steps:
            run(tmp_path / name, samples=count, max_episodes=0)
            assert len((tmp_path / name / PLANNING).read_text().splitlines()) == count
    assert (tmp_path / "grown" / PLANNING).read_bytes() == (tmp_path / "whole" / PLANNING).read_bytes()
    assert json.loads((tmp_path / "whole" / "collect.json").read_text())["request"]["seed"] == SMALL["seed"]
