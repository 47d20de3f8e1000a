"""Runs the commands of a page in one shell and compares what they print: a doctest for consoles.

In a `console` block, a line after `$ ` is a command and lines after `> ` continue it; the lines
below are what it prints, on both streams. `...` is any text of a line, and alone on a line any
lines. Blanks count as one. A comment `# exits with status N` is the exit status, 0 without it.
A block without any output is a list of commands to take: it says nothing of what they print.
`<!-- long -->` begins what needs minutes, up to `<!-- short -->`. `python -m tests.shell_pages
PAGE` prints a page's commands with their real output: what to paste after a change.
"""

import re
import subprocess
import sys
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

_END = "--end-of-command--"


@dataclass(frozen=True)
class Step:
    """A command of a page, what it has to print (None: unsaid), and its exit status."""

    line: int
    command: str
    expected: str | None
    status: int
    long: bool


def steps(text):
    """The commands of a page's `console` blocks, in their order."""
    for block in re.finditer(r"^ *```console\n(.*?)^ *```", text, re.M | re.S):
        line = text.count("\n", 0, block.start(1)) + 1
        long = re.findall(r"<!-- (long|short) -->", text[: block.start()])[-1:] == ["long"]
        parts = re.split(r"^ *\$ ", block[1], flags=re.M)
        said = any(_split(part)[1] for part in parts)
        for part in parts:
            command, expected = _split(part)
            status = re.search(r"# exits with status (\d+)", command)
            if command:
                expected = expected if said else None
                yield Step(line, command, expected, int(status[1]) if status else 0, long)
            line += part.count("\n")


def _split(part):
    """A command with the lines that continue it, and what it prints."""
    first, *rest = part.splitlines() or [""]
    more = list(takewhile(re.compile(r" *> ").match, rest))
    command = "\n".join([first, *(re.sub(r"^ *> ", "", line) for line in more)])
    return command, "".join(f"{line}\n" for line in rest[len(more) :])


def matches(expected, said):
    """Whether a text is the expected one, `...` being anything."""
    if expected is None:
        return True
    parts = []
    for line in expected.splitlines():
        if line.strip() == "...":
            parts.append(r"(?:.*\n)*?")
        else:
            words = [re.escape(word) for word in _plain(line).split("...")]
            parts.append(".*?".join(words) + r"\n")
    lines = [_plain(line) for line in said.splitlines()]
    return bool(re.fullmatch("".join(parts), "".join(f"{line}\n" for line in lines)))


def _plain(line):
    return " ".join(line.split())


class Shell:
    """One bash, which keeps variables and directory from command to command.

    `within` is a command that runs it, as another user or in namespaces of its own.
    """

    def __init__(self, env, directory, within=()):
        self._bash = subprocess.Popen(
            [*within, "bash", "--noprofile", "--norc"],
            env=dict(env),
            cwd=directory,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    @property
    def pid(self):
        return self._bash.pid

    def __enter__(self):
        return self

    def __exit__(self, kind, fault, where):
        self._bash.kill()
        self._bash.communicate()

    def __call__(self, command):
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        ends = f"status=$?; echo; echo {_END} $status"
        self._bash.stdin.write(f"{{ {command}\n}} </dev/null; {ends}\n")
        self._bash.stdin.flush()
        said = []
        for line in self._bash.stdout:
            if line.startswith(_END):
                return "".join(said).removesuffix("\n"), int(line.split()[1])
            said.append(line)
        raise AssertionError(f"the shell ended in: {command}\n{''.join(said)}")


def show(page, env, directory):
    """Print a page's commands with what they print now."""
    with Shell(env, directory) as shell:
        for step in steps(page.read_text()):
            print(f"$ {step.command}", flush=True)
            said, status = shell(step.command)
            print(said, end="" if status == step.status else f"STATUS {status}\n", flush=True)


if __name__ == "__main__":
    import os

    show(Path(sys.argv[1]), os.environ, Path.cwd())
