"""`wamdiff2 data`: what is wrong in a file is found, each kind by its name; a sample can be looked at."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from training.data.check import KINDS, FileCheck
from training.data.command import binned, data
from training.data.limits import LengthLimits
from training.data.show import ground_to_pixels
from training.data.sources import ConversationIndex
from training.data.tokens import TokenCounter
from wamdiff2_core.cli.main import as_command
from wamdiff2_core.config import CameraSpec
from wamdiff2_core.errors import UserError
from wamdiff2_core.tasks.grounding import GroundingRequest, grounding_prompt
from wamdiff2_core.tasks.planning import BENCH2DRIVE

NANO = Path(__file__).parents[2] / "checkpoints" / "wamdiff2-nano"
PLAN = BENCH2DRIVE.format(x1="9.0", y1="-3.4", x2="13.2", y2="-12.2", command="follow the road", speed="6.5")
WAYPOINTS = "1.0,0.0,2.0,0.1,3.0,0.2,4.0,0.3,5.0,0.4,6.0,0.5"
BOXES = grounding_prompt(GroundingRequest("car"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rgb = np.random.default_rng(0).integers(0, 256, (128, 256, 3), dtype=np.uint8)
    Image.fromarray(rgb).save(tmp_path / "good.jpg")
    (tmp_path / "cut.jpg").write_bytes((tmp_path / "good.jpg").read_bytes()[:-4000])
    (tmp_path / "not.jpg").write_text("text")
    Image.new("RGB", (420, 2)).save(tmp_path / "thin.png")
    return tmp_path


def line(question: str = "q", answer: str = "a", **keys: object) -> str:
    turns = [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]
    return json.dumps({"conversations": turns, **keys}, ensure_ascii=False)


def plan(answer: str = WAYPOINTS, **keys: object) -> str:
    return line(PLAN, answer, image="good.jpg", **keys)


FOUND = '[{"bbox_2d": [1, 2, 3, 4], "label": "car"}]'
GOOD = [plan(id="a"), line(id="b"), line(BOXES, FOUND, image=["good.jpg"], id=3)]

DEEP, LONG = "[" * 100_000, "9" * 5000

BROKEN: dict[str, list[str | bytes]] = {
    "bad_utf8": [b'{"conversations": [{"from": "human", "value": "\xff"}]}'],
    "malformed_json": ['{"conversations": [', "{'id': 1}", DEEP, line(x=[])[:-3] + DEEP + "]" * 100_000 + "}",
                       line(id=0)[:-2] + LONG + "}"],
    "duplicate_key": [line()[:-1] + ', "conversations": ' + line()[18:], '{"x": {"a": 1, "a": 1}, ' + line()[1:]],
    "lone_surrogate": [json.dumps({**json.loads(line("q", "a")), **keys}) for keys in (
        {"id": "\ud800"}, {"image": "\udfff.jpg"}, {"datasource": "\ud800 "}, {"own": [{"\udc00": 1}]},
        {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a \ud83d"}]},
    )],
    "non_finite": [line(speed_mps=float("nan")), '{"conversations": [{"from": "human", "value": "q"},'
                   ' {"from": "gpt", "value": "a"}], "x": [1e999]}'],
    "bad_sample": ["[1]", "{}", '{"conversations": [{"from": "human"}]}', line(image=3), line(datasource=["a"]),
                   line(datasource={"a": 1})],
    "bad_id": [line(id=["a"]), line(id={"a": 1}), line(id=True), line(id=1.5)],
    "unknown_role": ['{"conversations": [{"from": "user", "value": "q"}, {"from": "gpt", "value": "a"}]}'],
    "bad_turns": ['{"conversations": [{"from": "human", "value": "q"}]}'],
    "empty_question": [line(" ")],
    "empty_answer": [line(answer=""), line(answer=" \n")],
    "image_count": [line("<image> q"), line("q", image="good.jpg"), line("<image> q", image=["good.jpg", "good.jpg"])],
    "missing_image": [line("<image> q", image=name) for name in ("gone.jpg", "x" * 300, "x" * 5000, "a/" * 3000)],
    "unreadable_image": [line("<image> q", image="not.jpg"), line("<image> q", image="cut.jpg")],
    "image_shape": [line("<image> q", image="thin.png")],
    "waypoints": [plan(WAYPOINTS + ",7.0"), plan("1.0,nan" + WAYPOINTS[7:]), plan("I stop.")],
    "detections": [line(BOXES, "a car", image="good.jpg"), line(BOXES, FOUND[1:-1], image="good.jpg")],
    "special_token": [line(answer="go <|im_end|>")],
    "image_limits": [plan(max_pixels=4096)],
    "prompt_too_long": [line("word " * 300)],
    "answer_too_long": [line(answer="word " * 200)],
    "duplicate_id": [line(id="a"), line(id="3")],
}


@pytest.fixture(scope="module")
def counter() -> TokenCounter:
    from wamdiff2_core.model.checkpoint import load_chat_codec

    return TokenCounter(load_chat_codec(NANO)[0])


def write(folder: Path, lines: list[str | bytes]) -> Path:
    file = folder / "samples.jsonl"
    file.write_bytes(b"\n".join(text.encode() if isinstance(text, str) else text for text in lines) + b"\n")
    return file


@pytest.mark.parametrize("kind", BROKEN)
def test_each_kind_of_broken_sample_is_found_and_nothing_else(folder: Path, counter: TokenCounter, kind: str) -> None:
    file = write(folder, [*GOOD[:2], *BROKEN[kind], GOOD[2]])
    if kind == "duplicate_id":
        file = write(folder, [*GOOD, *BROKEN[kind]])
    report = FileCheck(file, counter, LengthLimits(256, 128), examples=0, threads=2).run()
    assert dict(report.counts) == {kind: len(BROKEN[kind])}
    first = 4 if kind == "duplicate_id" else 3
    assert [problem.sample for problem in report.examples] == list(range(first, first + len(BROKEN[kind])))
    assert report.statistics.samples == len(GOOD) + len(BROKEN[kind])


def test_every_kind_has_a_broken_file_here() -> None:
    assert {*BROKEN, "empty_file"} == set(KINDS)


def test_all_kinds_in_one_file_are_counted_side_by_side(folder: Path, counter: TokenCounter) -> None:
    lines = [*GOOD, *(text for kind in BROKEN for text in BROKEN[kind])]
    report = FileCheck(write(folder, lines), counter, LengthLimits(256, 128), examples=1).run()
    assert dict(report.counts) == {kind: len(texts) for kind, texts in BROKEN.items()}
    assert len(report.examples) == len(BROKEN)
    json.dumps(report.to_json(), ensure_ascii=False, allow_nan=False).encode()
    duplicate = next(problem for problem in report.examples if problem.kind == "duplicate_id")
    assert (duplicate.id, duplicate.detail) == ("a", "sample 1 has it too")


def test_heads_alone_do_not_show_a_cut_file(folder: Path) -> None:
    file = write(folder, BROKEN["unreadable_image"])
    assert FileCheck(file).run().counts == {"unreadable_image": 2}
    assert FileCheck(file, decode_images=False).run().counts == {"unreadable_image": 1}


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.jsonl", b""), ("a.jsonl", b"\n \r\n"), ("a.jsonl", b"\xef\xbb\xbf"), ("a.json", b""), ("a.json", b" [ ] ")],
)
def test_a_file_without_samples_is_a_problem(folder: Path, name: str, text: bytes, capsys) -> None:
    (folder / name).write_bytes(text)
    assert command("check", folder / name) == 1
    shown = capsys.readouterr().out
    assert "empty_file 1" in shown
    assert f"file: {folder / name}" in shown


@pytest.mark.parametrize(
    ("rest", "kind"),
    [(b"", "malformed_json"), (b', {"id" 3}, ' + GOOD[2].encode() + b"]", "malformed_json"), (b",]", "malformed_json"),
     (b"] x", "malformed_json"), (b', "\xff"]', "bad_utf8"), (b", " + b"[" * 100_000, "malformed_json")],
)
def test_a_broken_list_is_one_problem_and_what_stands_before_is_checked(folder: Path, rest: bytes, kind: str) -> None:
    file = folder / "a.json"
    file.write_bytes(f"[{GOOD[0]}, {BROKEN['bad_id'][0]}".encode() + rest)
    for _ in range(2):
        report = FileCheck(file).run()
        assert report.counts == {"bad_id": 1, kind: 1}
        assert [problem.sample for problem in report.examples] == [2, 3]
        assert report.statistics.samples == 2
    with pytest.raises(UserError, match="expected"):
        ConversationIndex(file)


def test_a_list_goes_on_behind_an_integer_that_cannot_be_read(folder: Path) -> None:
    (folder / "a.json").write_text(f'[{GOOD[0]}, {{"id": {LONG}}}, {GOOD[1]}]')
    report = FileCheck(folder / "a.json").run()
    assert ([problem.sample for problem in report.examples], report.statistics.samples) == ([2], 3)


def test_a_whole_list_is_good(folder: Path) -> None:
    (folder / "a.json").write_text(f"[{GOOD[0]}, {GOOD[1]}]")
    assert FileCheck(folder / "a.json").run().ok


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [("with 6 new", f"with {LONG} new", "waypoints"), ("6.5", LONG[:400], "non_finite")],
)
def test_a_number_of_any_length_in_a_prompt_is_one_problem(folder: Path, old: str, new: str, kind: str) -> None:
    file = write(folder, [GOOD[0], line(PLAN.replace(old, new), WAYPOINTS, image="good.jpg"), GOOD[1]])
    report = FileCheck(file).run()
    assert ([problem.kind for problem in report.examples], report.examples[0].sample) == ([kind], 2)


def test_an_image_whose_decoder_has_an_error_of_its_own_is_unreadable(folder: Path, monkeypatch) -> None:
    def load(image: object) -> None:
        raise RuntimeError("Failed to decode")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", load)
    report = FileCheck(write(folder, [GOOD[0]])).run()
    assert report.counts == {"unreadable_image": 1}


@pytest.mark.parametrize("kind", ["malformed_json", "lone_surrogate", "bad_sample", "bad_id"])
def test_training_refuses_what_check_finds_with_one_line(folder: Path, kind: str) -> None:
    index = ConversationIndex(write(folder, BROKEN[kind]))
    for number in range(len(index)):
        with pytest.raises(UserError, match=rf"samples\.jsonl: sample {number + 1}: expected") as caught:
            index[number]
        assert "\n" not in str(caught.value)


def test_lengths_are_those_of_training(folder: Path, counter: TokenCounter) -> None:
    from training.data.encode import SampleEncoder

    file = write(folder, GOOD)
    statistics = FileCheck(file, counter).run().statistics
    encoder = SampleEncoder(counter.codec, counter.codec.image_token_id, 2, LengthLimits())
    encoded = [encoder.encode(sample) for sample in ConversationIndex(file)]
    assert sorted(statistics.prompt_length.elements()) == sorted(len(one.prompt_ids) for one in encoded)
    assert sorted(statistics.answer_length.elements()) == sorted(len(one.answer_ids) for one in encoded)


def test_statistics_tell_what_is_there(folder: Path) -> None:
    navsim = ("<image>\nThe navigation information is: left\nThe current velocity is: (4.66,-0.09) and so on,"
              " with 2 new waypoints.")
    report = FileCheck(write(folder, [*GOOD, line(navsim, "1,2,3,-4", image="good.jpg", datasource="navsim"),
                                      line("what is <|im_end|>?", datasource="qa")])).run()
    assert report.ok
    stats = report.to_json()["statistics"]
    assert stats["sources"] == {"(none)": 3, "navsim": 1, "qa": 1}
    assert stats["sizes"] == {"256x128": 3}
    assert stats["images"] == {"0": 2, "1": 3}
    assert stats["commands"] == {"follow the road": 1, "left": 1}
    assert stats["speeds_mps"] == {"4": 1, "6": 1}
    assert (stats["special_text_in_prompts"], stats["without_id"], stats["unit"]) == (1, 2, "characters")


def command(*arguments: object) -> int:
    return int(as_command(data, "data")([str(argument) for argument in arguments], standalone_mode=False))


def test_exit_codes_of_check_say_what_was_found(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("check", write(folder, GOOD)) == 0
    assert "nothing wrong" in capsys.readouterr().out
    file = write(folder, [*GOOD, *BROKEN["missing_image"], *BROKEN["answer_too_long"]])
    assert command("check", file, "--checkpoint", NANO, "--answer-tokens", 64) == 1
    shown = capsys.readouterr().out
    assert "missing_image 4" in shown
    assert "sample 4: image: expected an image file, got none at 'gone.jpg'" in shown
    assert "5 problems of 2 kinds" in shown
    with pytest.raises(UserError, match="no such file"):
        command("check", folder / "none.jsonl")
    with pytest.raises(UserError, match="a checkpoint folder"):
        command("check", file, "--checkpoint", folder / "none")


def test_the_limits_of_check_are_those_of_training() -> None:
    from typer.main import get_command

    from training.config import DataConfig

    (check,) = (command for name, command in get_command(data).commands.items() if name == "check")
    defaults = {option.name: option.default for option in check.params}
    for name in ("prompt_tokens", "answer_tokens"):
        assert defaults[name] == getattr(DataConfig, name) == getattr(LengthLimits(), name)


def test_check_speaks_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("check", write(folder, [*GOOD, *BROKEN["non_finite"]]), "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["ok"], told["problems"]) == (False, {"non_finite": 2})
    assert told["examples"][0] == {"kind": "non_finite", "sample": 4, "id": "", "detail": "NaN"}


@pytest.mark.parametrize("wanted", ["a", "1"])
def test_show_prints_a_sample_as_a_model_sees_it(folder: Path, capsys, wanted: str) -> None:
    file = write(folder, [plan(id="a", speed_mps=6.5), *GOOD[1:]])
    assert command("show", file, wanted, "--checkpoint", NANO) == 0
    shown = capsys.readouterr().out
    assert "sample 1 of 3, id 'a'" in shown
    assert "human 32 tokens image 1 256 x 128 good.jpg" in shown
    assert WAYPOINTS in shown
    assert '{"speed_mps": 6.5}' in shown
    assert [path.suffix for path in folder.iterdir()].count(".png") == 1  # nothing was written but the fixture's


def test_show_names_what_cannot_be_read_and_passes_by_what_is_no_sample(folder: Path) -> None:
    file = write(folder, ['["a"]', f'{{"id": "deep", "x": {DEEP}', plan(id="a")])
    assert command("show", file, "a") == 0
    with pytest.raises(UserError, match="sample 2: expected valid JSON, got Nested too deep"):
        command("show", file, "deep")


def test_an_id_goes_before_a_number(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("show", write(folder, GOOD), "3") == 0
    assert "sample 3 of 3, id 3" in capsys.readouterr().out
    with pytest.raises(UserError, match="a number from 1 to 3, got 4"):
        command("show", folder / "samples.jsonl", "4")


def test_the_picture_has_waypoints_where_they_are_on_the_road(folder: Path) -> None:
    Image.new("RGB", (256, 128)).save(folder / "good.jpg")
    out = folder / "out" / "a.png"
    assert command("show", write(folder, GOOD), "a", "--checkpoint", NANO, "--images", out) == 0
    sheet = np.asarray(Image.open(out)).astype(int)
    assert sheet.shape == (360, 720 + 360, 3)
    camera, top = sheet[:, :720], sheet[:, 720:]
    rows, columns = np.nonzero(camera[..., 1] > 100)
    expected = ground_to_pixels(CameraSpec(), np.array([[6.0, -0.5]]))[0] * 360 / 128
    near_last = (abs(rows - expected[1]) < 6) & (abs(columns - expected[0]) < 6)
    assert near_last.any()
    assert (top[..., 1] > 150).any()


def test_a_sample_without_anything_to_draw_is_refused_and_no_folder_is_made(folder: Path) -> None:
    file = write(folder, [json.dumps({"id": "t", "conversations": [
        {"from": "human", "value": "Why?"}, {"from": "gpt", "value": "So."}]})])
    with pytest.raises(UserError, match=r"--images: expected .* or waypoints, got neither in sample 1"):
        command("show", file, "t", "--images", folder / "out" / "a.png")
    assert not (folder / "out").exists()


def test_points_on_the_ground_are_seen_where_a_pinhole_camera_has_them() -> None:
    camera = CameraSpec(x_m=1.0, z_m=1.8, width_px=200, height_px=100, hfov_deg=90.0)
    points = ground_to_pixels(camera, np.array([[11.0, 0.0], [11.0, 5.0], [0.5, 0.0]]))
    np.testing.assert_allclose(points[:2], [[100, 50 + 18], [50, 50 + 18]])
    assert np.isnan(points[2]).all()
    down = CameraSpec(x_m=0.0, z_m=1.0, width_px=200, height_px=100, hfov_deg=90.0, pitch_deg=45.0, yaw_deg=90.0)
    np.testing.assert_allclose(ground_to_pixels(down, np.array([[0.0, 1.0]])), [[100, 50]], atol=1e-9)


def test_mix_prints_shares_and_expected_draws(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources = []
    for name, count in (("a", 3), ("b", 1)):
        (folder / f"{name}.jsonl").write_text("\n".join(GOOD[1] for _ in range(count)))
        sources.append({"name": name, "file": str(folder / f"{name}.jsonl"), "weight": count})
    (folder / "mix.yaml").write_text(json.dumps({"sources": sources}))
    assert command("mix", folder / "mix.yaml", "--draws", 400) == 0
    shown = capsys.readouterr().out.split()
    assert {"75.00", "25.00", "300", "100", "100.00"} <= set(shown)
    assert command("mix", folder / "mix.yaml", "--weight", "b=1", "--weight", "a=0") == 0
    assert "75.00" not in capsys.readouterr().out
    with pytest.raises(UserError, match="NAME=WEIGHT"):
        command("mix", folder / "mix.yaml", "--weight", "b")
    with pytest.raises(UserError, match=r"navtrain.jsonl: expected a JSON or JSONL file, got no such file"):
        command("mix", "unified")


def test_histograms_have_few_bins_and_lose_nothing() -> None:
    assert binned({}) == {}
    assert binned({3: 1, 5: 2}) == {"3": 1, "4": 0, "5": 2}
    wide = binned({value: 1 for value in range(-7, 1000)})
    assert (sum(wide.values()), len(wide), next(iter(wide))) == (1007, 12, "-7..76")


