"""What jobs took of the machine: sums of accounting's lines."""

import pytest

from hpcdl.jobs.usage import as_text, shares
from hpcdl.slurm.consumed import consumed_by

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
