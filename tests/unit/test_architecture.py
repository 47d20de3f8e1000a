"""The rules of docs/architecture.md that a machine can hold."""

import ast
import re
from collections import Counter, defaultdict
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "hpcdl"


def module_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def layer_of(module):
    """The first package below hpcdl; hpcdl itself and its entry point are none."""
    return module.split(".")[1] if module.count(".") and module != "hpcdl.__main__" else ""


def statements(node):
    """Those below a node: imports are statements, and most nodes are parts of expressions."""
    for part in ("body", "handlers", "orelse", "finalbody", "cases"):
        for child in getattr(node, part, ()):
            yield child
            yield from statements(child)


def imported(module):
    """Our modules that one imports, inside functions and for type checkers too."""
    found = set()
    for node in statements(trees()[module]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}:{node.lineno}: imports name the whole path"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & MODULES.keys() or {node.module or ""}
    return found & MODULES.keys()


MODULES = {module_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


# Seconds, so for who runs these tests only: every worker of pytest imports this file.
@cache
def trees():
    return {name: ast.parse(path.read_text()) for name, path in MODULES.items()}


@cache
def graph():
    return {name: imported(name) for name in MODULES}


@cache
def edges():
    return {(one, other) for one, others in graph().items() for other in others}


def allowed():
    """The layers that each may import, as docs/architecture.md has them."""
    text = " ".join((ROOT / "docs" / "architecture.md").read_text().split())
    (line,) = re.findall(r" (facts, system <-[^.]*)\. ", text)
    found = {name: {"facts", "system", "results"} for name in ("train", "measure")}
    below = set()
    for level in line.split(" <- "):
        names = set(level.split(", "))
        found |= dict.fromkeys(names, below)
        below = below | names
    return found


def test_imports_go_down():
    layers = allowed()
    wrong = []
    for one, other in sorted(edges()):
        here, there = layer_of(one), layer_of(other)
        if here and there and there not in layers[here] | {here, "train"}:
            wrong.append(f"{one} imports {other}")
    assert not wrong
    assert not [edge for edge in edges() if edge[1].endswith(".__main__")], "an entry point"


def test_the_linter_and_what_writes_jobs_do_not_need_each_other():
    """jobs.lint can be lifted out with facts, system and slurm; their owners meet in slurm.fits."""
    linter = "hpcdl.jobs.lint"
    out = {(one, other) for one, other in edges() if one.startswith(linter)}
    inside = (linter, "hpcdl.slurm", "hpcdl.system", "hpcdl.facts")
    assert {other for _, other in out if other != "hpcdl" and not other.startswith(inside)} == set()
    core = [
        one for one, other in edges() if one.startswith("hpcdl.jobs.") and other.startswith(linter)
    ]
    assert {one for one in core if not one.startswith(linter)} == set()


def test_nobody_imports_the_training_program_but_the_command_line_its_options():
    beside = ("train", "measure")
    into = [(one, other) for one, other in edges() if layer_of(other) in beside]
    assert {edge for edge in into if layer_of(edge[0]) not in beside} == {
        ("hpcdl.cli.train", "hpcdl.train.options"),
        ("hpcdl.cli.request", "hpcdl.train.options"),
        ("hpcdl.cli.check", "hpcdl.train.options"),
        ("hpcdl.workflows.expectation", "hpcdl.train.options"),
        ("hpcdl.cli.data", "hpcdl.train.data.data_options"),
    }


def reached_from(starts, graph):
    todo, reached = list(starts), set()
    while todo:
        reached.add(name := todo.pop())
        todo += graph[name] - reached
    return reached


def imports_tensorflow(nodes):
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return any(name.split(".")[0] in ("tensorflow", "keras") for name in names)


def test_what_the_login_node_imports_never_imports_tensorflow():
    """`hpcdl --help`, `job render` and `job lint` start quickly, and where it is not installed."""
    beside = ("train", "measure")
    reached = reached_from({name for name in MODULES if layer_of(name) not in beside}, graph())
    assert "hpcdl.train.options" in reached
    reached.remove("hpcdl.stack.probe")  # runs in a release, by its path
    assert not [name for name in reached if imports_tensorflow(list(ast.walk(trees()[name])))]


def test_nothing_imports_tensorflow_before_the_process_is_prepared_for_it():
    """Threads, GPUs and Keras are decided first (startup.py); later modules import it on top."""
    above = {}
    for name, tree in trees().items():
        froms = [one for one in tree.body if isinstance(one, ast.ImportFrom)]
        names = {f"{one.module}.{alias.name}" for one in froms for alias in one.names}
        above[name] = MODULES.keys() & (names | {one.module for one in froms})
    starts = {name for name in MODULES if name.startswith("hpcdl.measure.")}
    mains = {"hpcdl.train.__main__", "hpcdl.train.program", "hpcdl.train.data.commands"}
    reached = reached_from({*mains, *starts}, above)
    assert {"hpcdl.train.options", "hpcdl.train.startup"} <= reached
    early = {name for name in MODULES if imports_tensorflow(trees()[name].body)}
    assert not early & reached
    assert len(early) > 10


def test_no_modules_import_each_other_in_a_circle():
    try:
        TopologicalSorter(graph()).prepare()
    except CycleError as fault:
        pytest.fail(" <- ".join(fault.args[1]))


def test_every_layer_has_its_place():
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} == set(allowed())


def test_no_module_has_more_than_600_lines():
    assert [name for name, path in MODULES.items() if path.read_text().count("\n") > 600] == []


def test_names_of_modules_are_unique_within_a_layer():
    found = Counter((layer_of(name), name.rpartition(".")[2]) for name in MODULES)
    assert [one for one, count in found.items() if count > 1 and one[1] != "__main__"] == []


def test_no_template_compares_versions():
    for path in (ROOT / "templates").rglob("*.j2"):
        for tag in re.findall(r"{%-?\s*(?:if|elif)\s.*?%}", path.read_text()):
            assert not re.search(r"(version|release)[^%]*[<>]", tag), f"{path.name}: {tag}"


def test_a_class_name_has_one_meaning_in_the_whole_package():
    """`Plan`, `Point` and `Finding` once had four each: a reader of a diff could not tell which."""
    places, aliases = defaultdict(list), set()
    for name, path in MODULES.items():
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(name)
        targets = [one.targets[0] for one in tree.body if isinstance(one, ast.Assign)]
        aliases |= {one.id for one in targets if isinstance(one, ast.Name)}
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
    assert aliases & places.keys() == set(), "the name of a class is a type's of another module"
