"""Reads any batch script, by anyone, into what the checks ask about.

A script is its directives (read as sbatch reads them, one set per component of a heterogeneous
job), its commands (hpcdl.jobs.lint.shell) and among these its steps: what srun, mpirun and their
like launch. Variables that hold literal text are filled in, so that `srun $OPTIONS` is seen as
it runs; others make a step opaque, and checks of missing options leave it alone.

In templates and forms a program or a reader has yet to fill something in: one gap in the directives
says that others are filled in as well. Of such a script only that is said which no filling mends.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from hpcdl.jobs.lint.options import Option, Options, read_options
from hpcdl.jobs.lint.shell import Command, Reading, Word, unquote
from hpcdl.jobs.script import INSTALLED, called

LAUNCHERS = ("srun", "mpirun", "mpiexec", "horovodrun", "orterun", "prun")
CONTINUED = "continued on the next line"
"""`Directive.broken` of one that ends in a backslash."""
_SHELLS = ("bash", "sh", "dash", "ksh", "zsh", "ash")
_TRIVIAL = frozenset(
    (
        "hostname",
        "cd",
        "echo",
        "printf",
        "true",
        "false",
        "date",
        "env",
        "printenv",
        "uname",
        "nvidia-smi",
        "rocm-smi",
        "id",
        "pwd",
        "ls",
        "cat",
        "scontrol",
        "sinfo",
        "free",
        "lscpu",
        "numactl",
        "mkdir",
        "rm",
        "cp",
        "rsync",
        "tar",
        "touch",
        "test",
        "which",
        "sbcast",
        "df",
    )
)
"""Programs whose rank count, CPUs and exit code rarely matter."""
_FILTERS = {"set", "awk", "grep", "sed", "sort", "uniq", "head", "tail", "tr", "cut", "wc"}
"""What shows their answers."""
_WRAPPERS = {"time", "exec", "nohup", "command", "env", "timeout", "stdbuf", "nice", "builtin"}
_DIRECTIVE = re.compile(r"#(?:SBATCH|SLURM(?=[\s-]))", re.A)
_COMPONENT = re.compile(r"[ \t]*(?:hetjob|packjob)(?=\s|$)", re.I)
_DIRECTIVE_WORD = re.compile(
    r"""[ \t\f\v\r]*((?:\\(?:.|\Z)|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[^\\"' \t\f\v\r#])*)""", re.S
)
_VARIABLE = re.compile(r'"?\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?:\[[@*]\])?\})"?\Z', re.A)
_ASSIGN = re.compile(r"([A-Za-z_]\w*)(?:\[[^][]*\])?(\+?=)(.*)\Z", re.S | re.A)
_MAX_WORDS = 200
"""A variable of more words is not filled in."""
_DECLARERS = {"export", "declare", "typeset", "local", "readonly"}

GAP = re.compile(
    r"#SBATCH +\$|(?<!\$)\{(?:[\w{%#]| \w+ \})|#[A-Z]\w*#|@[A-Za-z]\w*@|(?<![\w.])@[A-Z_]{2,}\b"
    r"|\b_[A-Z][A-Z_]+_\b|<[^<>]*>|%(?:[A-Z][A-Z_]{2,}|[A-Za-z]{3,})%|%%[A-Za-z][\w-]*%%|%\(\w+\)"
    r"|XXX|(?<![a-z])xxx(?![a-z])|__[A-Z]\w*?__|\[[A-Za-z][A-Za-z_ ]{3,}\]|\.\.\."
    r"|(?<![A-Za-z])(?:[Yy]our|YOUR)(?![a-z])|PLACEHOLDER|CHANGE_?ME|REPLACE|TODO|FIXME|\bself\.\w",
    re.A,
)
GAP_LINE = re.compile(r"[ \t]*(?:\{[\w{%#]|@@?\w|<[%\w]|%\w+%|__\w+\{|\$\{\w+\}\s*\Z)", re.A)
"""A line that begins with a gap."""
GAP_BLOCK = re.compile(r"^[ \t]*\{([%#]).{0,2000}?\1\}", re.M | re.S)
"""A template's own comment or statement, of one line or several."""
FILLED = frozenset(
    ("option-value", "directive-argument", "directive-variable", "shebang", "assignment-spaced")
)
"""Rules that say nothing of a template: what they find is filled in."""
_TEMPLATE = re.compile(
    r"\.(?:template|tmpl|tpl|in|j2|jinja2?|mustache)(?:\.\w+)?\Z|(?:^|/)templates?/[^/]*\Z", re.I
)
_COMMENT = re.compile(r"\s#.*")
_NUMBERS = {
    "nodes",
    "ntasks",
    "ntasks-per-node",
    "cpus-per-task",
    "cpus-per-gpu",
    "mem",
    "mem-per-cpu",
    "mem-per-gpu",
    "time",
    "array",
}
"""Options whose value has a number in it: a word in its place is a form's, as in `-n num_cores`."""
_COUNTED = {*_NUMBERS, "gpus", "gpus-per-node", "gpus-per-task", "gres"}
_NO_NUMBER = re.compile(r"(?!infinite|unlimited)[^\d$`]*[A-Za-z][^\d$`]*\Z", re.I)
_BOUNDS = re.compile(r"(?:\d+|[A-Za-z])-[A-Za-z](?:%\w+)?\Z", re.A)
"""Of an array: `n-m`, `1-N`."""
_NAMED = re.compile(r"\$\{?([A-Za-z]\w*)", re.A)


class Line(NamedTuple):
    """A physical line: its number from 1, the offset of its start, and its text without the end."""

    number: int
    start: int
    text: str


class Directive(NamedTuple):
    """One #SBATCH line. `component` counts those of a heterogeneous job from 0.

    `broken` says what sbatch would refuse it for, or is empty.
    """

    line: Line
    component: int
    options: Options
    broken: str = ""


class Assignment(NamedTuple):
    """A variable that gets a value: `value` as written, without outer quotes."""

    name: str
    value: str
    raw: str
    start: int
    command: Command
    exported: bool
    adds: bool


class Step(NamedTuple):
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
        empty = not (self.options.rest or self.options.opaque)
        own = {word.value for word in self.options.rest[:1]} & {"--version", "--help"}  # mpirun's
        lists = self.options.text("mpi") == "list"
        return bool(empty or own or lists) or self.options.has("help", "version", "usage")

    @property
    def brief(self) -> bool:
        """Whether it is over at once: it only looks at something, as `srun hostname` does."""
        line = self.options.rest[-1:] if self.program in _SHELLS else ()
        run = {one.program for word in line for one in Reading(word.value).commands}
        looks = bool(run & _TRIVIAL) and run <= _TRIVIAL | _FILTERS
        return self.asks or self.program in _TRIVIAL or looks

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
    def is_template(self) -> bool:
        """Whether its name, directives or values of options say that something is missing.

        A directive that names a variable which the script sets itself is a mistake.
        """
        directives = (line.text for line in self.header if line.text.startswith("#SBATCH"))
        gaps = (GAP.search(_COMMENT.sub("", text)) for text in directives)
        if _TEMPLATE.search(self.name) or any(gaps):
            return True
        given = [option for part in self.components for option in part.given]
        assigned = {one.name for one in self.assignments}
        return sum(one.value == "" for one in given) > 1 or any(
            (one.name in _NUMBERS and _NO_NUMBER.match(one.text))
            or (one.name == "array" and _BOUNDS.match(one.text))
            or not set(_NAMED.findall(one.text)) <= assigned
            for one in given
            if one.name in _COUNTED
        )

    @cached_property
    def first(self) -> Script:
        """The first script of a file of several: up to the next line with an interpreter."""
        for line in self.lines[len(self.header) + 1 :]:
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
        return not self.shebang or self.interpreter in _SHELLS

    @cached_property
    def _reading(self) -> Reading:
        """What it runs; behind a `source` of hpcdl's functions, those that it calls."""
        reading = Reading(self.text if self.is_shell else "")
        for place, command in enumerate(reading.commands):
            file = command.words[1].value if len(command.words) > 1 else ""
            if command.name in {"source", "."} and file.endswith(f"/{INSTALLED}"):
                self.sourced = called(self.text)
                sourced = [one.moved(command.start) for one in Reading(self.sourced).commands]
                reading.commands[place + 1 : place + 1] = sourced
                break
        return reading

    @cached_property
    def commands(self) -> tuple[Command, ...]:
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
    def header(self) -> tuple[Line, ...]:
        """The lines in which sbatch looks for directives: those before the first command."""
        within = 0  # up to where a template's own comment or statement goes
        for line in self.lines:
            text = line.text.lstrip()
            if block := GAP_BLOCK.match(self.text, line.start):
                within = block.end()
            if line.start < within or not text or text.startswith("#"):
                continue
            if not GAP_LINE.match(text):
                return self.lines[: line.number - 1]
        return self.lines

    @cached_property
    def directives(self) -> tuple[Directive, ...]:
        """The directives that count, in order."""
        found: list[Directive] = []
        component = 0
        for line in self.header:
            if (match := _DIRECTIVE.match(line.text)) is None:
                continue
            if separator := _COMPONENT.match(line.text, match.end()):
                component += 1
            words, broken = directive_words(line, (separator or match).end())
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
        return tuple(Options(tuple(options)) for options in given)

    @property
    def is_batch(self) -> bool:
        """Whether it has directives, so that sbatch is meant to run it."""
        return bool(self.directives)

    @cached_property
    def assignments(self) -> tuple[Assignment, ...]:
        """Every variable that gets a value."""
        return tuple(found for command in self.commands for found in _assigned(command))

    def words_of(self, *names: str) -> set[str]:
        """The words, as written, of all commands of these names."""
        return {word.raw for one in self.commands if one.name in names for word in one.words}

    def assigned(self, *names: str) -> tuple[Assignment, ...]:
        """The assignments to some variables."""
        return tuple(one for one in self.assignments if one.name in names)

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """Everything that launches ranks."""
        found: list[Step] = []
        known: dict[str, tuple[str, ...]] = {}
        for command in self.commands:
            found += _steps(command, known)
            _note(command, known)
        return tuple(found)


def directive_words(line: Line, position: int) -> tuple[list[Word], str]:
    """The words of a directive as sbatch splits them, and what it refuses the line for.

    Quotes group, a backslash escapes, `#` begins a comment at any place outside quotes.
    """
    text, words = line.text, list[Word]()
    while found := _DIRECTIVE_WORD.match(text, position):
        start, position = found.span(1)
        if text[start:].rstrip() == "\\":
            return words, CONTINUED
        if text[position : position + 1] in {'"', "'"}:
            return words, f"unmatched quote: {text[start : start + 40]}"
        if start == position:
            break
        words.append(Word(text[start:position], line.start + start))
    return words, ""


def _note(command: Command, known: dict[str, tuple[str, ...]]) -> None:
    """Take in the literal text that a command's assignments give to variables.

    One that is set under a condition or in a loop may hold something else, and is not known.
    """
    for one in () if command.within("substitution", "inner") else _assigned(command):
        before = known.pop(one.name, ())
        if not (command.scopes or "$(" in one.raw or "`" in one.raw):
            words = (*(before if one.adds else ()), *_literal_words(one.raw))
            if len(words) <= _MAX_WORDS:
                known[one.name] = words


def _literal_words(raw: str) -> tuple[str, ...]:
    """The words in an assigned value: of an array, or of a string split at blanks."""
    value = raw.partition("=")[2][:10_000]
    if value.startswith("("):
        read = Reading(f"_ {value[1:].removesuffix(')')}").commands
        return tuple(word.raw for command in read[:1] for word in command.words[1:])
    return tuple(unquote(value).split())


def _filled(word: Word, known: dict[str, tuple[str, ...]]) -> list[Word]:
    """A word with a known variable filled in, at the variable's place."""
    one_word = word.raw.startswith('"') and "[" not in word.raw
    match = _VARIABLE.match(word.raw) if "$" in word.raw[:2] and not one_word else None
    words = known.get(match[1] or match[2]) if match else None
    return [word] if words is None else [Word(raw, word.start) for raw in words]


def _assigned(command: Command) -> Iterator[Assignment]:
    """What a command assigns: before its words, and as arguments of export and the like."""
    words = [(word, False) for word in command.assignments]
    if command.name in _DECLARERS:
        words += [(word, command.name == "export") for word in command.words[1:]]
    for word, exported in words:
        if match := _ASSIGN.match(word.raw):
            name, sign, value = match.groups()
            plain, adds = unquote(value), sign == "+="
            yield Assignment(name, plain, word.raw, word.start, command, exported, adds)


def _steps(command: Command, known: dict[str, tuple[str, ...]]) -> Iterator[Step]:
    """The steps that a command launches: one, or one per component between colons."""
    words = [one for word in command.words[:_MAX_WORDS] for one in _filled(word, known)]
    words += command.words[_MAX_WORDS:]
    index = 0
    while index < len(words) and words[index].raw in _WRAPPERS:  # `env A=b`, `timeout 60`
        index += 1
        while index < len(words) and re.match(r"-|\d|[^=]*=", words[index].raw):
            index += 1
    if index >= len(words):
        return
    start, launcher = words[index].start, words[index].value.rpartition("/")[2]
    rest = tuple(words[index + 1 :])
    if launcher == "srun":
        colons = [place for place, word in enumerate(rest) if word.raw == ":"]
        for before, after in pairwise([-1, *colons, len(rest)]):
            options = read_options(rest[before + 1 : after], "srun")
            yield Step(launcher, command, options, start)
    elif launcher in LAUNCHERS:
        yield Step(launcher, command, Options((), rest), start)
