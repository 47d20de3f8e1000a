"""Files from outside: whatever they hold, the answer is one clear error, at once."""

import os
from contextlib import suppress

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hpcdl import facts
from hpcdl.system.document import MAX_DEPTH, InvalidDocument, parse_document, read_document
from hpcdl.system.errors import BadInput


def faults_of(text):
    """What is noted or raised on parsing, as `line:column message`."""
    try:
        faults = parse_document(text, "f.yaml").faults
    except InvalidDocument as invalid:
        faults = list(invalid.faults)
    return [f"{fault.mark.line}:{fault.mark.column} {fault.message}" for fault in faults]


def rendered(text, name="f.yaml"):
    """What a person reads of its faults."""
    with pytest.raises(InvalidDocument) as caught:
        parse_document(text, name).raise_faults()
    return caught.value.render()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a: 1\n\tb: 2\n", "2:1 not YAML: found a tab character"),
        ("a: 1\na: 2\n", "2:1 duplicate key 'a'"),
        ("a: *x\n", "1:4 an alias ('x') is not supported"),
        ("a: !!binary eA==\n", "1:4 a tag ('tag:yaml.org,2002:binary') is not supported"),
        ("!!python/object/apply:os.system [x]\n", "1:1 a tag"),
        ("? [a]\n: b\n", "1:3 a key must be a plain word"),
        ("a: [1\n", "2:1 not YAML"),
        ("a: 'x\n", "not YAML"),
        ("a: b: c\n", "1:5 not YAML: mapping values are not allowed"),
        ("a: \x07\n", "1:4 not YAML: control characters are not allowed"),
        ("a: 1\nb: x\x00\n", "2:5 not YAML: control characters are not allowed"),
        ("%YAML 9.9\n---\na: 1\n", "not YAML: found incompatible YAML document"),
        *(
            (one * 200_000, f"nested deeper than {MAX_DEPTH} levels")
            for one in ("[", "{", "- ", "? ")
        ),
    ],
)
def test_what_we_do_not_take_is_named_with_its_place(text, fault):
    assert any(fault in one for one in faults_of(text)), faults_of(text)


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n...\n", "~", "null\n"])
def test_an_empty_file_is_refused_with_the_hint_of_who_reads_it(text):
    with pytest.raises(BadInput, match="is empty") as caught:
        parse_document(text, "f.yaml", "write something")
    assert caught.value.hint == "write something"


@pytest.mark.parametrize("text", ["a: 1\n\tb: 2\n", "\ta: 1\n", "a:\n\tb: 2\n", "a: 1\n\n\t- b\n"])
def test_a_tab_gets_the_advice_it_deserves(text):
    assert "indent with spaces, not tabs" in rendered(text)


def test_a_fault_is_shown_as_a_compiler_shows_it():
    document = parse_document("name: pi\nnodse: 4\n", "site.yaml")
    (_, (nodse, _)) = document.root.entries
    document.fault("unknown key 'nodse'", nodse, "did you mean 'nodes'?")
    with pytest.raises(InvalidDocument) as caught:
        document.raise_faults()
    assert (
        caught.value.render()
        == """\
error: site.yaml has 1 fault

  site.yaml:2:1: unknown key 'nodse'
   2 | nodse: 4
     | ^^^^^
     did you mean 'nodes'?"""
    )


def test_faults_come_in_the_order_of_the_file_all_at_once():
    shown = rendered("a: 1\nb: &x 2\na: 3\nb: *x\n")
    lines = [line for line in shown.splitlines() if line.startswith("  f.yaml:")]
    assert [int(line.split(":")[1]) for line in lines] == [2, 3, 4, 4]
    assert "first given in line 1" in shown


def test_the_caret_stands_below_its_place_in_a_long_line():
    lines = rendered("a: " + "x" * 500 + "\nb: {" + "c: 1, " * 80 + "c: 2}\n").splitlines()
    at = next(n for n, line in enumerate(lines) if line.lstrip().startswith("|"))
    assert lines[at - 1][lines[at].index("^")] == "c"
    assert max(map(len, lines)) < 130


@pytest.mark.parametrize("separator", ["\n", "\r\n", "\r", "\u2028", "\x85"])
def test_every_line_break_of_yaml_counts_as_one_line(separator):
    document = parse_document(separator.join(["a: 1", "b: 2", "b: 3", ""]), "f.yaml")
    assert (document.faults[0].mark.line, document.lines[2]) == (3, "b: 3")


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path):
    file = tmp_path / "f.yaml"
    file.write_bytes(b"\xef\xbb\xbfname: pi\r\n")
    assert read_document(file).root.get("name") is not None


@pytest.mark.parametrize("text", ["\u202eevil", "\x9b31m", "\u2066x", "\x85", "\ufeff"])
def test_characters_that_mislead_or_command_a_terminal_are_shown_as_escapes(text):
    shown = rendered(f'a: "{text}"\na: 2\n"{text}": [}}', "f\x1b[31m.yaml")
    assert not any(character in shown for character in text if character > "~")
    assert "\x1b" not in shown


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    ("said", "paths"),
    [
        ("is no regular file", ["pipe", "/dev/zero", "/dev/null"]),
        ("is a directory", [""]),
        ("is no regular file|cannot read", ["/dev/tty"]),
        ("cannot read", ["missing.yaml", "x" * 5000, "a\0b"]),
    ],
)
def test_what_is_no_file_of_text_is_said_at_once(tmp_path, said, paths):
    os.mkfifo(tmp_path / "pipe")
    for path in paths:
        with pytest.raises(BadInput, match=said):
            read_document(tmp_path / path)


def test_a_file_of_nothing_but_faults_stops_after_a_thousand():
    with pytest.raises(InvalidDocument) as caught:
        parse_document("a: 1\n" * 20_000, "f.yaml")
    assert len(caught.value.faults) == 1000
    assert caught.value.render().count("\n") < 150


YAML_LIKE = "ab:-[]{}&*!?|>'\"#% \n\t,~1"


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])) | st.text(alphabet=YAML_LIKE))
def test_no_text_whatsoever_gives_anything_but_bad_input(text):
    with suppress(BadInput):
        parse_document(text, "f.yaml").raise_faults()


@pytest.mark.parametrize("path", sorted(facts.path("gpus").parent.glob("*.yaml")), ids=str)
def test_no_key_of_the_facts_stands_twice(path):
    """PyYAML takes the last one, and nobody misses the other."""

    def twice(node):
        if isinstance(node, yaml.MappingNode):
            keys = [key.value for key, _ in node.value]
            yield from {key for key in keys if keys.count(key) > 1}
        for child in node.value if isinstance(node, yaml.CollectionNode) else ():
            for part in child if isinstance(child, tuple) else (child,):
                yield from twice(part)

    assert [*twice(yaml.compose(path.read_text(), yaml.CSafeLoader))] == []
