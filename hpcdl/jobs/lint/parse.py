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
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from hpcdl.facts import load
from hpcdl.jobs.lint.options import Option, Options, read_options
from hpcdl.jobs.lint.shell import Reading, ShellCommand, Word, names, programs_of, unquote
from hpcdl.slurm.rules import SlurmRelease, span
from hpcdl.slurm.unwrap import MPIRUN, SHELLS, unwrap

LAUNCHERS = (*MPIRUN, "srun", "horovodrun")
CONTINUED = "continued on the next line"
"""`Directive.broken` of one that ends in a backslash."""
_BRIEF = names(
    "hostname cd echo printf true false date env printenv uname nvidia-smi rocm-smi id pwd ls "
    "cat scontrol sinfo free lscpu numactl mkdir rm cp rsync tar touch test which sbcast df"
)
"""Programs whose rank count, CPUs and exit code rarely matter."""
_FILTERS = names("set awk grep sed sort uniq head tail tr cut wc")
"""What shows their answers."""
_DIRECTIVE = re.compile(r"#(?:SBATCH|SLURM(?=[\s-]))", re.A)
_COMPONENT = re.compile(r"[ \t]*(?:hetjob|packjob)(?=\s|$)", re.I)
_DIRECTIVE_WORD = (
    r"[ \t\f\v\r]*("
    r"(?:\\(?:[^%s]|\Z)|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|[^\\\"' \t\f\v\r#])*)"
)
_WORDS = {
    escapes: re.compile(_DIRECTIVE_WORD % kept, re.S)
    for escapes, kept in ((False, r" \t\f\v\r"), (True, r"\t\f\v\r"))
}
"""A directive's word, by whether a backslash escapes a blank."""
_VARIABLE = re.compile(r'"?\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?:\[[@*]\])?\})"?\Z', re.A)
_ASSIGN = re.compile(r"([A-Za-z_]\w*)(?:\[[^][]*\])?(\+?=)(.*)\Z", re.S | re.A)
_MAX_WORDS = 200
"""A variable of more words is not filled in."""
_DECLARERS = {"export", "declare", "typeset", "local", "readonly"}


class SourceLine(NamedTuple):
    """A physical line: its number from 1, the offset of its start, and its text without the end."""

    number: int
    start: int
    text: str


class Directive(NamedTuple):
    """One #SBATCH line. `component` counts those of a heterogeneous job from 0.

    `broken` says what sbatch would refuse it for, or is empty.
    """

    line: SourceLine
    component: int
    options: Options
    broken: str = ""


class Assignment(NamedTuple):
    """A variable that gets a value: `value` as written, without outer quotes."""

    name: str
    value: str
    raw: str
    start: int
    command: ShellCommand
    exported: bool
    adds: bool


class JobStep(NamedTuple):
    """A command that launches ranks. `options` are srun's; for others all words are in `rest`.

    `programs` are the words of what it launches, the outermost first: a container, an agent such
    as torchrun, the program itself.
    """

    launcher: str
    command: ShellCommand
    options: Options
    start: int
    programs: tuple[tuple[Word, ...], ...] = ()

    @property
    def program(self) -> str:
        """The program that it launches, without its path; empty where it is not known."""
        first = self.programs[-1][0].value if self.programs else "$"
        return "" if first.startswith("$") and "/" not in first else first.rpartition("/")[2]

    @property
    def asks(self) -> bool:
        """Whether it starts nothing: `srun --mpi=list`, `srun --help`."""
        empty = not (self.options.rest or self.options.opaque)
        own = {word.value for word in self.options.rest[:1]} & {"--version", "--help"}  # mpirun's
        lists = self.options.text("mpi") == "list"
        return bool(empty or own or lists) or self.options.has("help", "version", "usage")

    @property
    def brief(self) -> bool:
        """Whether it is over at once: it only looks at something, as `srun hostname` does."""
        line = self.options.rest[-1:] if self.program in SHELLS else ()
        run = {one.program for word in line for one in Reading(word.value).commands}
        looks = bool(run & _BRIEF) and run <= _BRIEF | _FILTERS
        return self.asks or self.program in _BRIEF or looks

    @property
    def trivial(self) -> bool:
        """Whether it does no work: it is brief, or only sleeps."""
        return self.brief or self.program == "sleep"


