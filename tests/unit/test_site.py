"""site.yaml: a valid file becomes one frozen value, any other one error with all its faults."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdl.cli.site import as_data, as_text
from hpcdl.site import find_site_file, load, load_site
from hpcdl.slurm.options import slurm_minutes
from hpcdl.system.errors import BadInput
from hpcdl.system.resources import folder
from tests.make.sites import refused_site

SITE = """\
schema: 1
name: pi
slurm: {version: "22.05.8"}
paths: {prefix: /apps, work: /work/$USER, datasets: ~/data}
partitions:
  p100:
    nodes: 2
    hostlist: p100-[01-02]
    gpu: {model: p100-pcie, per_node: 4}
    sockets: 2
    cores_per_socket: 14
    threads_per_core: 2
    memory_gb: 250
    stack: tf
  cpu: {nodes: 3, sockets: 1, cores_per_socket: 8, memory_gb: 60}
stacks:
  tf: {backend: wheels, partitions: [p100]}
"""
PUT = st.text(alphabet="a1 \n-:{}[]'\"#~&*", max_size=6)


@pytest.fixture
def site_file(tmp_path):
    file = tmp_path / "site.yaml"
    file.write_text(SITE)
    return file


def refused(file, *changes):
    return refused_site(file, SITE, *changes)


def test_a_small_file_is_filled_in_with_defaults(site_file):
    site = load_site(site_file)
    part = site.partition("p100")
    assert (part.cores, part.cpus, part.gpus_per_node) == (28, 56, 4)
    assert (part.gpu.model, part.gpu.gres_type, part.gpu.compute) == ("P100-PCIe", "p100", "6.0")
    assert (part.max_time, part.max_minutes) == ("1-00:00:00", 1440)
    assert (site.slurm.gpu_request, site.slurm.mpi) == ("gpus-per-node", "pmix")
    assert site.default_partition == "p100"
    assert site.paths.work.name != "$USER"
    assert site.paths.datasets.is_absolute()
    assert site.partition("cpu").gpus_per_node == 0


@pytest.mark.parametrize("path", sorted((folder("templates") / "sites").glob("*.yaml")), ids=str)
def test_every_shipped_site_is_valid(path):
    site = load_site(path)
    assert site.name in as_text(site)
    assert as_data(site)["partitions"].keys() == dict(site.partitions).keys()


def test_every_fault_is_shown_at_once_in_the_order_of_the_file(site_file):
    said = refused(
        site_file,
        ("nodes: 2", "nodse: 2"),
        ("model: p100-pcie", "model: p1000"),
        ("sockets: 2", "sockets: -2"),
        ("memory_gb: 250", "memory_gb: lots"),
        ("stack: tf", "stack: tff"),
        ("[p100]", "[p100, q100]"),
    )
    expected = [
        "has 7 faults",
        "unknown key 'nodse'",
        "did you mean 'nodes'?",
        "'p100' lacks the key 'nodes'",
        "unknown GPU model 'p1000'",
        "did you mean 'P100'?",
        "'sockets' is -2, below its minimum of 1",
        "'memory_gb' must be a number, not 'lots'",
        "there is no stack 'tff'",
        "did you mean 'tf'?",
        "there is no partition 'q100'",
        "did you mean 'p100'?",
    ]
    places = [said.find(words) for words in expected]
    assert -1 not in places, said
    assert places == sorted(places), said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("schema: 1\n", ""), "the file lacks the key 'schema'"),
        (("p100-pcie", "Tesla T4"), "did you mean 'T4'? Or describe it"),
        (("p100-pcie", "nobody"), "more. Or describe it"),
        (("backend: wheels", "backend: wheels, pins: {cuda: latest}"), "such as 2.18"),
        (("name: pi", "name: my pi"), "'name' is 'my pi', which does not match the format"),
        (("name: pi", 'name: "pi\\n#SBATCH --x"'), "which does not match the format"),
        (('"22.05.8"', "new"), "'version' is 'new'"),
        (("/apps", "/a:b"), "'prefix' has a ':'"),
        (("/apps", "apps"), "start it with / or ~"),
        (("/apps", "$APPS/x"), "are replaced here, no other variable"),
        (("/apps", "~nosuchuser/x"), "which is not absolute"),
        (("/apps", '"/a\\nb"'), "'prefix' is '/a"),
        (("nodes: 2", "nodes: 1000000"), "'nodes' is 1000000, above its maximum"),
        (("nodes: 2", "nodes: 3"), "'hostlist' names 2 nodes, but 'nodes' is 3"),
        (("[01-02]", "[02-01]"), "runs backwards"),
        (("[01-02]", "[01-99999999]"), "names more than 100,000 nodes"),
        (("[01-02]", "[01-"), "no list of nodes"),
        (("    stack: tf", "    max_time: '0'"), "'max_time' is '0'"),
        (("    stack: tf", "    max_time: 1-2-3"), "'max_time' is '1-2-3'"),
        (("    stack: tf", "    max_time: ٢"), "which does not match the format"),
        (("    stack: tf", "    scratch: {path: tmp}"), "start it with / or a variable"),
        (("    stack: tf", "    scratch: {path: ''}"), "start it with / or a variable"),
        (("    stack: tf", "    scratch: {path: $(id)}"), "but no other bash syntax"),
        (("    stack: tf", "    scratch: {path: '/t/${USER'}"), "but no other bash syntax"),
        (("    stack: tf", "    scratch: {path: '/t/${!x}'}"), "but no other bash syntax"),
        (("/apps", '""'), "start it with / or ~"),
        (("    stack: tf", "    environment: {'A B': x}"), "'A B' is no valid name"),
        (("backend: wheels", "backend: conda"), "not wheels, spack, spack-wheels or venv"),
        (("stacks:", "stacks:\n  store: {backend: spack}"), "'store' is no valid name"),
        (("60}", "60, stack: tf}"), "the stack 'tf' does not serve 'cpu'"),
        (("22.05.8", "19.05.2"), "Slurm 19.05.2 is older than the releases that hpcdl supports"),
        (("22.05.8", "9.05"), "'9.05' is no Slurm release"),
        ((SITE[SITE.index("partitions:") :], "partitions: {}\n"), "at least one entry"),
    ],
)
def test_each_kind_of_fault_is_named(site_file, change, said):
    assert said in refused(site_file, change)


@pytest.mark.parametrize(
    "keys", ["account: proj@gpu", "account: _lab", "qos: 'a,b'", "max_time: UNLIMITED"]
)
def test_names_and_times_are_taken_as_slurm_takes_them(site_file, keys):
    site_file.write_text(SITE.replace("    stack: tf", f"    stack: tf\n    {keys}"))
    assert load_site(site_file)


@given(st.integers(0, len(SITE)), st.integers(0, 40), PUT)
def test_a_damaged_file_is_valid_or_refused(start, length, put):
    file = Path(os.environ["HPCDL_HOME"]) / "damaged.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(SITE[:start] + put + SITE[start + length :])
    try:
        load_site(file)
    except BadInput as fault:
        assert fault.render()  # noqa: PT017


def test_the_option_goes_before_the_environment(site_file, monkeypatch):
    monkeypatch.setenv("HPCDL_SITE", "/nosuch.yaml")
    assert find_site_file(str(site_file)) == site_file
    with pytest.raises(BadInput, match="there is no site file /nosuch"):
        find_site_file()


def test_a_shipped_site_is_found_by_its_name_where_a_folder_has_it_too(tmp_path, monkeypatch):
    with pytest.raises(BadInput) as caught:
        find_site_file("embeded")
    assert caught.value.hint == "did you mean 'embedded'?"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "embedded").mkdir()
    (tmp_path / "other").mkdir()
    assert find_site_file("embedded").name == "embedded.yaml"
    with pytest.raises(BadInput, match="is a directory"):
        load_site(find_site_file("./other"))


def test_a_shipped_site_file_is_printed_whole(hpcdl):
    assert hpcdl("site", "show", "--site", "pi", "--yaml").out == find_site_file("pi").read_text()


def test_the_installed_site_is_found_last_and_without_one_it_is_said_how_to_get_one():
    with pytest.raises(BadInput, match="no site file is named") as caught:
        find_site_file()
    assert "hpcdl site init" in caught.value.hint
    home = Path(os.environ["HPCDL_HOME"])
    home.mkdir(parents=True)
    (home / "site.yaml").write_text(SITE)
    assert find_site_file() == home / "site.yaml"


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("30", 30),
        ("30:00", 30),
        ("30:01", 31),
        ("1:30:00", 90),
        ("24:00:00", 1440),
        ("1-00:00:00", 1440),
        ("2-12", 3600),
        ("1-02:30", 1590),
        ("unlimited", 527040),
        ("UNLIMITED", 527040),
        ("0:30", 1),
    ],
)
def test_slurms_times_are_read_as_slurm_reads_them(text, minutes):
    assert slurm_minutes(text) == minutes


@pytest.mark.parametrize(
    ("spack", "padding"),
    [
        ("{}", 128),
        ("{store: /apps/spack}", 0),
        ("{store: /apps/spack, padded_length: 256}", 256),
        ("{padded_length: 0}", 0),
    ],
)
def test_the_padding_of_a_tree_that_is_there_is_its_own(tmp_path, spack, padding):
    """The schema's default once stood before what the documentation says of `store`."""
    (tmp_path / "site.yaml").write_text(f"{SITE}\nspack: {spack}\n")
    assert load_site(tmp_path / "site.yaml").spack.padded_length == padding


def test_every_file_that_decides_what_a_site_file_means_is_there():
    """One that is not would make each command read and check the file anew, and nobody notice."""
    assert [path.name for path in load.DECIDING if not path.is_file()] == []
