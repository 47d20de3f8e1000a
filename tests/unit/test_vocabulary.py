"""The field's terms: old private words stay out of names, help, messages, templates and docs."""

import ast
import re
from functools import lru_cache
from pathlib import Path

import pytest

from hpcdl.cli import GROUPS, group_overview, load_group, overview
from hpcdl.cli.framework import Group, build_parser
from tests.unit.conftest import commands

ROOT = Path(__file__).resolve().parents[2]

# An old word or phrase -> the term that takes its place. Words with honest uses (a word of a
# shell, a turn, a cut, headroom) are held out by the phrases in which they were private.
TERMS = {
    r"(?<!data make )(?<!photos,)(?<!kind )\bfolders?\b": "directory",
    r"\bat one stroke\b": "atomically",
    r"\b(?:leaves?|leaving|left) with (?:code |status )?\d": "exits with status N",
    r"\b(?:held|holds?) (?:\w+ ){0,3}against\b": "is compared with",
    r"\bnobody (?:knows the|has said)\b": "unknown ...",
    r"\bright form\b": "does not match the format",
    r"\b(?:goes|went|going) on\b|\bgo on (?:from|where|with|by|after)\b": "resumes, continues",
    r"\btakes? up (?:from|where)\b": "resumes",
    r"\bthe nights? judges?\b": "nightly regression checks",
    r"\bweakness(?:es)?\b": "vulnerability",
    r"\bpiles?\b": "publish history",
    r"\bastray\b": "outlier",
    r"\brhythms?\b": "seasonality",
    r"\bdoubts?\b": "uncertainty",
    r"\brooms?\b": "space, package",
    r"\b(?:rules of the|our) house\b": "package",
    r"\bholes?\b": "missing result",
    r"\blanes?\b": "shard streams",
    r"\bturn by turn\b|\bin turns\b": "round",
    r"\bproofs?\b(?!\.json|: run\b|`)": "evidence",
    r"\bways? of building\b": "backend",
    r"\bprogram's words\b|\bthe right words\b": "arguments, output",
    r"\bplays (?:a|the) cluster\b": "single-node emulation",
    r"\bhow (?:it|they|the \w+) stands?\b": "state",
    r"\bthe machine lacks\b": "a prerequisite is missing",
    r"\bcut(?:,| and| or) missing\b": "truncated",
    r"\bat the door\b": "at the boundary",
    r"\b(?:MachineLacks|AnswerNo)\b": "MissingPrerequisite, CheckFailed",
}
# Names of modules, classes and functions that were renamed.
NAMES = {
    "further",
    "dialect",
    "ending",
    "feeding",
    "faces",
    "trouble",
    "brake",
    "roots",
    "remember",
    "reading",
    "words",
    "pile",
    "as_words",
    "in_words",
    "remembered",
    "Face",
    "Switch",
    "Hole",
    "Standing",
    "Wish",
    "Cutter",
    "Told",
    "AnswerNo",
    "MachineLacks",
    "Trouble",
    "Lanes",
}
# Keys of the JSON that commands print.
KEYS = {"folder", "folders", "hole", "holes", "pile", "room", "turn", "words", "standing"}


ANY_TERM = re.compile("|".join(f"(?:{pattern})" for pattern in TERMS), re.IGNORECASE)


def old_terms(text):
    """What is said in old words, with the term that belongs there."""
    line = " ".join(text.split())
    if not ANY_TERM.search(line):
        return []
    return [
        f"{line[max(0, found.start() - 40) : found.end() + 20]!r}: {term}"
        for pattern, term in TERMS.items()
        for found in re.finditer(pattern, line, re.IGNORECASE)
    ]


MODULES = sorted(
    [*ROOT.glob("hpcdl/**/*.py"), *ROOT.glob("examples/**/*.py"), *ROOT.glob("reframe_checks/*.py")]
)


@lru_cache(maxsize=1)
def nodes(path):
    """All of a module's syntax tree."""
    return list(ast.walk(ast.parse(path.read_text())))


def strings(path):
    """Every text of a module, docstrings too; f-strings with their values as `X`."""
    joined = [node for node in nodes(path) if isinstance(node, ast.JoinedStr)]
    inside = {id(part) for node in joined for part in ast.walk(node) if part is not node}
    for node in nodes(path):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(v.value) if isinstance(v, ast.Constant) else "X" for v in node.values)
        elif id(node) not in inside and " " in str(text := getattr(node, "value", "")):
            yield text if isinstance(text, str) else ""


def prose(text):
    """A text without the names of parameters and keys in it."""
    return re.sub(r"(?m)`[\w.]+`|^ *\w+:", "", text)


def relative(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_names_keys_and_texts_of_a_module_use_the_terms(path):
    assert [old for text in strings(path) for old in old_terms(prose(text))] == []
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    names = {path.stem, *(node.name for node in nodes(path) if isinstance(node, kinds))}
    keys = {
        key.value
        for node in nodes(path)
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and not getattr(value, "id", "").startswith("_make_")
    }
    assert (names & NAMES, keys & KEYS) == (set(), set())


HELPS = {
    "hpcdl": overview(),
    **{
        name: group_overview(entry)
        for name in GROUPS
        if isinstance(entry := load_group(name), Group)
    },
    **{
        f"{words} -h": build_parser(f"hpcdl {words}", command).format_help()
        for words, command in commands().items()
    },
}


@pytest.mark.parametrize("name", HELPS)
def test_help_uses_the_terms(name):
    assert old_terms(HELPS[name]) == []


def plain(path):
    """The text of a file: without template expressions and code, which hold names."""
    text = path.read_text()
    if path.suffix == ".py":
        return "\n".join(map(prose, strings(path)))
    text = re.sub(r"{{.*?}}|{%.*?%}|<style>.*?</style>", _quoted, text, flags=re.DOTALL)
    if path.suffix in {".lua", ".js"}:
        return "\n".join([*re.findall(r"(?:--|//) (.*)", text), _quoted(text)])
    return text


def _quoted(code):
    """The texts in code, such as the reasons of a script's lines."""
    text = code if isinstance(code, str) else code.group()
    return " ".join(one for one in re.findall(r'"([^"\n]*)"', text) if " " in one)


PAGES = sorted(
    path
    for pattern in (
        "*.md",
        "docs/*.md",
        "*/README.md",
        "templates/**/*.*",
        "modulefiles/**/*.*",
        "spack/**/*.py",
        "spack/**/*.yaml",
        "tools/*.*",
        "Makefile",
    )
    for path in ROOT.glob(pattern)
    if path.is_file() and path.suffix not in {".pyc", ".css"}
)


@pytest.mark.parametrize("path", PAGES, ids=relative)
def test_pages_templates_and_tools_use_the_terms(path):
    assert old_terms(plain(path)) == []


@pytest.mark.parametrize(
    "text",
    [
        "It leaves with 1 where a script has an error",
        "a node is held against the others",
        "the same command goes on where it stopped",
        "publishes it at one stroke",
        "there is no room in /tmp",
        "The job works in a folder of its own",
        "one machine that plays a cluster",
        "prove it\nat   the door",
    ],
)
def test_the_table_finds_an_old_word(text):
    assert len(old_terms(text)) == 1