class BatchScript:
    """A batch script. Everything is worked out once, when first asked for."""

    def __init__(self, text: str, name: str, release: SlurmRelease) -> None:
        self.text, self.name, self.release = text, name, release
        self._escapes = span(load("slurm_values")["blank_escaped"]).holds(release)

    @cached_property
    def lines(self) -> tuple[SourceLine, ...]:
        """Its physical lines."""
        found, start = [], 0
        for number, text in enumerate(self.text.split("\n"), 1):
            found.append(SourceLine(number, start, text))
            start += len(text) + 1
        return tuple(found)

    def place(self, offset: int) -> tuple[int, int]:
        """Line and column, both from 1, of an offset."""
        index = max(0, bisect_right(self.lines, offset, key=lambda line: line.start) - 1)
        return index + 1, offset - self.lines[index].start + 1

    @cached_property
    def shebang(self) -> str:
        """The first line's interpreter and its arguments, or nothing."""
        first = self.text[:1000].split("\n", 1)[0]
        return first[2:].strip() if first.startswith("#!") else ""

    @cached_property
    def first(self) -> BatchScript:
        """The first script of a file of several: up to the next line with an interpreter."""
        for line in self.lines[len(self.header) + 1 :]:
            if re.match(r"#!\s*/", line.text) and self.is_comment(line.start):
                part = self.text[: line.start]
                return BatchScript(part, self.name, self.release)
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
        return Reading(self.text if self.is_shell else "")

    @cached_property
    def commands(self) -> tuple[ShellCommand, ...]:
        """Its commands; none where no shell runs it."""
        return tuple(self._reading.commands)

    def in_body(self, offset: int) -> bool:
        """Whether an offset lies in a here-document."""
        bodies = self._reading.heredocs
        index = bisect_right(bodies, (offset, len(self.text))) - 1
        return index >= 0 and offset < bodies[index][1]

    def is_comment(self, offset: int) -> bool:
        """Whether a comment begins there, and no line of a string or a here-document."""
        return offset in self._reading.comments

    @cached_property
    def header(self) -> tuple[SourceLine, ...]:
        """The lines in which sbatch looks for directives: those before the first command."""
        for line in self.lines:
            if line.text.strip() and not line.text.lstrip().startswith("#"):
                return self.lines[: line.number - 1]
        return self.lines

    @cached_property
    def directives(self) -> tuple[Directive, ...]:
        """The directives that count, in order."""
        directives: list[Directive] = []
        component = 0
        for line in self.header:
            if (match := _DIRECTIVE.match(line.text)) is None:
                continue
            if separator := _COMPONENT.match(line.text, match.end()):
                component += 1
            words, broken = self.words_behind(line, (separator or match).end())
            options = read_options(words, "sbatch", self.release, expands=False)
            directives.append(Directive(line, component, options, broken))
        return tuple(directives)

    @cached_property
    def components(self) -> tuple[Options, ...]:
        """The options of the directives, per component; at least one."""
        last = self.directives[-1].component if self.directives else 0
        given: list[list[Option]] = [[] for _ in range(last + 1)]
        for directive in self.directives:
            given[directive.component] += directive.options.given
        return tuple(Options(tuple(options)) for options in given)

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
    def steps(self) -> tuple[JobStep, ...]:
        """Everything that launches ranks."""
        found: list[JobStep] = []
        known: dict[str, tuple[str, ...]] = {}
        for command in self.commands:
            found += _steps(command, known, self.release)
            _note(command, known)
        return tuple(found)

    def words_behind(self, line: SourceLine, position: int) -> tuple[list[Word], str]:
        """The words of a directive as sbatch splits them, and what it refuses the line for.

        Quotes group, a backslash escapes, `#` begins a comment anywhere outside quotes.
        """
        text, words = line.text, list[Word]()
        while found := _WORDS[self._escapes].match(text, position):
            start, position = found.span(1)
            if text[start:].rstrip("\t\r" if self._escapes else None) == "\\":
                return words, CONTINUED
            if text[start : start + 1] == ":":
                return words, f"unexpected colon: {text[start : start + 40]}"
            if text[position : position + 1] in {'"', "'"}:
                return words, f"unmatched quote: {text[start : start + 40]}"
            if start == position:
                break  # also at a backslash before a blank: sbatch reads no further
            raw = text[start:position]
            if position == len(text) and re.search(r"(?<!\\)\\\Z", raw):
                raw = raw[:-1]  # sbatch drops a backslash at the end of the line
            words.append(Word(raw, line.start + start))
            # Of a blank that it does not escape: the word ends here.
            position += text.startswith("\\", position)
        return words, ""


