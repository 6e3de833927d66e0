"""One process's share of `wamdiff2 predict`: every `world`-th sample, answered and written to a journal of its own.

Whoever finds all samples answered merges the journals into the output, so processes need no rendezvous, and any of
them can be killed and started again.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wamdiff2_core.config import DecodeConfig, ImagePolicy
from wamdiff2_core.conversations import Conversation, ConversationError, read_objects, read_rgb, resolve_image
from wamdiff2_core.errors import ExitCode, UserError
from wamdiff2_core.journal import FolderLock, Journal, check_same_request, read_journal, replace_file
from wamdiff2_core.outputs import DISK_ERRNOS
from wamdiff2_core.tasks.recognise import asked_task

if TYPE_CHECKING:
    from wamdiff2_core.decode.grammar import Automaton
    from wamdiff2_core.model.checkpoint import Checkpoint

DEFAULT_DATASOURCE = "navsim"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PredictRequest:
    """A whole prediction run, resolved and checked.

    Attributes:
        model: checkpoint folder.
        input_file, output_file: conversation file, and where the answers go.
        decode: decoding; sample i draws with seed + i, so its answer does not depend on who computes it.
        images: image policy of samples that name no limits of their own.
        images_fixed: the policy is the checkpoint's: a sample that asks for other limits is refused.
        device, dtype: `auto` or a torch name.
        backend: what runs the model.
        overwrite: drop what an earlier run left.
        fingerprint: what a journal must agree on to be continued.
    """

    model: Path
    input_file: Path
    output_file: Path
    decode: DecodeConfig
    images: ImagePolicy
    images_fixed: bool
    device: str
    dtype: str
    backend: str
    overwrite: bool
    fingerprint: Mapping[str, Any]

    def journal_path(self, rank: int) -> Path:
        """Journal of one process."""
        part = f".{rank}" if rank else ""
        return self.output_file.with_name(f"{self.output_file.name}.journal{part}.jsonl")

    def journal_paths(self) -> list[Path]:
        """Journals of all processes of this run and of earlier ones."""
        name = self.output_file.name
        folder = self.output_file.parent
        parts = [path for path in folder.iterdir() if path.name.startswith(f"{name}.journal.")]
        return sorted(path for path in parts if path.suffix == ".jsonl")


class Answerer:
    """Turns samples into rows of the output with one loaded checkpoint."""

    def __init__(self, request: PredictRequest, device: str) -> None:
        """Load the checkpoint.

        Args:
            request: the run.
            device: torch device of this process.
        """
        from wamdiff2_core.decode import Generator
        from wamdiff2_core.model.checkpoint import load_checkpoint

        self._request = request
        self._checkpoint: Checkpoint = load_checkpoint(
            request.model,
            device=device,
            dtype=None if request.dtype == "auto" else request.dtype,
            images=None if request.images_fixed else request.images,
            backend=request.backend,
        )
        self._generator = Generator(self._checkpoint)
        self._decodings: dict[str, tuple[DecodeConfig, Automaton | None]] = {}
        self._warm = not request.decode.deadline_ms

    def answer(self, index: int, data: object) -> dict[str, Any]:
        """Row of the output for one sample; a fault of the sample is told in its `error`."""
        row = output_row(index, data)
        try:
            sample = Conversation.from_json(data)
            row["prediction"] = self._predict(index, sample)
        except (ConversationError, UserError) as error:
            return row | {"prediction": "", "ground_truth": "", "error": str(error)}
        row["ground_truth"] = sample.answer or ""
        return row

    def _predict(self, index: int, sample: Conversation) -> str:
        from wamdiff2_core.chat import ChatRequest

        beside = self._request.input_file.parent
        images = tuple(read_rgb(resolve_image(path, beside)) for path in sample.images)
        codec = self._checkpoint.chat.with_pixel_limits(
            sample.min_pixels, sample.max_pixels, fixed=self._request.images_fixed
        )
        request = ChatRequest(sample.question, images, sample.system)
        decode, language = self._decoding(sample.question)
        decode = replace(decode, seed=decode.seed + index)

        def answer() -> str:
            began_ns = self._generator.clock()
            inputs = codec.encode(request)
            return str(self._generator.generate([inputs], decode, grammars=[language], began_ns=began_ns)[0].text)

        if not self._warm:
            answer()  # the first answer of a process is slow, and its steps cannot be foreseen
            self._warm = True
        return answer()

    def _decoding(self, question: str) -> tuple[DecodeConfig, Automaton | None]:
        """How a question is decoded, but for the seed, and the language of its answers; made once for a task."""
        from wamdiff2_core.decode.grammar import task_decoding

        task = asked_task(question)
        if task not in self._decodings:
            self._decodings[task] = task_decoding(
                task, self._checkpoint.chat, self._checkpoint.record, self._request.decode
            )
        return self._decodings[task]


def output_row(index: int, data: object) -> dict[str, Any]:
    """The output schema, filled with what any sample has.

    `id` defaults to the position in the file. `question` is the first turn whoever speaks it, as in the authors' files:
    the system text where there is one.
    """
    known: Mapping[str, Any] = data if isinstance(data, Mapping) else {}
    turns = known.get("conversations")
    first = turns[0] if isinstance(turns, list) and turns else None
    text = first.get("value") if isinstance(first, Mapping) else None
    return {
        "id": known.get("id", index),
        "datasource": known.get("datasource", DEFAULT_DATASOURCE),
        "image": known.get("image", []),
        "question": text if isinstance(text, str) else "",
        "prediction": "",
        "ground_truth": "",
    }


def answer_share(request: PredictRequest, rank: int, world: int, device: str, progress: Callable[[int], None]) -> None:
    """Answer samples rank, rank + world, ... that no journal holds yet.

    Args:
        request: the run.
        rank: of this process, from 0.
        world: number of processes.
        device: torch device.
        progress: told the number of answered samples of this share.

    Raises:
        UserError: journals of another request are there and `overwrite` is not set.
    """
    samples = read_objects(request.input_file)
    with Journal(request.journal_path(rank), request.fingerprint, overwrite=request.overwrite) as journal:
        done = set(answered(request, world)) if not request.overwrite else set()
        share = range(rank, len(samples), world)
        todo = [index for index in share if index not in done]
        progress(len(share) - len(todo))
        answerer = Answerer(request, device) if todo else None
        for count, index in enumerate(todo, len(share) - len(todo) + 1):
            assert answerer is not None
            journal.append({"index": index, "row": answerer.answer(index, samples[index])})
            progress(count)


def answered(request: PredictRequest, world: int) -> dict[int, dict[str, Any]]:
    """Rows of all journals of this request, by position in the input.

    With `overwrite` only those of this run's `world` processes count, which each of them has emptied: an earlier run of
    the same request may have left journals of more processes.

    Raises:
        UserError: a journal belongs to another request and `overwrite` is not set.
    """
    own = [request.journal_path(rank) for rank in range(world)]
    rows: dict[int, dict[str, Any]] = {}
    for path in own if request.overwrite else request.journal_paths():
        found, items = read_journal(path)
        if not items or (request.overwrite and found != request.fingerprint):
            continue
        check_same_request(path, found, request.fingerprint)
        rows.update((item["index"], item["row"]) for item in items)
    return rows


def merge(request: PredictRequest, count: int, world: int) -> list[dict[str, Any]] | None:
    """Write the output in input order and remove all journals, once all `count` samples are answered.

    Args:
        request: the run.
        count: of samples.
        world: number of processes.

    Returns:
        The rows, or None when other processes are still at work or have merged already.
    """
    with FolderLock(request.output_file.parent):
        journals = request.journal_paths()
        rows = answered(request, world)
        if not journals or len(rows) < count:
            return None
        ordered = [rows[index] for index in range(count)]
        if request.output_file.suffix == ".jsonl":
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ordered)
        else:
            text = json.dumps(ordered, indent=4, ensure_ascii=False) + "\n"
        replace_file(request.output_file, text)
        for path in journals:
            path.unlink(missing_ok=True)
        return ordered


def worker_process(request: PredictRequest, rank: int, world: int, device: str, counts: Any, outcome: Any) -> None:
    """Entry of a spawned process; ends with its parent, whatever ended that.

    Args:
        request, rank, world, device: see `answer_share`.
        counts: shared array; slot `rank` is the number of answered samples.
        outcome: connection that tells the parent of an error that the user can act on.
    """
    import multiprocessing
    import threading

    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow_parent, daemon=True).start()
    limit_threads(world)

    def progress(count: int) -> None:
        counts[rank] = count

    try:
        answer_share(request, rank, world, device, progress)
    except UserError as error:
        outcome.send(error)
        raise SystemExit(int(error.exit_code)) from None
    except OSError as error:
        if error.errno not in DISK_ERRNOS:
            raise
        outcome.send(error)
        raise SystemExit(int(ExitCode.INFRASTRUCTURE)) from None


def limit_threads(world: int) -> None:
    """Share the cores of this machine among `world` processes, unless OMP_NUM_THREADS decides."""
    if world > 1 and "OMP_NUM_THREADS" not in os.environ:
        import torch

        torch.set_num_threads(max(1, (os.cpu_count() or 1) // world))
