"""The commands of a shell script, each with the constructs around it.

tree-sitter's grammar of bash parses, and recovers from what no shell would take; here its tree
becomes the flat list that the checks look at. Nothing is executed or expanded. The scripts that
`bash -c '...'` runs are parsed as well. Without the packages of the extra `lint` there are no
commands, and `parser` is None.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcdl.slurm.unwrap import SHELLS, unwrap

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

MAX_DEPTH = 120
"""Nodes deeper than this in the tree are not read."""
MAX_INNER = 4
"""Scripts within scripts (`bash -c`) are read down to this depth."""
_WRAPPERS = 50
_UNQUOTE = re.compile(r"'([^']*)'|\"((?:[^\"\\]|\\.)*)\"|\\(.)|([^'\"\\]+|.)", re.S)
_IN_DOUBLE = re.compile(r"\\([\"\\$`\n])")


def names(text: str) -> frozenset[str]:
    """The names in a text."""
    return frozenset(text.split())


_NOT_ASCII = re.compile(r"[^\x01-\x7f]")
_APOSTROPHE = re.compile(r"(\$\{\w+:?[-+=?][^{}\"'\n]*)'(?=[^{}\"'\n]*\})")
"""In `"${x:-don't}"`, where the grammar takes it for the beginning of a string."""
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\[[^][]{0,200}\])?\+?=")
_REDIRECTS = {"file_redirect", "herestring_redirect", "heredoc_redirect"}
_ASSIGNED = {"command", "variable_assignment", "variable_assignments"}
_COMMANDS = {"command", "declaration_command", "unset_command", "test_command"}
_SUBSTITUTIONS = {"command_substitution", "process_substitution"}
_EXPRESSIONS = {"binary_expression", "unary_expression", "parenthesized_expression"}
_SCOPES = {
    "while_statement": "loop",
    "subshell": "subshell",
    "compound_statement": "group",
    "case_item": "case",
}
_Scopes = tuple[str, ...]
"""The constructs around a command, outermost first: loop, condition, branch, case, group, subshell,
function, substitution, or inner (the text behind `bash -c`)."""


class Word(NamedTuple):
    """A word as written, and the offset in the text where it starts."""

    raw: str
    start: int

    @property
    def end(self) -> int:
        """The offset behind it."""
        return self.start + len(self.raw)

    @property
    def value(self) -> str:
        """The word without its quotes; `$` expansions stay as written."""
        return unquote(self.raw)

    @property
    def program(self) -> str:
        """The word as a program's name, without its path."""
        return self.value.rpartition("/")[2]


def unquote(raw: str) -> str:
    """A word's text without quotes and escapes; expansions stay as written."""
    if "'" not in raw and '"' not in raw and "\\" not in raw:
        return raw
    parts: list[str] = []
    for match in _UNQUOTE.finditer(raw):
        single, double, escaped, other = match.groups()
        if double is not None:
            parts.append(_IN_DOUBLE.sub(lambda found: found[1].strip("\n"), double))
        elif escaped is not None:
            parts.append(escaped.strip("\n"))
        else:
            parts.append(single or (other or "").strip('"'))
    return "".join(parts)


@dataclass(frozen=True)
class ShellCommand:
    """A simple command: assignments before it, its words, and how it runs.

    `background`: it, or what it is part of, ends with `&`. `piped`: its output goes into another
    command.
    """

    assignments: tuple[Word, ...]
    words: tuple[Word, ...]
    scopes: _Scopes
    background: bool = False
    piped: bool = False

    @property
    def start(self) -> int:
        """The offset of its first character."""
        return (self.assignments or self.words)[0].start

    @property
    def text(self) -> str:
        """Its words as written, with a blank between them."""
        return " ".join(word.raw for word in self.words)

    @property
    def name(self) -> str:
        """The command's own word, unquoted; empty for bare assignments."""
        return self.words[0].value if self.words else ""

    @property
    def program(self) -> str:
        """Its name without the path."""
        return self.name.rpartition("/")[2]

    @cached_property
    def programs(self) -> tuple[tuple[Word, ...], ...]:
        """The words of each program that it runs, wrappers first."""
        return programs_of(self.words)

    def within(self, *kinds: str) -> bool:
        """Whether one of the constructs around it is of these kinds."""
        return any(scope in kinds for scope in self.scopes)


def programs_of(words: Sequence[Word]) -> tuple[tuple[Word, ...], ...]:
    """The words of each program that a command line runs, wrappers first; no more than 50.

    A text of 150,000 times `srun` took hours.
    """
    return tuple(tuple(words[at:]) for at in unwrap([word.value for word in words])[:_WRAPPERS])


