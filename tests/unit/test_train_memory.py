"""The search for the largest batch that fits: pure, and through processes that die."""

import time
from types import SimpleNamespace

import pytest

from hpcdl.train.diagnostics import explain, is_out_of_memory, out_of_memory
from hpcdl.train.memory import Bounds, search


def found(limit: int, failed: int, unit: int = 1) -> tuple[Bounds, list[int]]:
    bounds = Bounds(0, failed, unit, time.monotonic() + 60)
    tried: list[int] = []

    def fits(batch: int) -> bool:
        tried.append(batch)
        return batch <= limit

    search(bounds, fits)
    return bounds, tried


@pytest.mark.parametrize("unit", [1, 3])
@pytest.mark.parametrize("limit", [*range(40), 100, 701, 2999])
def test_the_largest_that_fits_is_found_within_an_eighth(limit: int, unit: int) -> None:
    bounds, tried = found(limit, 3000, unit)
    assert bounds.low <= limit < bounds.high
    assert bounds.low % unit == 0
    assert bounds.high - bounds.low <= max(unit, bounds.low // 8)
    assert len(tried) == len(set(tried)) <= 14
    assert sum(batch > limit for batch in tried) <= 9, "each may end a process"


def test_no_trial_begins_after_the_time() -> None:
    bounds = Bounds(0, 64, 1, time.monotonic() - 1)
    search(bounds, lambda _: pytest.fail("tried"))
    assert (bounds.low, bounds.high) == (0, 64)


def test_the_error_names_what_fits_and_the_way_to_the_same_batch() -> None:
    why = "Graph error:\n  OOM when allocating\nmore"
    error = out_of_memory(why, 96, Bounds(40, 48, 1, 0.0), 12.3)
    assert error.details == (
        "OOM when allocating", "the largest that fits: 40 per rank (48 does not); tried for 12 s",
    )  # fmt: skip
    assert error.hint == (
        "--batch-per-rank 38 leaves headroom, or --accumulate 3 for the same batch in 3 parts"
    )
    assert error.exit_code == 3


@pytest.mark.parametrize(("fits", "unit"), [(1, 1), (12, 12), (40, 4), (700, 7)])
def test_the_advised_batch_divides_into_the_parts_that_the_run_has(fits: int, unit: int) -> None:
    error = out_of_memory("", 960, Bounds(fits, 2 * fits, unit, 0.0), 1.0)
    advised = int((error.hint or "").split()[1])
    assert advised % unit == 0
    assert fits * 7 // 8 <= advised <= fits


def test_more_parts_are_counted_from_the_part_that_fits() -> None:
    error = out_of_memory("", 96, Bounds(40, 48, 2, 0.0), 1.0)
    assert error.hint == (
        "--batch-per-rank 38 leaves headroom, or --accumulate 6 for the same batch in 6 parts"
    ), "38 went through as two parts of 19; 96 has parts of 16"


@pytest.mark.parametrize(
    ("high", "said"), [(1, "not even 1 per rank fits"), (96, "no other batch could be tried")]
)
def test_where_nothing_fits_it_says_so(high: int, said: str) -> None:
    error = out_of_memory("", 96, Bounds(0, high, 1, 0.0), 1.0)
    assert said in error.details[1]
    assert "--image-size" in error.hint


class Exhausted(Exception):
    """TensorFlow's error for memory and for disks."""


TF = SimpleNamespace(errors=SimpleNamespace(ResourceExhaustedError=Exhausted))


def test_a_full_disk_is_not_a_lack_of_memory() -> None:
    full = Exhausted("/job/events; No space left on device")
    assert is_out_of_memory(TF, Exhausted("OOM when allocating tensor"))
    assert is_out_of_memory(TF, MemoryError())
    assert not is_out_of_memory(TF, full)
    error = explain(full)
    assert error is not None
    assert (error.message, error.exit_code) == ("no space left on the file system", 3)
    assert explain(ValueError("ours")) is None