def _note(command: ShellCommand, literals: dict[str, tuple[str, ...]]) -> None:
    """Take in the literal text that a command's assignments give to variables.

    One that is set under a condition or in a loop may hold something else, and is not known.
    """
    for one in () if command.within("substitution", "inner") else _assigned(command):
        before = literals.pop(one.name, ())
        if not (command.scopes or "$(" in one.raw or "`" in one.raw):
            words = (*(before if one.adds else ()), *_literal_words(one.raw))
            if len(words) <= _MAX_WORDS:
                literals[one.name] = words


def _literal_words(raw: str) -> tuple[str, ...]:
    """The words in an assigned value: of an array, or of a string split at blanks."""
    value = raw.partition("=")[2][:10_000]
    if value.startswith("("):
        read = Reading(f"_ {value[1:].removesuffix(')')}").commands
        return tuple(word.raw for command in read[:1] for word in command.words[1:])
    return tuple(unquote(value).split())


def _filled(word: Word, values: dict[str, tuple[str, ...]]) -> list[Word]:
    """A word with a known variable filled in, at the variable's place."""
    one_word = word.raw.startswith('"') and "[" not in word.raw
    match = _VARIABLE.match(word.raw) if "$" in word.raw[:2] and not one_word else None
    words = values.get(match[1] or match[2]) if match else None
    return [word] if words is None else [Word(raw, word.start) for raw in words]


def _shell_line(words: list[Word], values: dict[str, tuple[str, ...]]) -> list[Word]:
    """The words, with the text of a known variable in the place of `bash -c "$COMMAND"`."""
    for at, (shell, option, script) in enumerate(zip(words, words[1:], words[2:], strict=False)):
        match = _VARIABLE.match(script.raw) if option.value == "-c" else None
        if match and shell.program in SHELLS and (line := values.get(match[1] or match[2])):
            return [*words[:at], *(Word(raw, script.start) for raw in line)]
    return words


def _assigned(command: ShellCommand) -> Iterator[Assignment]:
    """Yield a command's assignments: before its words, and as arguments of export and the like."""
    words = [(word, False) for word in command.assignments]
    if command.name in _DECLARERS:
        words += [(word, command.name == "export") for word in command.words[1:]]
    for word, exported in words:
        if match := _ASSIGN.match(word.raw):
            name, sign, value = match.groups()
            plain, adds = unquote(value), sign == "+="
            yield Assignment(name, plain, word.raw, word.start, command, exported, adds)


def _steps(
    command: ShellCommand, values: dict[str, tuple[str, ...]], release: SlurmRelease
) -> Iterator[JobStep]:
    """The steps that a command launches: one, or one per component between colons."""
    words = [one for word in command.words[:_MAX_WORDS] for one in _filled(word, values)]
    words = _shell_line([*words, *command.words[_MAX_WORDS:]], values)
    starts = unwrap([word.value for word in words])
    at = next((one for one in starts if words[one].program in LAUNCHERS), None)
    if at is None:
        return
    start, launcher, rest = words[at].start, words[at].program, words[at + 1 :]
    if launcher == "srun":
        colons = [place for place, word in enumerate(rest) if word.raw == ":"]
        for before, after in pairwise([-1, *colons, len(rest)]):
            options = read_options(rest[before + 1 : after], "srun", release)
            yield JobStep(launcher, command, options, start, programs_of(options.rest))
    else:
        options = Options((), tuple(rest))
        yield JobStep(launcher, command, options, start, programs_of(words[at:])[1:])