@cache
def parser() -> Parser | None:
    """The parser of bash; None where its packages are not installed."""
    try:
        import tree_sitter_bash
        from tree_sitter import Language, Parser
    except ImportError:
        return None
    return Parser(Language(tree_sitter_bash.language()))


class Reading:
    """The commands of a text that begins at `base`, its here-documents and its comments.

    Here-documents are spans of offsets; of comments it is where each begins. The commands of
    substitutions and of `bash -c '...'` follow the command that holds them.
    """

    def __init__(
        self, text: str, base: int = 0, scopes: _Scopes = (), inner: int = MAX_INNER
    ) -> None:
        self._text, self._base, self._inner = text, base, inner
        self.commands: list[ShellCommand] = []
        self.heredocs: list[tuple[int, int]] = []
        self.comments: set[int] = set()
        if (bash := parser()) is not None:
            # One byte for each character, so that offsets are those of the text.
            plain = _APOSTROPHE.sub(r"\1_", _NOT_ASCII.sub("_", text))
            self._statements(bash.parse(plain.encode()).root_node.children, scopes, 0)

    def _statements(self, nodes: Sequence[Node], scopes: _Scopes, depth: int) -> None:
        """Read a list of statements and the separators between them."""
        start = len(self.commands)
        for node in nodes:
            if node.type == "&":
                self._mark(start, background=True)
            elif node.type == "comment":
                self.comments.add(self._base + node.start_byte)
            elif node.is_named:
                start = len(self.commands)
                self._statement(node, scopes, depth + 1)

    def _statement(self, node: Node, scopes: _Scopes, depth: int) -> None:
        if depth > MAX_DEPTH:
            return
        if node.type in _COMMANDS | _ASSIGNED:
            self._command(node, (), scopes, depth)
        else:
            visit: Callable[..., None] = getattr(self, f"_on_{node.type}", self._visit)
            visit(node, scopes, depth)

    def _visit(self, node: Node, scopes: _Scopes, depth: int) -> None:
        inside = (*scopes, _SCOPES[node.type]) if node.type in _SCOPES else scopes
        self._statements(node.children, inside, depth)

    def _mark(self, start: int, **how: Any) -> None:
        """Say how all commands from `start` on run."""
        self.commands[start:] = [replace(one, **how) for one in self.commands[start:]]

    def _on_list(self, node: Node, scopes: _Scopes, depth: int) -> None:
        """Commands between `|`, `&&` and `||`."""
        start = len(self.commands)
        for child in node.children:
            if child.type in {"|", "|&"}:
                self._mark(start, piped=True)
                start = len(self.commands)
            elif child.type not in {"&&", "||"}:
                self._statement(child, scopes, depth + 1)

    def _on_redirected_statement(self, node: Node, scopes: _Scopes, depth: int) -> None:
        """Read a statement and its redirections, which more words or commands may follow."""
        body = node.child_by_field_name("body")
        redirects = [child for child in node.children if child.type in _REDIRECTS]
        start = len(self.commands)
        if body is not None and body.type in _COMMANDS:
            self._command(body, redirects, scopes, depth)
        elif body is not None:
            self._statement(body, scopes, depth + 1)
        for redirect in redirects:
            self._substitutions(redirect, scopes, depth)
            if redirect.type == "heredoc_redirect":
                self._heredoc(redirect, start, scopes, depth)

    def _heredoc(self, node: Node, start: int, scopes: _Scopes, depth: int) -> None:
        """The text of a here-document, and the commands between its `<<E` and that text."""
        for child in node.children:
            if child.type == "heredoc_body":
                self.heredocs.append((self._base + child.start_byte, self._base + child.end_byte))
                self._script_in(child, start, scopes)
            elif child.type in {"pipeline", "command", "list"}:
                if child.type == "pipeline":
                    self._mark(start, piped=True)
                self._statement(child, scopes, depth + 1)

    def _script_in(self, body: Node, start: int, scopes: _Scopes) -> None:
        """The commands of a here-document that a shell reads: `srun bash <<END`."""
        words = [word.value for one in self.commands[start : start + 1] for word in one.words]
        last = words[unwrap(words)[-1] :] if words else []
        reads = last[:1] and last[0].rpartition("/")[2] in SHELLS and set(last[1:]) <= {"-s", "-"}
        if reads and self._inner:
            inside = (*scopes, "inner")
            text, base = self._text[body.start_byte : body.end_byte], self._base + body.start_byte
            self.commands += Reading(text, base, inside, self._inner - 1).commands

    def _command(self, node: Node, redirects: Sequence[Node], scopes: _Scopes, depth: int) -> None:
        """A simple command, what its words substitute, and what `bash -c` among them runs."""
        parts = [node] if node.type == "variable_assignment" else list(_parts(node))
        parts += [part for redirect in redirects for part in _behind(redirect)]
        words = self._words(parts)
        while words and words[0].raw == "time":
            del words[0]
        before = 0
        if node.type in _ASSIGNED:
            while before < len(words) and _ASSIGNMENT.match(words[before].raw):
                before += 1
        if not words:
            return
        self.commands.append(ShellCommand(tuple(words[:before]), tuple(words[before:]), scopes))
        for part in parts:
            self._substitutions(part, scopes, depth)
        self._inner_scripts(words[before:], (*scopes, "inner"))

    def _words(self, parts: Sequence[Node]) -> list[Word]:
        """Words as written: what touches is one."""
        spans: list[list[int]] = []
        for part in parts:
            if spans and spans[-1][1] == part.start_byte:
                spans[-1][1] = part.end_byte
            elif part.end_byte > part.start_byte:
                spans.append([part.start_byte, part.end_byte])
        return [Word(self._text[start:end], self._base + start) for start, end in spans]

    def _substitutions(self, node: Node, scopes: _Scopes, depth: int) -> None:
        """The commands in `$(...)`, backticks and `<(...)` anywhere in a node."""
        if depth > MAX_DEPTH:
            return
        for child in node.children:
            if child.type in _SUBSTITUTIONS:
                self._statements(child.children, (*scopes, "substitution"), depth + 1)
            elif child.child_count:
                self._substitutions(child, scopes, depth + 1)

    def _inner_scripts(self, words: Sequence[Word], scopes: _Scopes) -> None:
        for shell, option, script in zip(words, words[1:], words[2:], strict=False):
            quoted = script.raw[:1] in {"'", '"'} and len(script.raw) >= 2
            is_shell = shell.raw.rpartition("/")[2] in SHELLS
            if self._inner and quoted and is_shell and re.match(r"-[a-z]*c", option.raw):
                inner = Reading(script.raw[1:-1], script.start + 1, scopes, self._inner - 1)
                self.commands += inner.commands

    def _head(self, nodes: Sequence[Node], scopes: _Scopes, depth: int) -> None:
        """`for x in a b` and `case x in`, which look like commands."""
        if words := self._words(nodes):
            self.commands.append(ShellCommand((), tuple(words), scopes))
        for node in nodes:
            self._substitutions(node, scopes, depth)

    def _on_for_statement(self, node: Node, scopes: _Scopes, depth: int) -> None:
        body = node.child_by_field_name("body")
        first = body.start_byte if body else node.end_byte
        heads = [one for one in node.children if one.end_byte <= first and one.type != ";"]
        self._head(heads, scopes, depth)
        if body is not None:
            self._statements(body.children, (*scopes, "loop"), depth)

    def _on_if_statement(self, node: Node, scopes: _Scopes, depth: int) -> None:
        nodes = node.children
        then = next((at for at, one in enumerate(nodes) if one.type == "then"), 0)
        self._statements(nodes[:then], (*scopes, "condition"), depth)
        self._statements(nodes[then:], (*scopes, "branch"), depth)

    def _on_case_statement(self, node: Node, scopes: _Scopes, depth: int) -> None:
        items = [one for one in node.children if one.type in {"case_item", "ERROR"}]
        first = items[0].start_byte if items else node.end_byte
        self._head([one for one in node.children if one.end_byte <= first], scopes, depth)
        self._statements(items, scopes, depth)

    def _on_function_definition(self, node: Node, scopes: _Scopes, depth: int) -> None:
        if body := node.child_by_field_name("body"):
            self._statements(body.children, (*scopes, "function"), depth)

    def _on_compound_statement(self, node: Node, scopes: _Scopes, depth: int) -> None:
        """`{ ... }`, or `((...))`, which is one command."""
        if node.children[:1] and node.children[0].type == "((":
            self._head([node], scopes, depth)
        else:
            self._visit(node, scopes, depth)

    _on_pipeline = _on_list
    _on_c_style_for_statement = _on_for_statement
    _on_elif_clause = _on_if_statement


def _parts(node: Node) -> Iterator[Node]:
    """The words of a simple command; a test's are those within its operators."""
    for child in node.children:
        if child.type in _REDIRECTS:
            yield from _behind(child)
        elif child.type in _EXPRESSIONS:
            yield from _parts(child)
        else:
            yield child


def _behind(redirect: Node) -> Iterator[Node]:
    """Words of the command behind a redirection, which the grammar counts among its targets."""
    if redirect.type == "file_redirect":
        yield from redirect.children_by_field_name("destination")[1:]
    elif redirect.type == "heredoc_redirect":
        yield from redirect.children_by_field_name("argument")
