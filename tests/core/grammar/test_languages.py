from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("transformers", reason="needs tokenizers")

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tests.conftest import ROOT
from tests.core.doubles import EOS, byte_tokenizer
from tests.core.grammar.walker import QWEN_EOS, accepts, codec_of, random_answer
from tests.core.qwen_vocabulary import qwen_tokenizer_fast
from wamdiff2_core.chat import ChatCodec
from wamdiff2_core.config import PlanningTask
from wamdiff2_core.decode.grammar import Automaton, detection_language, waypoint_language
from wamdiff2_core.errors import UserError
from wamdiff2_core.tasks.grounding import Detection, Grounding, format_grounding, parse_grounding
from wamdiff2_core.tasks.planning import format_waypoints, parse_waypoints
from wamdiff2_core.types import Waypoints

TOKENIZERS = ["nano", "qwen", "bytes"]
FORMS = [(6, 1), (6, 2), (8, 1), (8, 2), (2, 0), (1, 3)]
LABELS = ["car", "traffic light", "route 66", 'a "quoted" sign', "Fußgänger"]
SEEDS = st.integers(0, 2**32)


@cache
def codec(name: str) -> ChatCodec:
    if name == "qwen":
        return codec_of(qwen_tokenizer_fast(), QWEN_EOS)
    if name == "bytes":
        return codec_of(byte_tokenizer(), EOS)
    return codec_of(AutoTokenizer.from_pretrained(ROOT / "checkpoints" / "wamdiff2-nano"), 2)


@cache
def waypoints(name: str, form: tuple[int, int]) -> tuple[PlanningTask, Automaton]:
    task = PlanningTask(waypoints=form[0], decimals=form[1])
    return task, waypoint_language(codec(name), task)


@cache
def detections(name: str, labels: tuple[str, ...] | None) -> Automaton:
    return detection_language(codec(name), labels)


@settings(max_examples=60)
@given(data=st.data(), name=st.sampled_from(TOKENIZERS), form=st.sampled_from(FORMS))
def test_every_plan_is_accepted_as_it_is_tokenised(data, name, form):
    task, language = waypoints(name, form)
    number = st.floats(-999.4, 999.4) | st.floats(-12, 12) | st.just(-0.01)
    values = data.draw(st.lists(number, min_size=2 * form[0], max_size=2 * form[0]))
    text = format_waypoints(Waypoints(np.array(values).reshape(-1, 2), task.dt_s), task)
    assert accepts(language, codec(name).encode_answer(text))


@settings(max_examples=60)
@given(seed=SEEDS, name=st.sampled_from(TOKENIZERS), form=st.sampled_from(FORMS))
def test_every_path_is_the_tokenisation_of_a_plan(seed, name, form):
    task, language = waypoints(name, form)
    ids = random_answer(language, seed, 200)
    text = codec(name).decode(ids)
    assert format_waypoints(parse_waypoints(text, task), task) == text
    assert codec(name).encode_answer(text) == ids


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize(
    "text", ["1.0", "1.0,2.0,3.0", "1.0,-0.0", "01.0,2.0", "1,2.0", "1.0,2.00", "1000.0,2.0", "-,2.0", "1.0,2.0 "]
)
def test_other_texts_are_not_accepted(name, text):
    language = waypoint_language(codec(name), PlanningTask(waypoints=1, decimals=1))
    assert not accepts(language, codec(name).encode_answer(text))
    assert accepts(language, codec(name).encode_answer("1.0,2.0"))


def test_a_tokenisation_of_one_s_own_is_not_accepted():
    own = codec("qwen")
    ids = own.encode_answer("1.0,-2.0")
    parts = [*ids[:3], *own.encode_text(","), *own.encode_text("-"), *ids[4:]]
    assert own.decode(parts) == own.decode(ids)
    language = waypoint_language(own, PlanningTask(waypoints=1, decimals=1))
    assert accepts(language, ids)
    assert not accepts(language, parts)


def boxes_of(draw_labels):
    side = st.integers(0, 1000) | st.integers(0, 12)
    pair = st.tuples(side, side).map(sorted)
    return st.builds(
        lambda y, x, label: Detection((y[0], x[0], y[1], x[1]), label), pair, pair, draw_labels
    )


@settings(max_examples=60)
@given(name=st.sampled_from(TOKENIZERS), found=st.lists(boxes_of(st.sampled_from(LABELS)), max_size=4))
def test_every_detection_is_accepted_as_it_is_tokenised(name, found):
    text = format_grounding(Grounding(tuple(found)))
    assert accepts(detections(name, tuple(LABELS)), codec(name).encode_answer(text))


