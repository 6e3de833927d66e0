"""Commands, options, paths, modules and the client script that the documentation names are there, and work."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from carla_bridge.leases import lease_ports
from wamdiff2_core.cli.main import ENTRY_POINT_GROUP, as_command
from wamdiff2_core.processes import child_environment

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").glob("*.md") if path.name != "LOG.md")]
FENCED = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
FOLDERS = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")}
MADE_BY_COMMANDS = ("data/", "runs/", "report/", "routes/", "shards/", "agent/", "attempts/", "previous/", "logs/")
OPTIONS_OF_OTHERS = {"--section", "--agent", "--agent-config", "--no-build-isolation", "--width", "--height"}


def ids(pages: list[Path]) -> list[str]:
    return [page.relative_to(ROOT).as_posix() for page in pages]


def commands() -> dict[str, Any]:
    """Every command that can be loaded here, by its name; a missing extra takes only its own away."""
    found = {}
    for entry in metadata.entry_points(group=ENTRY_POINT_GROUP):
        try:
            found[entry.name] = as_command(entry.load(), entry.name)
        except ModuleNotFoundError:
            found[entry.name] = None
    return found


def below(command: Any) -> dict[str, Any]:
    """Commands of a group, by name; none of any other command."""
    if not hasattr(command, "commands"):
        return {}
    return {name: command.get_command(None, name) for name in command.list_commands(None)}


def options_of(command: Any) -> set[str]:
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}


def options_of_all(command: Any) -> set[str]:
    """Options of a command and of those below it."""
    return options_of(command).union(*(options_of_all(one) for one in below(command).values()))


def spans(page: Path) -> list[str]:
    """What stands in backticks in the running text of a page."""
    return re.findall(r"`([^`\n]+)`", FENCED.sub("", page.read_text()))


def command_lines(page: Path) -> Iterator[str]:
    """Every line that begins with `wamdiff2`, from blocks and from the text; continued lines are joined."""
    for language, block in FENCED.findall(page.read_text()):
        if language in ("bash", ""):
            for line in re.sub(r"\\\n\s*|\n {2,}(?=\[?--)", " ", block).splitlines():
                if match := re.match(r"(?:\w+=\S+ )*(wamdiff2 .*)", line.strip()):
                    yield match[1]
    yield from (span for span in spans(page) if re.match(r"wamdiff2 [a-zA-Z]", span))


LINES = [pytest.param(line, id=f"{page.name}: {line[:60]}") for page in PAGES for line in command_lines(page)]


@pytest.mark.parametrize("line", LINES)
def test_a_command_line_names_a_command_and_options_that_are_there(line: str) -> None:
    words = shlex.split(re.sub(r"[\[\]|]", " ", line), comments=True)[1:]
    known = commands()
    if words[0] == "COMMAND":
        return
    assert words[0] in known, f"no command {words[0]}"
    command, rest = known[words[0]], words[1:]
    if command is None:
        pytest.skip(f"{words[0]} needs an extra that is not installed")
    while rest and rest[0] in below(command):
        command, rest = below(command)[rest[0]], rest[1:]
    placeholder = not rest or rest[0].startswith("-") or rest[0].isupper()
    assert not hasattr(command, "commands") or placeholder, f"no subcommand {rest[0]}"
    if "--" in rest:
        rest = rest[: rest.index("--")]
    own, dotted = options_of(command), command.context_settings.get("ignore_unknown_options", False)
    for option in (word.partition("=")[0] for word in rest if word.startswith("--")):
        assert option in own or ("." in option and dotted), f"no option {option}"


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_every_option_in_the_text_is_one_of_some_command(page: Path) -> None:
    known = set(OPTIONS_OF_OTHERS)
    for command in commands().values():
        known |= set() if command is None else options_of_all(command)
    strange = {
        word for span in spans(page) if not span.startswith("python ")
        for word in re.findall(r"(?<!\S)--[a-z][a-z0-9_-]*", span) if word not in known
    }
    assert not strange


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_modules_that_are_run_have_the_options_that_are_given(page: Path) -> None:
    blocks = re.sub(r"\\\n\s*", " ", "\n".join(block for _, block in FENCED.findall(page.read_text())))
    for line in (*spans(page), *blocks.splitlines()):
        if match := re.match(r"python -m ([\w.]+)(.*)", line):
            path = ROOT / match[1].replace(".", "/")
            source = (path / "__main__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
            for option in re.findall(r"--([a-z][a-z0-9-]*)", match[2]):
                declared = rf'"--{option}"|^ +{option.replace("-", "_")}: Annotated|--{option}/'
                assert re.search(declared, source, re.MULTILINE), f"{match[1]} has no --{option}"


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_every_path_is_there(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / target).exists(), f"link to {target}"
    blocks = " ".join(block for language, block in FENCED.findall(text) if language in ("bash", ""))
    named = {word for span in [*spans(page), blocks] for word in re.findall(r"(?<![\w./$~-])[\w-]+/[\w./*-]*\w", span)}
    for path in sorted(named):
        if path.split("/")[0] in FOLDERS and not path.startswith(MADE_BY_COMMANDS):
            assert any(ROOT.glob(path)), f"path {path}"


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_every_module_and_make_target_is_there(page: Path) -> None:
    text = page.read_text()
    folders = "carla_bridge|wamdiff2_core|wamdiff2_ros|training|benchmarks"
    for name in set(re.findall(rf"\b(?:{folders})(?:\.(?!md\b)\w+)+", text)):
        parts, attributes = name.split("."), []
        while not any(ROOT.joinpath(*parts).with_suffix(suffix).exists() for suffix in (".py", "")):
            attributes.insert(0, parts.pop())
        assert len(parts) > 1, name
        if attributes and attributes != ["py"] and name.endswith(".".join(attributes)):
            target: Any = importlib.import_module(".".join(parts))
            for attribute in attributes:
                target = getattr(target, attribute)
    targets = set(re.findall(r"^([a-z0-9]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for target in re.findall(r"(?:^|`)make ([a-z0-9]+)", text, re.MULTILINE):
        assert target in targets, f"make {target}"


def test_the_tree_of_the_readme_is_the_tree_of_the_repository() -> None:
    (tree,) = re.findall(r"## Where things are\n\n```text\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    parents: list[Path] = [ROOT]
    named = set()
    for line in tree.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        for word in re.match(r" *((?:[\w./]+ {1,2}(?=[\w.]+[/.]))*[\w./]+)", line)[1].split():
            path = parents[depth] / word
            assert path.exists(), f"{path.relative_to(ROOT)} in: {line}"
            named.add(path)
            if path.is_dir():
                parents[depth + 1 :] = [path]
    for folder in (ROOT, ROOT / "carla_bridge", ROOT / "carla_bridge" / "server"):
        packages = {path for path in folder.iterdir() if (path / "__init__.py").is_file() and path.name != "tests"}
        assert packages <= named, f"not in the tree: {sorted(path.name for path in packages - named)}"


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_lines_of_prose_are_at_most_120_characters(page: Path) -> None:
    prose = [line for line in FENCED.sub("", page.read_text()).splitlines() if not line.startswith(("|", "!["))]
    assert [line for line in prose if len(line) > 120] == []


@pytest.mark.carla
def test_the_client_script_of_the_documentation_drives_in_the_embedded_server(tmp_path: Path) -> None:
    pytest.importorskip("carla", reason="needs the carla client library")
    text = (ROOT / "docs" / "embedded_server.md").read_text()
    (script,) = re.findall(r"^```python server\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert script.count("2000") == 1
    port = lease_ports().number
    (tmp_path / "client.py").write_text(script.replace("2000", str(port)))
    with subprocess.Popen(
        [sys.executable, "-m", "carla_bridge.server", "--port", str(port)],
        env=child_environment(), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline().startswith("ready")
            done = subprocess.run([sys.executable, str(tmp_path / "client.py")], env=child_environment(),
                                  capture_output=True, text=True, timeout=150)
        finally:
            server.terminate()
    assert done.returncode == 0, done.stderr
    same_frame, width, height, speed, unit = done.stdout.split()
    assert (same_frame, width, height, unit) == ("True", "800", "600", "m/s")
    assert 2.0 < float(speed) < 12.0
