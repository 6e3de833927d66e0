"""Stage files: YAML, with bases they build on, overrides from the command line, and upstream's own files.

    base: nano.yaml              # or a list; read first, beside this file
    data: {train: FILE.jsonl}    # a conversation file, a mixture (FILE.yaml beside this file, or a name), or sources
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from training.config import StageConfig, VisionConfig
from training.data.mixture import MixtureConfig
from training.upstream_config import Translated, is_upstream, translate
from training.yaml_file import read_mapping
from wamdiff2_core.config import parse
from wamdiff2_core.errors import UserError


def load_stage(file: Path, overrides: Sequence[str] = ()) -> tuple[StageConfig, Translated | None]:
    """Read a stage.

    Args:
        file: keys as in `config.StageConfig`, or a configuration of upstream's trainers.
        overrides: `["--run.steps", "100", "--out=runs/x"]`; values are read as YAML.

    Returns:
        the stage, and for an upstream file what became of its keys.

    Raises:
        UserError: no such file, not a mapping, an unknown key or a bad value.
    """
    tree = _read(file)
    translated = None
    if is_upstream(tree):
        translated = translate(tree, file)
        tree = translated.stage
    merged = _overridden(tree, overrides, file)
    _expand_sources(merged, file)
    return parse(StageConfig, merged, str(file)), translated


def load_vision(file: Path, overrides: Sequence[str] = ()) -> VisionConfig:
    """Read what trains a vision tower from nothing; see `load_stage`."""
    return parse(VisionConfig, _overridden(_read(file), overrides, file), str(file))


def dotlist(arguments: Sequence[str]) -> list[str]:
    """`--a.b value` and `--a.b=value` as `a.b=value`."""
    pairs = []
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("--"):
            raise UserError("override", "--section.key value", argument)
        key, found, value = argument[2:].partition("=")
        if not found:
            value = next(rest, "")
            if not value:
                raise UserError(argument, "a value after it", "nothing")
        pairs.append(f"{key}={value}")
    return pairs


def _read(file: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    if not file.is_file():
        raise UserError("CONFIG", "a YAML file", f"{file} ({'a folder' if file.is_dir() else 'no such file'})")
    if file in seen:
        raise UserError(f"{file}: base", "files that do not name each other in a circle", file.name)
    own = read_mapping(file)
    bases = own.pop("base", [])
    names = [bases] if isinstance(bases, str) else bases
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{file}: base", "a file name, or a list of them", bases)
    tree: dict[str, Any] = {}
    for base in names:
        tree = _merged(tree, _read(file.parent / base, (*seen, file)))
    return _merged(tree, own)


def _overridden(tree: Mapping[str, Any], overrides: Sequence[str], file: Path) -> dict[str, Any]:
    try:
        dotted = OmegaConf.from_dotlist(dotlist(overrides))
        merged: Any = OmegaConf.to_container(OmegaConf.merge(OmegaConf.create(dict(tree)), dotted), resolve=True)
    except (OmegaConfBaseException, yaml.YAMLError) as error:
        raise UserError(str(file), "values that resolve", " ".join(str(error).split())) from None
    return dict(merged)


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` over `below`, section by section; lists are replaced."""
    result = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = _merged(result[key], value) if both else value
    return result


def _expand_sources(tree: dict[str, Any], file: Path) -> None:
    """Turn `data.train` into a list of sources."""
    data = tree.get("data")
    if not isinstance(data, dict) or not isinstance(data.get("train"), str):
        return
    name = data["train"]
    if Path(name).suffix not in ("", ".yaml", ".yml"):
        data["train"] = [{"name": Path(name).parent.name or Path(name).stem, "file": name}]
        return
    beside = file.parent / name
    mixture = MixtureConfig.load(beside if beside.is_file() else name)
    data["train"] = [asdict(source) for source in mixture.sources]
