"""Grounding: the published prompt, the strict and the lenient reading, the grid, and scores from the decode."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wamdiff2_core.config import GroundingTask
from wamdiff2_core.errors import UserError
from wamdiff2_core.tasks.grounding import (
    Detection,
    Grounding,
    GroundingRequest,
    box_from_pixels,
    box_scores,
    format_grounding,
    grounding_prompt,
    parse_grounding,
    pixels_from_box,
)
from wamdiff2_core.tasks.text import AnswerError

CAR = '{"bbox_2d": [12, 34, 156, 178], "label": "car"}'
BUS = '{"bbox_2d": [0, 0, 1000, 1000], "label": "b\\u00fcs \\"2\\""}'
TWO = f"[{CAR}, {BUS}]"
FOUND = (Detection((12, 34, 156, 178), "car"), Detection((0, 0, 1000, 1000), 'büs "2"'))


@st.composite
def boxes(draw):
    y_min, y_max = sorted((draw(st.integers(0, 1000)), draw(st.integers(0, 1000))))
    x_min, x_max = sorted((draw(st.integers(0, 1000)), draw(st.integers(0, 1000))))
    return y_min, x_min, y_max, x_max


labels = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(str.strip)
detections = st.builds(Detection, boxes(), labels)
groundings = st.builds(Grounding, st.lists(detections, max_size=5).map(tuple))


def test_the_prompt_is_the_published_text():
    expected = (
        "<image>\nLocate every object that matches the description \u2018\u2018the red {car}\u2019\u2019 in the image. "
        "Report bbox coordinates in JSON format."
    )
    assert grounding_prompt(GroundingRequest("the red {car}")).encode() == expected.encode()


@pytest.mark.parametrize(("quotes", "shown"), [("curly", "\u201ccar\u201d"), ("straight", '"car"')])
def test_other_quotation_marks_are_an_option_of_the_task(quotes, shown):
    assert f"description {shown} in" in grounding_prompt(GroundingRequest("car"), GroundingTask(quotes))


def test_a_description_takes_no_image_of_its_own():
    with pytest.raises(UserError, match="description: expected text without the image mark"):
        grounding_prompt(GroundingRequest("car in <image>"))


def test_an_answer_is_read_y_first_with_the_place_of_every_number():
    answer = parse_grounding(TWO)
    assert answer == Grounding(FOUND)
    assert answer.fault is None
    read = [[TWO[start:end] for start, end in spans] for spans in answer.number_spans]
    assert read == [["12", "34", "156", "178"], ["0", "0", "1000", "1000"]]
    assert parse_grounding("[]") == parse_grounding(" [ ] \n") == Grounding(())
    assert parse_grounding(json.dumps(json.loads(TWO), indent=2)) == answer


@given(groundings)
def test_answers_survive_their_text(grounding):
    text = format_grounding(grounding)
    assert parse_grounding(text) == grounding
    assert [item["bbox_2d"] for item in json.loads(text)] == [list(found.box) for found in grounding.detections]
    assert format_grounding(parse_grounding(text)) == text


@pytest.mark.parametrize(
    ("text", "position", "problem"),
    [
        ("", 0, "'['"),
        ("none", 0, "'['"),
        ("```json\n[]\n```", 0, "'['"),
        ("[] and more", 3, "the end"),
        (f"[{CAR}", 48, "',' or ']'"),
        (f"[{CAR},]", 49, "'{'"),
        (f"[{CAR} {CAR}]", 49, "',' or ']'"),
        ('[{"bbox": [1, 2, 3, 4], "label": "car"}]', 2, "bbox_2d"),
        ('[{"label": "car", "bbox_2d": [1, 2, 3, 4]}]', 2, "bbox_2d"),
        ('[{"bbox_2d": [1, 2, 3], "label": "car"}]', 21, "','"),
        ('[{"bbox_2d": [1, 2, 3, 4, 5], "label": "car"}]', 24, "']' after 4 integers"),
        ('[{"bbox_2d": [1, 2.5, 3, 4], "label": "car"}]', 18, "','"),
        ('[{"bbox_2d": [1, -2, 3, 4], "label": "car"}]', 17, "integer 2 of 4, from 0 to 1000"),
        ('[{"bbox_2d": [1, 2, 3, 1001], "label": "car"}]', 23, "integer 4 of 4, from 0 to 1000"),
        ('[{"bbox_2d": [1, 2, 3, 00004], "label": "car"}]', 23, "integer 4 of 4"),
        ('[{"bbox_2d": [1, 2, 3, \u0664], "label": "car"}]', 23, "integer 4 of 4"),
        ('[{"bbox_2d": [1, "2", 3, 4], "label": "car"}]', 17, "integer 2 of 4"),
        ('[{"bbox_2d": [5, 2, 3, 4], "label": "car"}]', 14, "each minimum at most its maximum"),
        ('[{"bbox_2d": [1, 9, 3, 4], "label": "car"}]', 14, "each minimum at most its maximum"),
        ('[{"bbox_2d": [1, 2, 3, 4]}]', 25, "',' and a label"),
        ('[{"bbox_2d": [1, 2, 3, 4], "name": "car"}]', 27, "label"),
        ('[{"bbox_2d": [1, 2, 3, 4], "label": car}]', 36, "a label in double quotes"),
        ('[{"bbox_2d": [1, 2, 3, 4], "label": 7}]', 36, "a label in double quotes"),
        ('[{"bbox_2d": [1, 2, 3, 4], "label": ""}]', 36, "not empty"),
        ('[{"bbox_2d": [1, 2, 3, 4], "label": "ca', 36, "a whole JSON string"),
        ('[{"bbox_2d": [1, 2, 3, 4], "label": "\\ud83d"}]', 36, "whole characters"),
        ('[{"bbox_2d": [1, 2, 3, 4], "label": "car", "score": 1}]', 41, "'}'"),
    ],
)
def test_anything_but_the_list_is_refused_at_the_first_odd_character(text, position, problem):
    with pytest.raises(AnswerError) as caught:
        parse_grounding(text)
    assert caught.value.position == position
    assert problem in caught.value.problem
    lenient = parse_grounding(text, lenient=True)
    assert (lenient.fault.position, lenient.fault.problem) == (position, caught.value.problem)


@given(groundings, st.data())
def test_of_an_answer_cut_anywhere_the_whole_objects_are_kept(grounding, data):
    text = format_grounding(grounding)
    cut = data.draw(st.integers(0, len(text) - 1))
    answer = parse_grounding(text[:cut], lenient=True)
    ends = [text.index(json.dumps(found.label, ensure_ascii=False) + "}", spans[-1][1]) for found, spans in zip(
        grounding.detections, parse_grounding(text).number_spans, strict=True)]
    whole = [found for found, end in zip(grounding.detections, ends, strict=True)
             if end + len(json.dumps(found.label, ensure_ascii=False)) + 1 <= cut]
    assert list(answer.detections) == whole
    assert answer.fault is not None


def test_a_damaged_object_does_not_take_the_others_with_it():
    bad = '{"bbox_2d": [1, 2, 3], "label": "car"}'
    cut = '{"bbox_2d": [3'
    for text in (f"[{CAR}, {bad}, {BUS}]", f"Sure:\n```json\n{TWO}\n```", f"[{CAR} {BUS}", f"{CAR}, {cut}{BUS}"):
        answer = parse_grounding(text, lenient=True)
        assert answer.detections == FOUND
        assert answer.fault is not None
        assert [text[slice(*spans[0])] for spans in answer.number_spans] == ["12", "0"]
    assert parse_grounding(TWO, lenient=True).fault is None


def test_an_object_spelled_inside_a_label_is_no_object():
    spelled = json.dumps([{"bbox_2d": [1, 2, 3, 4], "label": CAR}])
    assert parse_grounding(spelled[:-1], lenient=True).detections == (Detection((1, 2, 3, 4), CAR),)


@given(st.text(alphabet='[]{}",: 0123box_2dlabel', max_size=60))
def test_reading_never_fails_in_another_way(text):
    lenient = parse_grounding(text, lenient=True)
    if lenient.fault is None:
        assert parse_grounding(text) == lenient
    else:
        assert 0 <= lenient.fault.position <= len(text)
        with pytest.raises(AnswerError):
            parse_grounding(text)


@pytest.mark.parametrize(
    ("box", "label"),
    [((5, 0, 4, 9), "car"), ((0, 5, 9, 4), "car"), ((-1, 0, 1, 1), "car"), ((0, 0, 1, 1001), "car"),
     ((0, 0, 1, 1), " "), ((0, 0, 1, 1), "\ud83d")],
)
def test_a_detection_that_no_answer_may_hold_cannot_be_made(box, label):
    with pytest.raises(ValueError, match=r"box|label|surrogates"):
        Detection(box, label)


def test_pixels_go_to_the_grid_y_first_and_are_cut_at_the_edges():
    assert box_from_pixels(192.0, 54.0, 960.0, 1080.0, 1920, 1080) == (50, 100, 1000, 500)
    assert box_from_pixels(-5.0, -5.0, 2000.0, 1090.0, 1920, 1080) == (0, 0, 1000, 1000)
    assert pixels_from_box((50, 100, 1000, 500), 1920, 1080) == (192.0, 54.0, 960.0, 1080.0)


@given(boxes(), st.integers(1, 4000), st.integers(1, 4000))
def test_the_grid_goes_to_pixels_and_back_to_itself(box, width_px, height_px):
    assert box_from_pixels(*pixels_from_box(box, width_px, height_px), width_px, height_px) == box


@given(st.integers(16, 4000), st.integers(16, 4000), st.data())
def test_pixels_come_back_within_half_a_grid_line(width_px, height_px, data):
    x = sorted(data.draw(st.tuples(*[st.floats(0, width_px)] * 2)))
    y = sorted(data.draw(st.tuples(*[st.floats(0, height_px)] * 2)))
    edges = x[0], y[0], x[1], y[1]
    back = pixels_from_box(box_from_pixels(*edges, width_px, height_px), width_px, height_px)
    limits = [size / 2000 + 1e-6 for size in (width_px, height_px) * 2]
    assert all(abs(a - b) <= limit for a, b, limit in zip(edges, back, limits, strict=True))


def test_a_score_is_the_mean_over_the_tokens_of_the_four_numbers():
    text = '[{"bbox_2d": [12, 3, 40, 5], "label": "7"}, {"bbox_2d": [1, 2, 3, 4], "label": "x"}]'
    spans = [(index, index + 1) for index in range(len(text))]
    confidence = [0.0] * len(text)
    digits = [text.index("[12") + 1 + offset for offset in (0, 1, 4, 7, 8, 11)]
    for index, probability in zip(digits, (0.5, 0.6, 0.7, 0.8, 0.9, 1.0), strict=True):
        confidence[index] = probability
    first, second = box_scores(parse_grounding(text), spans, confidence)
    assert first == pytest.approx(4.5 / 6)
    assert second == 0.0


def test_a_token_that_holds_two_numbers_counts_once():
    text = '[{"bbox_2d": [1, 2, 3, 4], "label": "x"}]'
    start = text.index("1")
    spans = [(0, start), (start, start + 4), (start + 4, start + 7), (start + 7, start + 10), (start + 10, len(text))]
    assert box_scores(parse_grounding(text), spans, [0.0, 0.9, 0.6, 0.3, 0.0]) == (pytest.approx(0.6),)


def test_scores_of_another_answer_are_refused():
    with pytest.raises(ValueError, match="expected tokens at characters"):
        box_scores(parse_grounding(TWO), [(0, 3)], [1.0])
