"""Reads any batch script, by anyone, into what the checks ask about.

A script is its directives (read as sbatch reads them, one set per component of a heterogeneous
job), its commands (hpcdl.jobs.lint.shell) and among these its steps: what srun, mpirun and their
like launch. Variables that hold literal text are filled in, so that `srun $OPTIONS` is seen as
it runs; others make a step opaque, and checks of missing options leave it alone.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from hpcdl.jobs.functions import INSTALLED, called
from hpcdl.jobs.lint.gaps import GAP_BLOCK, GAP_LINE, is_template
from hpcdl.jobs.lint.options import Option, Options, read_options
from hpcdl.jobs.lint.shell import Command, Reading, commands, read
from hpcdl.jobs.lint.tokens import Word, past_wrappers, unquote

SHELLS = ("bash", "sh", "dash", "ksh", "zsh", "ash")
LAUNCHERS = ("srun", "mpirun", "mpiexec", "horovodrun", "orterun", "prun")
TRIVIAL = frozenset(
    (
        "hostname", "cd", "echo", "printf", "true", "false", "date", "env", "printenv", "uname",
        "nvidia-smi", "rocm-smi", "id", "pwd", "ls", "cat", "scontrol", "sinfo", "free", "lscpu",
        "numactl", "mkdir", "rm", "cp", "rsync", "tar", "touch", "test", "which", "sbcast", "df",
    )
)  # fmt: skip
"""Programs whose rank count, CPUs and exit code rarely matter."""
_DIRECTIVE = re.compile(r"#(?:SBATCH|SLURM(?=[\s-]))", re.A)
_COMPONENT = re.compile(r"[ \t]*(?:hetjob|packjob)(?=\s|$)", re.I)
_BLANK = re.compile(r"[ \t\f\v\r]+")
_VARIABLE = re.compile(r'"?\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?:\[[@*]\])?\})"?\Z', re.A)
_ASSIGN = re.compile(r"([A-Za-z_]\w*)(?:\[[^][]*\])?(\+?=)(.*)\Z", re.S | re.A)
_MAX_WORDS = 200
"""A variable of more words is not filled in."""
_DECLARERS = {"export", "declare", "typeset", "local", "readonly"}
CONTINUED = "continued on the next line"
"""`Directive.broken` of one that ends in a backslash."""


@dataclass(frozen=True)
class Line:
    """A physical line: its number from 1, the offset of its start, and its text without the end."""

    number: int
    start: int
    text: str


@dataclass(frozen=True)
class Directive:
    """One #SBATCH line. `component` counts those of a heterogeneous job from 0.

    `broken` says what sbatch would refuse it for, or is empty.
    """

    line: Line
    component: int
    options: Options
    broken: str = ""


@dataclass(frozen=True)
class Assignment:
    """A variable that gets a value: `value` as written, without outer quotes."""

    name: str
    value: str
    raw: str
    start: int
    command: Command
    exported: bool
    adds: bool


@dataclass(frozen=True)
class Step:
    """A command that launches ranks. `options` are srun's; for others all words are in `rest`."""

    launcher: str
    command: Command
    options: Options
    start: int

    @property
    def program(self) -> str:
        """The program that it launches, without its path; empty where it is not known."""
        first = next((word.value for word in self.options.rest), "$")
        return "" if first.startswith("$") and "/" not in first else first.rpartition("/")[2]

    @property
    def asks(self) -> bool:
        """Whether it starts nothing: `srun --mpi=list`, `srun --help`."""
        mpi = self.options.last("mpi")
        empty = (mpi and mpi.value == "list") or not (self.options.rest or self.options.opaque)
        own = {word.value for word in self.options.rest[:1]} & {"--version", "--help"}  # mpirun's
        return bool(empty or own) or self.options.has("help", "version", "usage")

    @property
    def brief(self) -> bool:
        """Whether it is over at once: it only looks at something, as `srun hostname` does."""
        return self.asks or self.program in TRIVIAL

    @property
    def trivial(self) -> bool:
        """Whether it does no work: it is brief, or only sleeps."""
        return self.brief or self.program == "sleep"


