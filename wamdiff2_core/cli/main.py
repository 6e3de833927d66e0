"""The `wamdiff2` command: a thin group whose subcommands come from the entry-point group `wamdiff2.commands`.

Each package registers its own commands, so the core needs to know none of them. A command is loaded when it is run or
listed; one whose dependency is missing says which extra brings it, and leaves the others alone.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup
from typer.exceptions import TyperException

from wamdiff2_core.errors import ExitCode, InfrastructureError, UserError, did_you_mean
from wamdiff2_core.outputs import DISK_ERRNOS
from wamdiff2_core.threads import wait_without_spinning

ENTRY_POINT_GROUP = "wamdiff2.commands"

# Top-level modules that an extra brings, beyond what every installation has.
EXTRA_OF_MODULE = {
    "rclpy": "ros",
    "wamdiff2": "ros",
    "std_msgs": "ros",
    "sensor_msgs": "ros",
    "nav_msgs": "ros",
    "geometry_msgs": "ros",
    "diagnostic_msgs": "ros",
    "rosgraph_msgs": "ros",
    "builtin_interfaces": "ros",
    "carla": "carla",
    "scenariogeneration": "carla",
    "msgpack": "carla",
    "av": "carla",
    "scipy": "carla",
    "accelerate": "train",
    "tensorboard": "train",
    "matplotlib": "train",
    "pyarrow": "convert",
    "ray": "cluster",
}
_INFRASTRUCTURE_ERRNOS = DISK_ERRNOS | {errno.EADDRINUSE, errno.ECONNREFUSED, errno.ECONNRESET}
_PATH_ERRNOS = {
    errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP,
}
# What pydantic finds wrong with a value, in our words.
_EXPECTED = {
    "int_parsing": "an integer", "int_parsing_size": "an integer of fewer digits", "float_parsing": "a number",
    "greater_than_equal": "at least {ge}", "greater_than": "above {gt}", "less_than_equal": "at most {le}",
    "less_than": "below {lt}",
}


def extra_of(error: ModuleNotFoundError) -> str | None:
    """The extra that brings a module which an import did not find, or None."""
    return EXTRA_OF_MODULE.get((error.name or "").partition(".")[0])


def missing_module_hint(error: ModuleNotFoundError) -> str:
    """How to obtain the module that an import did not find."""
    extra = extra_of(error)
    return f"pip install 'wamdiff2[{extra}]'" if extra else "see wamdiff2 doctor"


class CommandGroup(TyperGroup):
    """A group that finds commands among the installed entry points, beside its own, and imports them one by one.

    Attributes:
        entry_point_group: where other packages register commands of this group.
    """

    entry_point_group = ENTRY_POINT_GROUP

    def _entry_points(self) -> dict[str, metadata.EntryPoint]:
        return {entry.name: entry for entry in metadata.entry_points(group=self.entry_point_group)}

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted({*self.commands, *self._entry_points()})

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command, or a stand-in that explains why it cannot run; None for an unknown name."""
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        entry = self._entry_points().get(cmd_name)
        if entry is None:
            return None
        try:
            return as_command(entry.load(), cmd_name)
        except ModuleNotFoundError as error:
            return unavailable_command(cmd_name, f"needs {error.name}", missing_module_hint(error))
        except Exception as error:  # a broken plug-in must not take the other commands with it
            return unavailable_command(
                cmd_name, f"does not load: {type(error).__name__}: {error}", "see wamdiff2 doctor"
            )

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        names = self.list_commands(ctx)
        if args[0] not in names and not args[0].startswith("-"):
            raise UserError("command", f"a {ctx.command_path} command", args[0], did_you_mean(args[0], names))
        return super().resolve_command(ctx, args)


def as_command(function: Any, name: str) -> Any:
    """A typer command from a plain annotated function, or from a `typer.Typer` of further subcommands."""
    if isinstance(function, typer.Typer):
        command = typer.main.get_command(function)
    else:
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        app.command(name)(function)
        command = typer.main.get_command(app)
    command.name = name
    return command


def unavailable_command(name: str, problem: str, fix: str) -> Any:
    """A command that takes any arguments and refuses with the reason why the real one is not there."""

    def refuse() -> None:
        raise UserError(f"wamdiff2 {name}", "a command that can be loaded", f"one that {problem}", fix)

    app = typer.Typer(add_completion=False)
    app.command(
        name,
        help=escape(f"(unavailable: {problem}; {fix})"),
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )(refuse)
    return typer.main.get_command(app)


app = typer.Typer(
    cls=CommandGroup,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"wamdiff2 {metadata.version('wamdiff2')}")
        raise typer.Exit()


@app.callback(invoke_without_command=True)
def wamdiff2(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """A vision-language-action driver: plan, drive closed loop, train and serve.

    Exit codes: 0 done; 1 done, but a sample, route or check failed; 2 wrong use; 3 server, port or disk failed.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def fail(error: object, code: ExitCode) -> int:
    """Print one line on standard error, and return the exit code."""
    line = " ".join(str(error).split())
    Console(stderr=True, soft_wrap=True, highlight=False).print(f"[bold red]error:[/] {escape(line)}")
    return int(code)


def misuse(error: TyperException) -> str:
    """What typer found wrong on the command line, in the form of a `UserError`, as far as typer tells."""
    context, wrong = getattr(error, "ctx", None), getattr(error, "param", None)
    cause: Any = error.__cause__
    fix = f"see {'wamdiff2' if context is None else context.command_path} --help"
    if wrong is None or not hasattr(cause, "errors"):
        return f"{error.format_message().rstrip('.')}; {fix}"
    found = cause.errors()[0]  # of pydantic, whose words are about another place than a command line
    expected = _EXPECTED.get(found["type"], found["msg"].removeprefix("Input should be ").lower())
    field = max(wrong.opts, key=len) if wrong.param_type_name == "option" else wrong.get_error_hint().strip("'")
    return str(UserError(field, expected.format(**found.get("ctx", {})), found["input"], fix))


def exit_code_of(run: Callable[[], object]) -> int:
    """Run the body of a program and return its exit code; what the user can act on is told in one line.

    Defects keep their traceback.
    """
    try:
        result = run()
    except UserError as error:
        return fail(error, ExitCode.WRONG_USE)
    except InfrastructureError as error:
        return fail(error, ExitCode.INFRASTRUCTURE)
    except ModuleNotFoundError as error:
        if extra_of(error) is None:
            raise
        return fail(
            f"{error.name}: expected to be installed, got no such module; {missing_module_hint(error)}",
            ExitCode.WRONG_USE,
        )
    except TyperException as error:
        return fail(misuse(error), ExitCode.WRONG_USE)
    except OSError as error:
        where = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        if error.errno in _INFRASTRUCTURE_ERRNOS:
            return fail(f"{where}{error.strerror}" if where else error, ExitCode.INFRASTRUCTURE)
        if error.errno in _PATH_ERRNOS and where:
            return fail(f"{where}{error.strerror}; name another path", ExitCode.WRONG_USE)
        raise
    return result if isinstance(result, int) else int(ExitCode.DONE)


def run_alone(function: Callable[..., object], name: str) -> int:
    """Run one command as a program of its own, `python -m NAME`, and return its exit code."""
    command = as_command(function, name)
    return exit_code_of(lambda: command(prog_name=f"python -m {name}", standalone_mode=False))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code; defects keep their traceback."""
    wait_without_spinning()  # before any command imports torch
    given = list(sys.argv[1:] if arguments is None else arguments)
    return exit_code_of(lambda: app(args=given, prog_name="wamdiff2", standalone_mode=False))


if __name__ == "__main__":
    sys.exit(main())
