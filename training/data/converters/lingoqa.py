"""LingoQA: questions about five frames to samples.

Layout (LingoQA's download): `SRC/scenery/train.parquet`, `SRC/action/train.parquet`, `SRC/evaluation/val.parquet`, each
with its `images` folder beside it. A row has `question_id`, `segment_id`, `images` (paths relative to the parquet
file's folder, in time order), `question` and `answer`; a question may stand in several rows, one for each answer.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from training.data.converters.common import Writer
from wamdiff2_core.errors import UserError
from wamdiff2_core.tasks.lingoqa import FRAMES, LingoQaRequest, lingoqa_prompt

COLUMNS = ("question_id", "segment_id", "images", "question", "answer")
TRAINING_FILES = (Path("scenery") / "train.parquet", Path("action") / "train.parquet")


def convert(src: Path, writer: Writer) -> None:
    """Write a sample for each row, reading a part of the file at a time.

    Args:
        src: LingoQA's folder (both training parts), or one parquet file.
        writer: where to.

    Raises:
        UserError: there is no such file, or it lacks a column.
    """
    files = [src] if src.is_file() else [src / name for name in TRAINING_FILES if (src / name).is_file()]
    if not files:
        expected = "LingoQA's layout, " + " and ".join(map(str, TRAINING_FILES))
        raise UserError("SRC", expected, f"nothing of it in {src}", "or name a parquet file itself")
    seen: Counter[str] = Counter()
    for file in files:
        _convert_file(file, writer, seen)


def _convert_file(file: Path, writer: Writer, seen: Counter[str]) -> None:
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.ParquetFile(file)
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(str(file), "a parquet file", str(error)) from None
    if missing := [name for name in COLUMNS if name not in table.schema_arrow.names]:
        raise UserError(str(file), "the columns " + ", ".join(COLUMNS), "without " + ", ".join(missing))
    for batch in table.iter_batches(batch_size=1024, columns=list(COLUMNS)):
        for row in batch.to_pylist():
            if writer.full:
                return
            _convert_row(row, file.parent, writer, seen)


def _convert_row(row: dict[str, Any], folder: Path, writer: Writer, seen: Counter[str]) -> None:
    name, question, answer = str(row["question_id"]), row["question"], row["answer"]
    images = row["images"] or []
    if not isinstance(question, str) or not isinstance(answer, str) or not answer.strip():
        writer.problem("bad question", f"{name}: expected a question and an answer, got {question!r}, {answer!r}")
        return
    if len(images) != FRAMES:
        writer.problem("bad frames", f"{name}: expected {FRAMES} images, got {len(images)}")
        return
    try:
        prompt = lingoqa_prompt(LingoQaRequest(question))
    except UserError as error:
        writer.problem("bad question", f"{name}: {error}")
        return
    unique = f"{name}-{seen[name]}" if seen[name] else name
    seen[name] += 1
    writer.add(unique, [folder / path for path in images], prompt, answer,
               {"segment": str(row["segment_id"])})