class Script:
    """A batch script. Everything is worked out once, when first asked for."""

    def __init__(self, text: str, name: str, *, is_part: bool = False) -> None:
        self.text, self.name, self.is_part = text, name, is_part
        self.sourced = ""
        """The functions of hpcdl that its commands source from a release, once they are read."""

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        """Its physical lines."""
        found, start = [], 0
        for number, text in enumerate(self.text.split("\n"), 1):
            found.append(Line(number, start, text))
            start += len(text) + 1
        return tuple(found)

    @cached_property
    def _starts(self) -> list[int]:
        return [line.start for line in self.lines]

    def place(self, offset: int) -> tuple[int, int]:
        """Line and column, both from 1, of an offset."""
        index = max(0, bisect_right(self._starts, offset) - 1)
        return index + 1, offset - self._starts[index] + 1

    @cached_property
    def shebang(self) -> str:
        """The first line's interpreter and its arguments, or nothing."""
        first = self.text[:1000].split("\n", 1)[0]
        return first[2:].strip() if first.startswith("#!") else ""

    @cached_property
    def is_template(self) -> bool:
        """Whether something is to be filled in: hpcdl.jobs.lint.gaps."""
        texts = (line.text for line in self.lines[: self.header_end - 1])
        given = (option for part in self.components for option in part.given)
        directives = (text for text in texts if text.startswith("#SBATCH"))
        return is_template(self.name, directives, given, {one.name for one in self.assignments})

    @cached_property
    def first(self) -> Script:
        """The first script of a file of several: up to the next line with an interpreter."""
        for line in self.lines[self.header_end :]:
            if re.match(r"#!\s*/", line.text) and self.is_comment(line.start):
                return Script(self.text[: line.start], self.name, is_part=True)
        return self

    @cached_property
    def interpreter(self) -> str:
        """The name of the program that runs it, also behind env; nothing without a shebang."""
        words = [word.rpartition("/")[2] for word in self.shebang.split()]
        return next((word for word in words if word != "env" and not word.startswith("-")), "")

    @cached_property
    def is_shell(self) -> bool:
        """Whether a shell of Bourne's family runs it; without a shebang it is taken for one."""
        return not self.shebang or self.interpreter in SHELLS

    @cached_property
    def _reading(self) -> Reading:
        """What it runs; behind a `source` of hpcdl's functions, those that it calls."""
        own = read(self.text) if self.is_shell else Reading()
        place = next((n for n, one in enumerate(own.commands) if _sources_functions(one)), None)
        if place is None:
            return own
        self.sourced = called(self.text)
        moved = [one.moved(own.commands[place].start) for one in read(self.sourced).commands]
        return replace(own, commands=(*own.commands[: place + 1], *moved,
                                      *own.commands[place + 1 :]))  # fmt: skip

    @property
    def commands(self) -> tuple[Command, ...]:
        """Its commands; none where no shell runs it."""
        return self._reading.commands

    def in_body(self, offset: int) -> bool:
        """Whether an offset lies in a here-document."""
        bodies = self._reading.heredocs
        index = bisect_right([start for start, _ in bodies], offset) - 1
        return index >= 0 and offset < bodies[index][1]

    def is_comment(self, offset: int) -> bool:
        """Whether a comment begins there, and no line of a string or a here-document."""
        return offset in self._reading.comments

    @cached_property
    def header_end(self) -> int:
        """The number of the line where sbatch stops looking for directives."""
        within = 0  # up to where a template's own comment or statement goes
        for line in self.lines:
            text = line.text.lstrip()
            if block := GAP_BLOCK.match(self.text, line.start):
                within = block.end()
            if line.start < within or not text or text.startswith("#"):
                continue
            if not GAP_LINE.match(text):
                return line.number
        return len(self.lines) + 1

    @cached_property
    def directives(self) -> tuple[Directive, ...]:
        """The directives that count, in order."""
        found: list[Directive] = []
        component = 0
        for line in self.lines[: self.header_end - 1]:
            match = _DIRECTIVE.match(line.text)
            if match is None:
                continue
            position = match.end()
            if separator := _COMPONENT.match(line.text, position):
                component += 1
                position = separator.end()
            words, broken = directive_words(line, position)
            options = read_options(words, "sbatch", expands=False)
            found.append(Directive(line, component, options, broken))
        return tuple(found)

    @cached_property
    def components(self) -> tuple[Options, ...]:
        """The options of the directives, per component; at least one."""
        last = self.directives[-1].component if self.directives else 0
        given: list[list[Option]] = [[] for _ in range(last + 1)]
        for directive in self.directives:
            given[directive.component] += directive.options.given
        return tuple(Options(tuple(options), ()) for options in given)

    @property
    def is_batch(self) -> bool:
        """Whether it has directives, so that sbatch is meant to run it."""
        return bool(self.directives)

    @cached_property
    def assignments(self) -> tuple[Assignment, ...]:
        """Every variable that gets a value."""
        return tuple(found for command in self.commands for found in _assigned(command))

    def assigned(self, *names: str) -> tuple[Assignment, ...]:
        """The assignments to some variables."""
        return tuple(one for one in self.assignments if one.name in names)

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """Everything that launches ranks."""
        found: list[Step] = []
        variables = _Variables()
        for command in self.commands:
            found += _steps(command, variables)
            variables.note(command)
        return tuple(found)


