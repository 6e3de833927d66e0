"""YAML files as plain trees: what a person may have written wrong is told, not passed on."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from wamdiff2_core.errors import UserError


def read_mapping(file: Path, sections: str = "a mapping of sections") -> dict[str, Any]:
    """The mapping that a YAML file holds.

    Args:
        file: UTF-8.
        sections: what its top is, for messages.

    Raises:
        UserError: it cannot be read, is no YAML or no mapping, names a key twice, has a key that is no text, or an
            alias of what it stands in, which would never end.
    """
    try:
        tree = yaml.load(file.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise UserError(str(file), "a readable YAML file", error.strerror or str(error)) from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: bytes that are no text, dates that are none
        raise UserError(str(file), "valid YAML", " ".join(str(error).split())) from None
    except RecursionError:
        raise UserError(str(file), "valid YAML", "values nested too deep to be read, or inside themselves") from None
    if not isinstance(tree, dict):
        raise UserError(str(file), sections, "nothing" if tree is None else type(tree).__name__)
    return tree


class _Loader(yaml.SafeLoader):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._begun: set[str] = set()  # anchors of values that are not at their end yet

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()
        anchor = event.anchor if isinstance(event, yaml.events.NodeEvent) else None
        if self.check_event(yaml.AliasEvent):
            if anchor in self._begun:
                raise yaml.composer.ComposerError(None, None, f"an alias of what it stands in: *{anchor}",
                                                  event.start_mark)
            return super().compose_node(parent, index)
        if anchor is not None:
            self._begun.add(anchor)
        node = super().compose_node(parent, index)
        if anchor is not None:
            self._begun.discard(anchor)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            name = str(key.value)
            if not isinstance(key, yaml.ScalarNode) or key.tag.rpartition(":")[2] not in ("str", "merge"):
                raise yaml.constructor.ConstructorError(None, None, f"a key that is no text: {name!r}", key.start_mark)
            if name in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {name!r} twice", key.start_mark)
            seen.add(name)
        made: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return made
