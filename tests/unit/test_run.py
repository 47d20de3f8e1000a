"""Commands: each leaves a record; a failure shows it, and how to reopen its place."""

import time
from pathlib import Path

import pytest

from hpcdl.system.errors import ExitCode, MissingPrerequisite, Stopped
from hpcdl.system.run import CommandFailed, every, run
from tests.unit.test_signals import wait_until_ended


def test_a_record_holds_what_was_run_where_and_what_came(tmp_path):
    done = run(["bash", "-c", "pwd; echo err >&2; exit 3"], directory=tmp_path, check=False)
    assert (done.exit_code, done.stdout, done.stderr) == (3, f"{tmp_path}\n", "err\n")
    assert (done.directory, done.ok) == (tmp_path, False)
    assert done.seconds < 5


def test_bytes_that_are_no_text_do_no_harm_and_no_shell_reads_the_arguments(tmp_path):
    assert run(["printf", r"a\377b"]).stdout == "a\ufffdb"
    assert run(["printf", "%s", f"$(touch {tmp_path}/x); `id`"]).stdout.startswith("$(touch")
    assert list(tmp_path.iterdir()) == []


def test_standard_input_is_empty_unless_given(monkeypatch):
    assert run(["cat"], timeout=5).stdout == ""
    assert run(["cat"], stdin="é\n").stdout == "é\n"
    monkeypatch.setattr("hpcdl.system.run._WATCH_SECONDS", 0.01)
    assert run(["sh", "-c", "sleep 0.1; cat"], stdin="é", watch=lambda: None).stdout == "é"


def test_the_environment_is_added_to_or_replaced():
    assert run(["bash", "-c", "echo $A $HOME"], env={"A": "1"}).stdout.split()[0] == "1"
    only = run(["/usr/bin/env"], base_env={"A": "1"}, env={"B": "2"}).stdout
    assert sorted(only.split()) == ["A=1", "B=2"]


def test_a_failure_shows_command_place_and_last_lines(tmp_path):
    with pytest.raises(CommandFailed) as caught:
        run(
            ["bash", "-c", "for i in {1..99}; do echo line $i; done; exit 7"],
            directory=tmp_path,
            hint="try again",
        )
    assert caught.value.exit_code == ExitCode.COMMAND_FAILED
    said = caught.value.render()
    assert said.startswith("error: bash failed with exit code 7\n")
    assert f"directory: {tmp_path}" in said
    assert "| line 99" in said
    assert "| line 50" not in said
    assert said.endswith("help: try again")


def reopen_script(error):
    (line,) = (one for one in error.details if one.startswith("reopen:"))
    return Path(line.split()[-1])


def test_the_reopen_script_opens_a_shell_at_the_place_of_the_failure(tmp_path):
    place = tmp_path / "a b'c"
    place.mkdir()
    with pytest.raises(CommandFailed) as caught:
        run(["false", "x\ny"], directory=place, env={"MARK": "it's\n$here"})
    script = reopen_script(caught.value)
    assert script.stat().st_mode & 0o777 == 0o700
    # In place of the person's shell, one that says where it is.
    shell = tmp_path / "shell"
    shell.write_text('#!/bin/sh\npwd\nprintf "%s" "$MARK"\n')
    shell.chmod(0o755)
    done = run(["bash", str(script)], env={"SHELL": str(shell)})
    assert (done.stdout, done.stderr) == (f"{place}\nit's\n$here", "")


def test_secrets_are_not_written():
    names = ("GITHUB_TOKEN", "db_password", "AWS_SECRET_ACCESS_KEY", "SLURM_JWT")
    with pytest.raises(CommandFailed) as caught:
        run(["false"], env={**dict.fromkeys(names, "s3cr3t"), "PLAIN": "shown"})
    text = reopen_script(caught.value).read_text()
    assert "PLAIN=shown" in text
    assert "s3cr3t" not in text


@pytest.mark.parametrize("logged", [False, True])
def test_a_time_limit_ends_the_command_and_its_children(tmp_path, logged):
    start, log = time.monotonic(), tmp_path / "log" if logged else None
    sleeping = ["bash", "-c", f"sleep 61.5 & echo $! >{tmp_path}/pid; sleep 61.5"]
    with pytest.raises(Stopped, match=r"did not end within 1\.0 s"):
        run(sleeping, timeout=1, log=log)
    assert time.monotonic() - start < 10
    wait_until_ended(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["no-such-program"], "it is not installed or not on PATH"),
        (["/etc/passwd"], "it is not a program that you may run"),
        (["/etc/passwd/x"], "Not a directory"),
        (["echo", "a\0b"], "null byte"),
        (["echo", "x" * 200_000], "Argument list too long"),
    ],
)
def test_what_cannot_be_run_is_one_line(argv, why):
    with pytest.raises(MissingPrerequisite, match=why) as caught:
        run(argv, hint="install it")
    assert caught.value.hint == "install it"
    with pytest.raises(MissingPrerequisite, match="the directory /nosuch does not exist"):
        run(argv, directory=Path("/nosuch"))


def test_a_log_keeps_commands_and_outputs_in_order(tmp_path):
    log = tmp_path / "deep" / "log"
    run(["bash", "-c", "echo one; echo two >&2"], log=log)
    with pytest.raises(CommandFailed) as caught:
        run(["bash", "-c", "echo three; exit 1"], log=log)
    first, second = "$ bash -c 'echo one; echo two >&2'", "$ bash -c 'echo three; exit 1'"
    assert log.read_text().splitlines() == [first, "one", "two", second, "three"]
    assert "| three" in caught.value.details
    assert f"log:       {log}" in caught.value.details


def test_a_log_that_cannot_be_written_is_what_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(MissingPrerequisite, match=r"cannot write .*/file/log") as caught:
        run(["true"], log=tmp_path / "file" / "log")
    assert "not a program" not in caught.value.message


def test_a_long_command_is_told_of_every_so_often():
    told = []
    run(["sleep", "2.5"], watch=every(lambda: told.append(1), 0.5))
    run(["sleep", "1.5"], watch=every(lambda: told.append(2), 60))
    run(["sleep", "0.5"], watch=every((Path("/proc") / "gone").stat, 0))
    assert told == [1, 1]