@settings(max_examples=60)
@given(seed=SEEDS, name=st.sampled_from(TOKENIZERS))
def test_every_path_is_the_tokenisation_of_detections(seed, name):
    ids = random_answer(detections(name, tuple(LABELS)), seed, 500)
    text = codec(name).decode(ids)
    found = parse_grounding(text)
    assert format_grounding(found) == text
    assert {detection.label for detection in found.detections} <= set(LABELS)
    assert codec(name).encode_answer(text) == ids


@settings(max_examples=60)
@given(
    name=st.sampled_from(TOKENIZERS),
    found=st.lists(boxes_of(st.from_regex(r"[A-Za-z]{1,12}( [A-Za-z]{1,9}| [0-9]{1,3}){0,3}", fullmatch=True)),
                   max_size=3),
)
def test_free_labels_are_words(name, found):
    text = format_grounding(Grounding(tuple(found)))
    assert accepts(detections(name, None), codec(name).encode_answer(text))


@settings(max_examples=40)
@given(seed=SEEDS, name=st.sampled_from(TOKENIZERS))
def test_every_path_with_free_labels_can_be_read(seed, name):
    ids = random_answer(detections(name, None), seed, 400)
    text = codec(name).decode(ids)
    assert format_grounding(parse_grounding(text)) == text


@pytest.mark.parametrize("labels", [[], ["car", " "]])
def test_labels_have_text(labels):
    with pytest.raises(UserError, match="labels"):
        detection_language(codec("bytes"), labels)


def joining(*merges: tuple[str, str]) -> ChatCodec:
    """Characters as tokens, and these merges of byte-pair encoding, without a pre-tokenizer that splits digits."""
    letters = sorted(set('0123456789.,-abcdelotx_"[]{}:') | {"\u0120"})
    words = [*letters, *(first + second for first, second in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=[*merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return codec_of(PreTrainedTokenizerFast(tokenizer_object=tokenizer), 99)


JOINED = {
    "00": [("0", "0")], "22": [("2", "2")], "12": [("1", "2")], "71": [("7", "1")], "1.": [("1", ".")],
    ".4": [(".", "4")], "5,": [("5", ",")], ",8": [(",", "8")], "-3": [("-", "3")], ",-6": [(",", "-"), (",-", "6")],
    "9,-": [(",", "-"), ("9", ",-")],
}


@pytest.mark.parametrize("form", [(6, 1), (8, 2)])
@pytest.mark.parametrize("joined", JOINED)
def test_a_tokenizer_that_joins_across_a_digit_is_refused(joined, form):
    with pytest.raises(UserError, match=r"tokenizer: expected .*joins nothing across a digit") as caught:
        waypoint_language(joining(*JOINED[joined]), PlanningTask(waypoints=form[0], decimals=form[1]))
    assert joined in caught.value.got


FREE, FIXED = None, ("lot 4", "coal")


@pytest.mark.parametrize(("merge", "labels"), [
    (("1", ","), FREE), (("1", ","), FIXED), (("\u0120", "4"), FREE), (("\u0120", "4"), FIXED), (("7", "]"), FREE),
    (("7", "]"), FIXED), (("2", "d"), FIXED), (("4", '"'), FIXED), (("0", "\u0120"), FREE), (('"', "6"), FREE),
])
def test_a_tokenizer_that_joins_numbers_of_boxes_or_labels_is_refused(merge, labels):
    with pytest.raises(UserError, match="joins nothing across a digit"):
        detection_language(joining(merge), labels)


def test_a_separator_of_boxes_may_be_one_token():
    own = joining((",", "\u0120"))
    assert detection_language(own, FIXED).box.separator == (*own.encode_text(", "),)
    assert len(own.encode_text(", ")) == 1


@pytest.mark.parametrize("merges", [[], [(",", "-")], [(".", "."), ("-", "-"), (",", ",")]])
def test_other_merges_are_accepted_and_their_paths_are_the_tokenisation(merges):
    task, own = PlanningTask(waypoints=2, decimals=1), joining(*merges)
    language = waypoint_language(own, task)
    for seed in range(20):
        ids = random_answer(language, seed, 60)
        text = own.decode(ids[:-1])
        assert format_waypoints(parse_waypoints(text, task), task) == text
        assert own.encode_answer(text) == ids


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("form", FORMS)
def test_the_longest_answer_is_as_long_as_the_longest_numbers(name, form):
    task, automaton = waypoints(name, form)
    assert task.y_axis == "right"  # of text, so that both numbers of a waypoint have a minus sign
    widest = Waypoints(np.array([[-999.0, 999.0]] * form[0]), 0.5)
    assert automaton.longest == len(codec(name).encode_answer(format_waypoints(widest, task)))
    assert detection_language(codec(name), ["car"]).longest is None
