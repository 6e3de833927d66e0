"""The command line: subcommands from entry points, exit codes, and errors in one line."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from importlib import metadata
from types import SimpleNamespace
from typing import Annotated

import pytest
import typer

from wamdiff2_core.cli import main as cli
from wamdiff2_core.errors import InfrastructureError, UserError


class Entry:
    """A registered command, as far as the group looks at it."""

    def __init__(self, name, load):
        self.name, self.load = name, load


@pytest.fixture
def registered(monkeypatch):
    """Register functions (or loaders that raise) as the only commands."""

    def register(**loaders):
        entries = [Entry(name.replace("_", "-"), load) for name, load in loaders.items()]
        monkeypatch.setattr(cli, "metadata", SimpleNamespace(entry_points=lambda group: entries))

    return register


def command(action):
    """Loader of a command that does `action`."""

    def run() -> int | None:
        """Do the thing."""
        return action()

    return lambda: run


def raising(error):
    def load():
        raise error

    return load


def one_line(capsys):
    stderr = capsys.readouterr().err
    assert "Traceback" not in stderr
    assert stderr.count("\n") == 1
    return stderr.strip()


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (1, 1)])
def test_the_result_of_a_command_is_the_exit_code(registered, returned, code):
    registered(go=command(lambda: returned))
    assert cli.main(["go"]) == code


def test_typer_exit_codes_pass_through(registered):
    def leave():
        raise typer.Exit(1)

    registered(go=command(leave))
    assert cli.main(["go"]) == 1


def test_wrong_use_ends_with_2_and_one_line_even_when_the_message_has_several(registered, capsys):
    def refuse():
        raise UserError("block_size", "an integer\n >= 1", [0], "see [docs]")

    registered(go=command(refuse))
    assert cli.main(["go"]) == 2
    assert one_line(capsys) == "error: block_size: expected an integer >= 1, got [0]; see [docs]"


@pytest.mark.parametrize(
    "error", [InfrastructureError("server lost"), OSError(errno.ENOSPC, "No space left on device")]
)
def test_lost_infrastructure_ends_with_3(registered, capsys, error):
    def fail():
        raise error

    registered(go=command(fail))
    assert cli.main(["go"]) == 3
    assert str(error) in one_line(capsys)


@pytest.mark.parametrize(("number", "code"), [
    (errno.ENOSPC, 3), (errno.EDQUOT, 3), (errno.EFBIG, 3), (errno.EIO, 3),
    (errno.EACCES, 2), (errno.EROFS, 2), (errno.ENAMETOOLONG, 2), (errno.EEXIST, 2), (errno.ENOTDIR, 2),
])
def test_a_path_or_a_disk_at_fault_is_named_in_one_line(registered, capsys, number, code):
    def fail():
        raise OSError(number, os.strerror(number), "/results/answers.json")

    registered(go=command(fail))
    assert cli.main(["go"]) == code
    assert one_line(capsys).startswith(f"error: /results/answers.json: {os.strerror(number)}")


@pytest.mark.parametrize("error", [
    RuntimeError("ours"),
    FileNotFoundError(errno.ENOENT, "No such file", "ours"),
    PermissionError(errno.EACCES, "ours"),
])
def test_a_defect_keeps_its_traceback(registered, error):
    def fail():
        raise error

    registered(go=command(fail))
    with pytest.raises(type(error), match="ours"):
        cli.main(["go"])


def test_unknown_commands_get_a_suggestion(registered, capsys):
    registered(predict=command(int), closed_loop=command(int))
    assert cli.main(["closed-lop"]) == 2
    assert "did you mean 'closed-loop'?" in one_line(capsys)


@pytest.mark.parametrize(("arguments", "message"), [
    (["--count", "many"], "--count: expected an integer, got many; see wamdiff2 go --help"),
    (["--count", ""], "--count: expected an integer, got nothing; see wamdiff2 go --help"),
    (["--count", "0"], "--count: expected at least 1, got 0; see wamdiff2 go --help"),
    (["--share", "2"], "--share: expected at most 1.0, got 2; see wamdiff2 go --help"),
    (["--share", "half"], "--share: expected a number, got half; see wamdiff2 go --help"),
    (["--share"], "Option '--share' requires an argument; see wamdiff2"),
    (["few"], "places: expected an integer, got few; see wamdiff2 go --help"),
    (["--bogus"], "No such option: --bogus; see wamdiff2 go --help"),
])
def test_what_typer_refuses_is_told_by_field_expectation_finding_and_fix(registered, capsys, arguments, message):
    def go(
        places: Annotated[int, typer.Argument()] = 0, count: Annotated[int, typer.Option("-n", "--count", min=1)] = 1,
        share: Annotated[float, typer.Option(max=1.0)] = 0.0,
    ) -> None:
        pytest.fail("ran")

    registered(go=lambda: go)
    assert cli.main(["go", *arguments]) == 2
    assert one_line(capsys).startswith(f"error: {message}")


@pytest.mark.parametrize("arguments", [["--bogus"], ["go", "--bogus"], ["go", "surplus"]])
def test_unknown_options_are_wrong_use(registered, capsys, arguments):
    registered(go=command(int))
    assert cli.main(arguments) == 2
    assert one_line(capsys).startswith("error: ")


def test_a_command_without_its_extra_says_which_and_leaves_the_others_alone(registered, capsys):
    registered(
        node=raising(ModuleNotFoundError("No module named 'rclpy'", name="rclpy.node")),
        bad=raising(ZeroDivisionError("at import")),
        go=command(int),
    )
    assert cli.main([]) == 0
    listing = " ".join(capsys.readouterr().out.split())
    assert "Do the thing." in listing
    assert "wamdiff2[ros]" in listing
    assert "ZeroDivisionError" in listing
    assert cli.main(["go"]) == 0
    assert cli.main(["node", "--anything", "x"]) == 2
    assert "pip install 'wamdiff2[ros]'" in one_line(capsys)


def test_an_extra_missed_at_run_time_is_named_too(registered, capsys):
    def run():
        raise ModuleNotFoundError("No module named 'carla'", name="carla")

    registered(collect=command(run))
    assert cli.main(["collect"]) == 2
    assert "wamdiff2[carla]" in one_line(capsys)


def test_version_is_that_of_the_installed_package(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.split() == ["wamdiff2", metadata.version("wamdiff2")]


def test_every_registered_command_can_be_loaded_and_explains_itself(capsys):
    entries = metadata.entry_points(group=cli.ENTRY_POINT_GROUP)
    assert {"predict", "ask", "doctor", "node", "server", "collect", "closed-loop", "train", "town"} <= {
        e.name for e in entries
    }
    for entry in entries:
        assert cli.main([entry.name, "--help"]) == 0
        assert f"wamdiff2 {entry.name}" in capsys.readouterr().out


def test_listing_commands_imports_nothing_heavy():
    program = (
        "import sys; from wamdiff2_core.cli.main import main; main(['--help']);"
        "print(sorted({'torch', 'transformers', 'rclpy', 'carla'} & set(sys.modules)), file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stderr.strip().splitlines()[-1] == "[]"
    assert "unavailable" not in run.stdout


def test_doctor_finds_every_needed_part_in_order(capsys):
    pytest.importorskip("torch")
    from wamdiff2_core.cli.doctor import examine

    findings = {finding.subject: finding for finding in examine()}
    assert findings["torch"].status == "ok"
    assert findings["transformers"].status == "ok"
    assert findings["torchvision"].detail == "absent, as it must be"
    assert findings["commands"].status == "ok", findings["commands"].detail


def test_doctor_tells_whether_the_kernels_of_the_cpu_backend_are_there(monkeypatch):
    native = pytest.importorskip("wamdiff2_core.model.backends.native")
    from wamdiff2_core.cli.doctor import cpu_kernels

    monkeypatch.setattr(native, "kernels", lambda: None)
    assert cpu_kernels().status == "absent"
    monkeypatch.setattr(native, "kernels", object)
    assert cpu_kernels().status == "ok"


def test_doctor_calls_a_needed_part_that_does_not_import_broken(monkeypatch):
    from wamdiff2_core.cli import doctor

    def fail(name):
        raise OSError("libtorch.so: cannot open shared object file")

    monkeypatch.setattr(doctor.importlib, "import_module", fail)
    finding = doctor.importable("json", "needed", required=True)
    assert finding.status == "broken"
    assert "libtorch.so" in finding.detail
    assert doctor.importable("no_such_module_here", "extra").status == "absent"
    assert doctor.importable("no_such_module_here", "needed", required=True).status == "broken"


@pytest.mark.parametrize(("given", "shown"), [
    (None, "GOMP_SPINCOUNT = '0'"), ("ACTIVE", "OMP_WAIT_POLICY = 'ACTIVE'"),
])
def test_threads_of_torch_wait_without_spinning_unless_the_user_has_chosen(monkeypatch, given, shown):
    """OpenMP shows what it has read when it is loaded, which is when torch is imported."""
    pytest.importorskip("torch")
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_WAIT_POLICY", given)
    monkeypatch.setenv("OMP_DISPLAY_ENV", "VERBOSE")
    program = "from wamdiff2_core.cli.main import main; main(['doctor'])"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    if "GOMP_SPINCOUNT" not in run.stderr:
        pytest.skip("this torch does not use GNU's OpenMP")
    assert shown in run.stderr
