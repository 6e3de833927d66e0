"""JSON files that stand beside weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from wamdiff2_core.errors import UserError


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a checkpoint folder.

    Raises:
        UserError: no such file, not UTF-8, malformed JSON, or something else than an object.
    """
    if not path.is_file():
        raise UserError(str(path), "a file", "no such file", "the folder is not a checkpoint")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise UserError(str(path), "valid JSON", f"{error.msg} at line {error.lineno}") from None
    except UnicodeDecodeError as error:
        got = f"byte {error.object[error.start]:#x} at offset {error.start}"
        raise UserError(str(path), "UTF-8 text", got) from None
    if not isinstance(data, dict):
        raise UserError(str(path), "a JSON object", type(data).__name__)
    return data