def _sources_functions(command: Command) -> bool:
    """Whether a command is the `source` of a script that hpcdl wrote for a release."""
    file = command.words[1].value if len(command.words) > 1 else ""
    return command.name in {"source", "."} and file.endswith(f"/{INSTALLED}")


def directive_words(line: Line, position: int) -> tuple[list[Word], str]:
    """The words of a directive as sbatch splits them, and what it refuses the line for.

    Quotes group, a backslash escapes, `#` begins a comment at any place outside quotes.
    """
    text = line.text
    words: list[Word] = []
    while True:
        if blank := _BLANK.match(text, position):
            position = blank.end()
        if position >= len(text) or text[position] == "#":
            return words, ""
        if text[position:].rstrip() == "\\":
            return words, CONTINUED
        stop = _directive_word_end(text, position)
        if stop < 0:
            return words, f"unmatched quote: {text[position : position + 40]}"
        words.append(Word(text[position:stop], line.start + position))
        position = stop


def _directive_word_end(text: str, start: int) -> int:
    """Where a directive's word ends; -1 where a quote is left open."""
    quote, position = "", start
    while position < len(text):
        sign = text[position]
        if sign == "\\":
            position += 1
        elif quote:
            quote = "" if sign == quote else quote
        elif sign in "\"'":
            quote = sign
        elif sign in " \t\f\v\r#":
            return position
        position += 1
    return -1 if quote else min(position, len(text))


class _Variables:
    """Literal text that variables hold, as far as the script has been read.

    A variable that is set under a condition or in a loop may hold something else, and is not
    known; one set at the top level is.
    """

    def __init__(self) -> None:
        self._words: dict[str, tuple[str, ...]] = {}

    def note(self, command: Command) -> None:
        """Take in what a command assigns."""
        for assignment in _assigned(command):
            if command.within("substitution", "inner"):
                continue
            computed = "$(" in assignment.raw or "`" in assignment.raw
            if command.scopes or computed:
                self._words.pop(assignment.name, None)
                continue
            before = self._words.pop(assignment.name, ()) if assignment.adds else ()
            words = (*before, *_literal_words(assignment.raw))
            if len(words) <= _MAX_WORDS:
                self._words[assignment.name] = words

    def expand(self, words: tuple[Word, ...]) -> tuple[Word, ...]:
        """Words with known variables filled in, at the place of the variable."""
        return tuple(filled for word in words for filled in self._fill(word))

    def _fill(self, word: Word) -> Iterator[Word]:
        one_word = word.raw.startswith('"') and "[" not in word.raw
        match = _VARIABLE.match(word.raw) if "$" in word.raw[:2] and not one_word else None
        name = (match.group(1) or match.group(2)) if match else None
        if name is None or name not in self._words:
            yield word
            return
        for raw in self._words[name]:
            yield Word(raw, word.start)


def _literal_words(raw: str) -> tuple[str, ...]:
    """The words in an assigned value: of an array, or of a string split at blanks."""
    value = raw.partition("=")[2][:10_000]
    if value.startswith("("):
        (command, *_) = (*commands(f"_ {value[1:].removesuffix(')')}"), None)
        return tuple(word.raw for word in command.words[1:]) if command else ()
    return tuple(unquote(value).split())


def _assigned(command: Command) -> Iterator[Assignment]:
    """What a command assigns: before its words, and as arguments of export and the like."""
    exports = command.name in _DECLARERS
    words = [(word, False) for word in command.assignments]
    words += [(word, command.name == "export") for word in command.words[1:] if exports]
    for word, exported in words:
        match = _ASSIGN.match(word.raw)
        if match is not None:
            name, sign, value = match.groups()
            adds, plain = sign == "+=", unquote(value)
            yield Assignment(name, plain, word.raw, word.start, command, exported, adds)


def _steps(command: Command, variables: _Variables) -> Iterator[Step]:
    """The steps that a command launches: one, or one per component between colons."""
    if not command.words:
        return
    words = variables.expand(command.words[:200]) + command.words[200:]
    index = past_wrappers(words)
    if index >= len(words):
        return
    start, launcher = words[index].start, words[index].value.rpartition("/")[2]
    if launcher == "srun":
        for part in _components(words[index + 1 :]):
            yield Step(launcher, command, read_options(part, "srun"), start)
    elif launcher in LAUNCHERS:
        yield Step(launcher, command, Options((), words[index + 1 :]), start)


def _components(words: tuple[Word, ...]) -> Iterator[tuple[Word, ...]]:
    """The parts of a command line between lone colons."""
    part: list[Word] = []
    for word in words:
        if word.raw == ":":
            yield tuple(part)
            part = []
        else:
            part.append(word)
    yield tuple(part)
