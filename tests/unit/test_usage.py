"""What jobs took of the machine: sums of accounting's lines."""

from dataclasses import replace

import pytest

from hpcdl.jobs.usage import as_text, by_month, shares, write_usage
from hpcdl.slurm.consumed import consumed_by
from hpcdl.system.errors import BadInput

LINES = [
    "1|ann|ai|p100|2026-01-31T23:00:00|3600|7200000|billing=8,cpu=8,gres/gpu=2,gres/gpu:p100=2|a|b",
    "1|ann|ai|p100|2026-02-01T01:00:00|1800||cpu=8,gres/gpu=2|a|b",
    "2|bob||cpu|2026-02-02T00:00:00|7200|18446744073709551614|cpu=4,mem=1G|c",
    "3|bob||cpu|Unknown|0|||never ran",
]
RECORDS = [consumed_by(line) for line in LINES]


def test_a_line_of_sacct_is_read_with_its_odd_values():
    first, _, third, fourth = RECORDS
    assert (first.gpu_hours, first.cpu_hours, first.energy_kwh) == (2.0, 8.0, 2.0)
    assert (first.name, first.month) == ("a|b", "2026-01")
    assert (third.cpu_hours, third.energy_kwh) == (8.0, None)
    assert (fourth.cpu_hours, fourth.gpu_hours) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (("user",), [("ann", 1, 3.0, 12.0), ("bob", 2, 0.0, 8.0)]),
        (("month",), [("2026-01", 1, 2.0, 8.0), ("2026-02", 2, 1.0, 12.0), ("Unknown", 1, 0, 0)]),
        (("module",), [("tf", 1, 3.0, 12.0), ("", 2, 0.0, 8.0)]),
    ],
)
def test_sums_by_key(keys, expected):
    found = shares(RECORDS, keys, lambda job: "tf" if job == 1 else "")
    assert [(*one.group, one.jobs, one.gpu_hours, one.cpu_hours) for one in found] == expected


def test_the_longest_bar_is_the_largest_share():
    lines = as_text(shares(RECORDS, ("user",), lambda _: ""), ("user",)).splitlines()
    assert lines[1].rstrip().endswith("#" * 40)
    assert "#" not in lines[2]
    assert as_text((), ("user",)) == "no job ran in that time"


def test_a_figure_has_a_bar_per_month_by_the_other_keys(tmp_path):
    keys = ("month", "user")
    found = shares(RECORDS, keys, lambda _: "")
    unit, groups = by_month(found, keys)
    assert unit == "GPU hours"
    assert groups["ann"] == {"2026-01": 2.0, "2026-02": 1.0}
    assert groups["bob"] == {"2026-02": 0.0, "Unknown": 0.0}
    found = (*found, replace(found[0], group=("2026-01", "_build")))
    write_usage(found, keys, tmp_path / "usage.svg")
    text = (tmp_path / "usage.svg").read_text()
    for word in ("2026-01", "GPU hours", "ann", " _build", "user"):
        assert f"<!-- {word} -->" in text
    write_usage((), ("month",), tmp_path / "none.svg")
    with pytest.raises(BadInput, match="a figure cannot be"):
        write_usage(found, keys, tmp_path / "usage.txt")


def test_many_groups_end_in_one(tmp_path):
    lines = [f"{n}|u{n}||p|2026-02-01T00:00:00|{3600 * n}||gres/gpu=1|$x$" for n in range(1, 16)]
    keys = ("month", "user", "name")
    found = shares(map(consumed_by, lines), keys, lambda _: "")
    _, groups = by_month(found, keys)
    first, *_, last = groups
    assert (first, last, len(groups)) == ("u15, $x$", "others", 10)
    assert groups["others"] == {"2026-02": sum(range(1, 7))}
    write_usage(found, keys, tmp_path / "x.png")
