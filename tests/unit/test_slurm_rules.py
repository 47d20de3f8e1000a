"""Slurm's rules by release: the data is whole, and spans mean what they say."""

import re

import pytest

from hpcdl.facts import PROOFS, path
from hpcdl.slurm.rules import SEVERITIES, SlurmRelease, all_rules, known_releases, mpi_plugins, rule
from hpcdl.system.errors import BadInput


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("22.05", "22.05"),
        ("22.05.8", "22.05.8"),
        (" 20.11.4\n", "20.11.4"),
        ("slurm 24.11.5", "24.11.5"),
        ("slurm-wlm 22.05.8", "22.05.8"),
        ("26.05.0rc1", "26.05.0"),
        ("22.05.8-4+deb12u2", "22.05.8"),
    ],
)
def test_a_release_is_read_as_people_and_sinfo_write_it(text, shown):
    assert str(SlurmRelease.parse(text)) == shown


@pytest.mark.parametrize("text", ["", "22", "22.5", "v22.05", "two", "\uff12\uff12.05", "22.05\0"])
def test_what_is_no_release_is_refused_by_name(text):
    with pytest.raises(BadInput, match="is no Slurm release"):
        SlurmRelease.parse(text)


def test_point_releases_compare_as_numbers_and_a_series_is_its_newest():
    order = ["20.11.2", "20.11.10", "20.11", "21.08.0", "21.08.5", "21.08", "26.05"]
    assert sorted(map(SlurmRelease.parse, reversed(order))) == [
        SlurmRelease.parse(text) for text in order
    ]


@pytest.mark.parametrize(
    ("rule_id", "holds", "holds_not"),
    [
        ("cpus-per-task-lost", ["22.05", "22.05.0", "23.02.8"], ["21.08", "23.11", "23.11.0"]),
        ("exact-implied-once", ["21.08.5"], ["21.08.4", "21.08", "21.08.6"]),
        ("steps-exclusive", ["20.11.0", "20.11.2"], ["20.11.3", "20.11"]),
        ("gpu-flag-pair", ["26.05", "26.05.0", "26.11"], ["25.11", "25.11.8"]),
        ("gpu-flag-twice", ["20.11", "25.11"], ["26.05", "26.05.0"]),
        ("ntasks-per-gpu-pends", ["25.05.0"], ["25.05.1", "24.11"]),
        ("kill-on-bad-exit", ["20.11", "26.05"], []),
    ],
)
def test_a_rule_holds_from_since_up_to_but_without_until(rule_id, holds, holds_not):
    assert [
        text for text in holds + holds_not if rule(rule_id).holds(SlurmRelease.parse(text))
    ] == holds


def test_every_rule_is_whole_and_has_its_source():
    for one in all_rules():
        assert re.fullmatch(r"[a-z][a-z0-9-]+", one.id)
        assert one.severity in SEVERITIES
        assert one.proof in PROOFS
        assert min(map(len, (one.title, one.consequence, one.fix, one.source))) > 5, one.id
        assert not one.title.endswith("."), one.id
        since, until = one.span
        assert since is None or until is None or since < until, one.id


def test_ids_are_unique_and_edges_lie_within_the_known_releases():
    assert len({one.id for one in all_rules()}) == len(all_rules())
    with pytest.raises(BadInput) as caught:
        rule("gpu-flag-pear")
    assert "gpu-flag-pair" in caught.value.hint
    first, *_, last = known_releases()
    edges = [edge for one in all_rules() for edge in one.span if edge]
    assert all(
        SlurmRelease.parse(f"{first}.0") <= edge <= SlurmRelease.parse(last) for edge in edges
    )


def test_pmix_plugins_come_and_go_with_releases():
    assert "pmix_v1" in mpi_plugins("21.08")
    assert "pmix_v1" not in mpi_plugins("22.05")
    assert {"none", "pmi2", "pmix", "pmix_v5"} <= set(mpi_plugins("24.11"))


def test_no_text_ends_where_yaml_sees_a_comment():
    text = path("slurm_rules").read_text()
    lines = re.findall(r"^\s*(?:title|consequence|fix|source):.*", text, re.MULTILINE)
    assert len(lines) > 100
    assert [line for line in lines if re.match(r"\s*\w+: [^\"'#{\[]*\w\s+#", line)] == []
