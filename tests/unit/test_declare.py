"""One declaration of a datum serves the command line, files and Python alike."""

import argparse
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdl.jobs.spec import JobSpec
from hpcdl.predict.request import ScalingRequest
from hpcdl.site import Site
from hpcdl.system import declare
from hpcdl.system.declare import COUNT, option
from hpcdl.system.document import parse_document
from hpcdl.system.errors import BadInput
from hpcdl.train.options import TrainOptions


def half(text: str) -> int:
    """Half of an even number."""
    if int(text) % 2:
        raise BadInput(f"is {text}, which is odd", hint="give an even number")
    return int(text) // 2


@dataclass(frozen=True)
class Disk:
    """A disk."""

    path: str = option("where it is", type="string", pattern="^/")
    half_gb: int = option(
        "its size", 1, key="gb", type="string", read=half, write=lambda n: str(2 * n)
    )


@dataclass(frozen=True)
class Wish:
    """A wish."""

    gpus: int | None = option("GPUs in all, at 100 %", None, sweep=True, example=8, **COUNT)
    share: float = option("a part", 0.5, type="number", minimum=0, maximum=1)
    name: str = option("its name", "x", type="string", pattern="^[a-z]{1,9}$", section="names")
    fast: bool = option("no check", False, type="boolean")
    preflight: bool = option(
        "a check", True, type="boolean", flag=None, constants={"--no-preflight": (False, "skip it")}
    )
    even: int = option(
        "an even number",
        1,
        type="string",
        pattern=r"^\d{1,9}$",
        read=half,
        write=lambda n: str(2 * n),
    )
    modules: tuple[str, ...] | None = option(
        "modules",
        None,
        flag="--module",
        type="array",
        items={"type": "string"},
        constants={"--no-module": ([], "none")},
    )
    env: Mapping[str, str] = option(
        "variables",
        {},
        type="object",
        metavar="NAME=VALUE",
        shapes=False,
        propertyNames={"pattern": "^[A-Z]+$"},
        additionalProperties={"type": "string"},
    )
    disk: Disk | None = option("a disk", None, of=Disk)
    disks: tuple[Disk, ...] = option("disks", (), type="array", items=Disk)
    named: Mapping[str, Disk] = option(
        "disks by name", {}, type="object", additionalProperties=Disk
    )
    hidden: str = "in no file"


def parsed(*argv):
    parser = argparse.ArgumentParser(exit_on_error=False)
    declare.configure(parser, Wish)
    return declare.build(Wish, declare.typed(Wish, parser.parse_args(argv)))


def in_file(text):
    return declare.build(Wish, declare.read_file(Wish, parse_document(text, "wish.yaml")))


DISKS = st.builds(Disk, path=st.sampled_from(["/", "/a b"]), half_gb=st.integers(0, 999))
WISHES = st.builds(
    Wish,
    gpus=st.none() | st.integers(1, 1_000_000),
    share=st.floats(0, 1).map(lambda x: round(x, 6)),
    name=st.from_regex("[a-z]{1,9}", fullmatch=True),
    fast=st.booleans(),
    preflight=st.booleans(),
    even=st.integers(0, 999),
    modules=st.none() | st.lists(st.sampled_from(["a/1", "b"])).map(tuple),
    env=st.dictionaries(st.sampled_from(["A", "B"]), st.sampled_from(["", "a=b", "~", "1"])),
)


@given(WISHES, st.none() | DISKS, st.lists(DISKS, max_size=2), st.dictionaries(st.just("d"), DISKS))
def test_a_value_goes_to_a_file_and_back(wish, disk, disks, named):
    import yaml

    wish = replace(wish, disk=disk, disks=tuple(disks), named=named)
    written = declare.written(wish)
    jsonschema.validate(written, declare.schema_of(Wish))
    assert in_file(yaml.safe_dump(written)) == wish if written else wish == Wish()


def test_what_read_refuses_is_named_in_every_door():
    with pytest.raises(BadInput, match="--even is 3, which is odd"):
        parsed("--even=3")
    with pytest.raises(BadInput) as fault:
        in_file("even: 3\ngpus: 0\ndisks:\n- {path: /, gb: 5}\nnamed: {a: {path: x}}\n")
    told = fault.value.in_one_line()
    assert "4 faults" in told
    assert "wish.yaml:4:17: 'gb' is 5, which is odd" in told


def test_all_faults_of_a_command_line_come_at_once():
    with pytest.raises(BadInput) as fault:
        parsed("--gpus=0", "--share=x", "--module=a", "--no-module", "--env=A")
    assert len(fault.value.details) == 4


@pytest.mark.parametrize(
    "wish", [Wish(gpus=True), Wish(name=5), Wish(modules="ab"), Wish(gpus="4")]
)
def test_values_of_other_types_are_refused_from_python(wish):
    with pytest.raises(BadInput, match="must be"):
        declare.check(wish)


def test_a_file_must_name_what_has_no_default_and_its_version():
    with pytest.raises(BadInput) as fault:
        declare.read_file(Wish, parse_document("disk: {gb: 2}\n", "w"), version=1)
    assert "lacks the key 'path'" in fault.value.in_one_line()
    assert "lacks the key 'schema'" in fault.value.in_one_line()


def test_values_that_differ_in_shapes_have_other_shapes():
    assert declare.shape(Wish(gpus=1)) != declare.shape(Wish(gpus=2))
    assert declare.shape(Wish(env={"A": "1"})) == declare.shape(Wish())


def test_the_schema_is_valid_and_says_all(capsys):
    schema = declare.schema_of(Wish, version=1)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["required"] == ["schema"]
    assert schema["properties"]["disks"]["items"]["required"] == ["path"]
    assert schema["properties"]["gpus"]["examples"] == [8]
    assert schema["properties"]["even"]["default"] == "2"
    with pytest.raises(SystemExit):
        parsed("--help")
    assert "at 100 %" in capsys.readouterr().out


def test_declaring_needs_no_yaml():
    code = "import sys, hpcdl.system.declare; assert 'yaml' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def words_of(schema):
    """The words of a schema and of those in it."""
    inner = [*schema.get("properties", {}).values(), schema.get("items")]
    parts = [*inner, schema.get("additionalProperties"), schema.get("propertyNames")]
    return set(schema).union(*(words_of(one) for one in parts if isinstance(one, dict)))


@pytest.mark.parametrize("cls", [JobSpec, Site, TrainOptions, ScalingRequest])
def test_no_part_of_a_declaration_is_misspelt(cls):
    """What is no part is a word of the schema, which takes any."""
    known = (
        "type enum pattern patternErrorMessage minimum maximum maxLength format examples default"
    )
    known += " items minItems minProperties properties propertyNames additionalProperties"
    known += " default required"
    assert words_of(declare.schema_of(cls)) <= {*known.split(), "description", "exclusiveMinimum"}
