"""What is wrong in a conversation file, sample by sample, and what is in it.

A file is read once, whatever is wrong with it: a broken line costs that line only (a broken JSON list, what follows).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from training.data.limits import LengthLimits
from training.data.sources import ConversationIndex
from training.data.tokens import TokenCounter
from wamdiff2_core.config import PlanningTask
from wamdiff2_core.conversations import Conversation, ConversationError, lone_surrogate, parse_json, resolve_image
from wamdiff2_core.dataset import image_marks
from wamdiff2_core.errors import UserError
from wamdiff2_core.images import MAX_ASPECT_RATIO
from wamdiff2_core.tasks.grounding import parse_grounding
from wamdiff2_core.tasks.planning import parse_waypoints
from wamdiff2_core.tasks.recognise import asked_task, asked_waypoints
from wamdiff2_core.tasks.text import AnswerError

# Kinds of problems, in the order of the report, with what each means.
KINDS = {
    "empty_file": "a file without samples",
    "bad_utf8": "not UTF-8",
    "malformed_json": "not JSON, nested too deep, or an integer too long",
    "duplicate_key": "a key that stands twice in one object, of which only the last is read",
    "non_finite": "NaN or an infinite number",
    "lone_surrogate": "half of a surrogate pair, which has no UTF-8 and no tokens",
    "bad_sample": "not of the documented shape",
    "bad_id": "an id that is neither text nor an integer",
    "unknown_role": "a role other than system, human, gpt",
    "bad_turns": "does not end with a question and its answer",
    "empty_question": "nothing asked",
    "empty_answer": "nothing to learn",
    "image_count": "other images than <image> marks",
    "missing_image": "no image file of that name",
    "unreadable_image": "an image that cannot be decoded",
    "image_shape": f"an image more than {MAX_ASPECT_RATIO} times longer than wide",
    "waypoints": "a planning answer that is not the asked number of waypoints",
    "detections": "a grounding answer that is not the asked JSON",
    "special_token": "an answer that spells a special token, which no model will ever say",
    "image_limits": "min_pixels or max_pixels that the checkpoint's image policy does not allow",
    "prompt_too_long": "a prompt over the limit",
    "answer_too_long": "an answer over the limit",
    "duplicate_id": "an id that an earlier sample has",
}
# Both the nano's tokenizer and Qwen's write them so.
_SPECIAL = re.compile(r"<\|[a-z0-9_]+\|>")
_COMMAND = re.compile(r"Command: ([^\n]+)|The navigation information is: (\w+)\.?$", re.MULTILINE)
_SPEED = re.compile(r"[Cc]urrent velocity is: \(?(-?\d+(?:\.\d+)?)")
_BATCH = 256
_REMEMBERED_IMAGES = 65536


@dataclass
class Statistics:
    """What is in a file; histograms are counters of whole numbers, so they stay small.

    Attributes:
        samples: read, broken ones included.
        sources: samples by datasource.
        turns: samples by number of human and gpt turns.
        images: samples by number of images.
        sizes: images by (width, height).
        commands: planning samples by command.
        speeds_mps: planning samples by speed, rounded down.
        prompt_length, answer_length: samples by length, tokens or characters.
        unit: `tokens` or `characters`.
        special_text_in_prompts: samples whose prompt spells a special token; it is encoded as plain text.
        without_id: samples without an id.
    """

    unit: str
    samples: int = 0
    sources: Counter[str] = field(default_factory=Counter)
    turns: Counter[int] = field(default_factory=Counter)
    images: Counter[int] = field(default_factory=Counter)
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    commands: Counter[str] = field(default_factory=Counter)
    speeds_mps: Counter[int] = field(default_factory=Counter)
    prompt_length: Counter[int] = field(default_factory=Counter)
    answer_length: Counter[int] = field(default_factory=Counter)
    special_text_in_prompts: int = 0
    without_id: int = 0


@dataclass(frozen=True)
class Problem:
    """One thing wrong with one sample: its number in the file, its id, and what exactly."""

    kind: str
    sample: int
    id: str
    detail: str


@dataclass
class Report:
    """Outcome of a check.

    Attributes:
        counts: problems by kind.
        examples: the first few problems of each kind.
        statistics: what is in the file.
    """

    statistics: Statistics
    counts: Counter[str] = field(default_factory=Counter)
    examples: list[Problem] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.counts

    def to_json(self) -> dict[str, Any]:
        stats = {name: _plain(value) for name, value in vars(self.statistics).items()}
        return {"ok": self.ok, "problems": dict(self.counts), "examples": [vars(p) for p in self.examples],
                "statistics": stats}


def _plain(value: Any) -> Any:
    """Counters with keys that JSON has, in order."""
    if not isinstance(value, Counter):
        return value
    return {"x".join(map(str, key)) if isinstance(key, tuple) else str(key): value[key] for key in sorted(value)}


class FileCheck:
    """Checks one file; see `run`."""

    def __init__(
        self,
        file: Path,
        counter: TokenCounter | None = None,
        limits: LengthLimits | None = None,
        examples: int = 5,
        decode_images: bool = True,
        threads: int = 1,
        cache: Path | None = None,
    ) -> None:
        """Prepare.

        Args:
            file: conversation file.
            counter: counts tokens; without one lengths are in characters and limits are not checked.
            limits: of prompt and answer.
            examples: problems of each kind that are kept with their details; 0 keeps all.
            decode_images: False only reads their heads: faster, and blind to files that are cut off.
            threads: that open images.
            cache: folder for the file's index.
        """
        self.file, self._counter, self._limits = file, counter, limits
        self._examples, self._decode, self._threads, self._cache = examples, decode_images, threads, cache
        self._report = Report(Statistics("tokens" if counter else "characters"))
        self._ids = array("Q")  # hashes: the ids of millions of samples need not be held
        self._id_rows = array("Q")
        self._look = lru_cache(maxsize=_REMEMBERED_IMAGES)(self._look_at)

    def run(self, progress: Callable[[int, int], None] = lambda done, total: None) -> Report:
        """Read the file once.

        Args:
            progress: called with samples done and samples in all.
        """
        index = ConversationIndex(self.file, self._cache, up_to_fault=True)
        with ThreadPoolExecutor(self._threads) as pool:
            for start in range(0, len(index), _BATCH):
                rows = range(start, min(start + _BATCH, len(index)))
                parsed = [(row + 1, self._parse(index.raw(row), row + 1)) for row in rows]
                for number, conversation, paths, looks in self._with_looks(parsed, pool):
                    self._check(number, conversation, paths, looks)
                progress(rows.stop, len(index))
        self._report.statistics.samples = len(index)
        if index.fault is not None:
            self._add_fault(index.fault, len(index) + 1)
        elif not len(index):
            self._add("empty_file", 0, "", str(self.file))
        self._find_duplicates(index)
        return self._report

    def _add_fault(self, fault: UserError, number: int) -> None:
        """Note where a list breaks: in or before sample `number`, or behind the list."""
        if fault.got == "an empty file":
            self._add("empty_file", 0, "", str(self.file))
            return
        kind = "bad_utf8" if fault.expected == "UTF-8 text" else "malformed_json"
        self._add(kind, number, "", str(fault))

    def _parse(self, raw: bytes, number: int) -> Conversation | None:
        """The conversation of a sample, or None after its problem has been noted."""
        odd: list[str] = []

        def constant(name: str) -> float:
            odd.append(name)
            return 0.0

        def number_of(text: str) -> float:
            value = float(text)
            return value if math.isfinite(value) else constant(text)

        twice: list[str] = []

        def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            found = dict(pairs)
            if len(found) < len(pairs):
                twice.extend(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
            return found

        try:
            data = parse_json(
                raw.decode("utf-8"), parse_constant=constant, parse_float=number_of, object_pairs_hook=object_of
            )
        except UnicodeDecodeError as error:
            return self._add("bad_utf8", number, "", f"byte {raw[error.start]:#x} at offset {error.start}")
        except json.JSONDecodeError as error:
            return self._add("malformed_json", number, "", f"{error.msg} at character {error.pos}")
        given = data.get("id") if isinstance(data, dict) else None
        name = str(given) if isinstance(given, (str, int)) else ""
        if lone_surrogate(name):
            name = ascii(name)  # it is printed
        if twice:
            self._add("duplicate_key", number, name, ", ".join(map(repr, sorted(set(twice)))))
        if odd:
            self._add("non_finite", number, name, ", ".join(sorted(set(odd))))
        try:
            return Conversation.from_json(data)
        except ConversationError as error:
            return self._add(error.kind, number, name, str(error))

    def _with_looks(
        self, parsed: Iterable[tuple[int, Conversation | None]], pool: ThreadPoolExecutor
    ) -> Iterator[tuple[int, Conversation, list[Path | str], list[tuple[int, int] | str]]]:
        """Samples with their image files and what is in them; images are opened in the pool, samples stay in order."""
        good = [(number, conversation) for number, conversation in parsed if conversation is not None]
        paths = [[self._find(name) for name in conversation.images] for _, conversation in good]
        looks = iter(pool.map(self._look, [path for own in paths for path in own if isinstance(path, Path)]))
        for (number, conversation), own in zip(good, paths, strict=True):
            yield number, conversation, own, [next(looks) for path in own if isinstance(path, Path)]

    def _find(self, name: str) -> Path | str:
        try:
            return resolve_image(name, self.file.parent)
        except ConversationError as error:
            return str(error)

    def _look_at(self, path: Path) -> tuple[int, int] | str:
        """(width, height) of an image, or why it cannot be read."""
        from PIL import Image

        try:
            with Image.open(path) as image:
                size = image.size
                if self._decode:
                    image.draft("RGB", (1, 1))  # JPEG: all data are read, but few pixels are computed
                    image.load()
                return size
        except Exception as error:  # each decoder has its own, such as AVIF's RuntimeError
            return f"{path}: {error}"

    def _check(
        self, number: int, conversation: Conversation, paths: list[Path | str], looks: list[tuple[int, int] | str]
    ) -> None:
        stats = self._report.statistics
        name = "" if conversation.id is None else str(conversation.id)
        stats.sources[conversation.datasource or "(none)"] += 1
        stats.turns[sum(turn.role != "system" for turn in conversation.turns)] += 1
        stats.images[len(conversation.images)] += 1
        if conversation.id is None:
            stats.without_id += 1
        else:
            self._ids.append(_hash(name))
            self._id_rows.append(number)
        for path in paths:
            if isinstance(path, str):
                self._add("missing_image", number, name, path)
        sizes = []
        for look in looks:
            if isinstance(look, str):
                self._add("unreadable_image", number, name, look)
                continue
            sizes.append(look)
            stats.sizes[look] += 1
            if max(look) > MAX_ASPECT_RATIO * min(look):
                self._add("image_shape", number, name, f"{look[0]} x {look[1]} pixels")
                sizes.pop()
        marks = image_marks(conversation)
        if marks != len(conversation.images):
            self._add("image_count", number, name, f"{marks} marks, {len(conversation.images)} images")
        try:
            exchange = conversation.exchange
        except ConversationError as error:
            self._add("bad_turns", number, name, str(error))
            return
        if not exchange.question.strip():
            self._add("empty_question", number, name, repr(exchange.question))
        if not exchange.answer.strip():
            self._add("empty_answer", number, name, repr(exchange.answer))
        else:
            self._check_answer(number, name, exchange.question, exchange.answer)
        prompt = [exchange.question, *(turn.text for turn in exchange.history), exchange.system or ""]
        if any(_SPECIAL.search(text) for text in prompt):
            stats.special_text_in_prompts += 1
        whole = marks == len(conversation.images) == len(sizes)
        self._check_lengths(number, name, conversation, sizes if whole else None)

    def _check_answer(self, number: int, name: str, question: str, answer: str) -> None:
        stats = self._report.statistics
        if found := _SPECIAL.search(answer):
            self._add("special_token", number, name, found.group())
        if (asked := asked_waypoints(question)) is not None:
            try:
                parse_waypoints(answer, PlanningTask(waypoints=max(1, asked)))
            except AnswerError as error:
                self._add("waypoints", number, name, str(error))
            if command := _COMMAND.search(question):
                stats.commands[(command.group(1) or command.group(2)).rstrip(".")] += 1
            if speed := _SPEED.search(question):
                speed_mps = float(speed.group(1))
                if math.isfinite(speed_mps):
                    stats.speeds_mps[math.floor(speed_mps)] += 1
                else:
                    self._add("non_finite", number, name, "the speed of the prompt")
        elif asked_task(question) == "grounding":
            try:
                parse_grounding(answer)
            except AnswerError as error:
                self._add("detections", number, name, str(error))

    def _check_lengths(
        self, number: int, name: str, conversation: Conversation, sizes: list[tuple[int, int]] | None
    ) -> None:
        """Count a sample's lengths; a prompt whose images cannot be read has none in tokens."""
        stats, exchange = self._report.statistics, conversation.exchange
        if self._counter is None:
            texts = [exchange.question, *(turn.text for turn in exchange.history), exchange.system or ""]
            stats.prompt_length[sum(map(len, texts))] += 1
            stats.answer_length[len(exchange.answer)] += 1
            return
        lengths = {"answer": self._counter.answer(exchange.answer)}
        stats.answer_length[lengths["answer"]] += 1
        if sizes is not None:
            try:
                lengths["prompt"] = self._counter.prompt(conversation, sizes)
            except UserError as error:
                self._add("image_limits", number, name, str(error))
            else:
                stats.prompt_length[lengths["prompt"]] += 1
        for part, length in lengths.items():
            limit = None if self._limits is None else getattr(self._limits, f"{part}_tokens")
            if limit is not None and length > limit:
                self._add(f"{part}_too_long", number, name, f"{length} tokens, {limit} allowed")

    def _find_duplicates(self, index: ConversationIndex) -> None:
        ids, rows = np.frombuffer(self._ids, np.uint64), np.frombuffer(self._id_rows, np.uint64)
        order = np.lexsort((rows, ids))
        ids, rows = ids[order], rows[order]
        again = np.concatenate([[False], ids[1:] == ids[:-1]]) if len(ids) else np.zeros(0, bool)
        first = np.maximum.accumulate(np.where(again, 0, np.arange(len(ids))))
        for place in sorted(np.flatnonzero(again), key=lambda place: rows[place]):
            number = int(rows[place])
            name = str(index.object(number - 1)["id"]) if self._wants_example("duplicate_id") else ""
            self._add("duplicate_id", number, name, f"sample {int(rows[first[place]])} has it too")

    def _wants_example(self, kind: str) -> bool:
        return not self._examples or self._report.counts[kind] < self._examples

    def _add(self, kind: str, number: int, name: str, detail: str) -> None:
        if self._wants_example(kind):
            self._report.examples.append(Problem(kind, number, name, detail))
        self._report.counts[kind] += 1


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
