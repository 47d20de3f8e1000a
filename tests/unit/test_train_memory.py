"""The search for the largest batch that fits: pure, and through processes that die."""

import time
from types import SimpleNamespace

import pytest

from hpcdl.measure.find_batch import Bounds, search
from hpcdl.train import diagnostics
from hpcdl.train.diagnostics import explain, is_out_of_memory, out_of_memory


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


def test_the_error_names_the_way_to_measure_what_fits() -> None:
    error = out_of_memory("Graph error:\n  OOM when allocating\nmore", 96)
    assert error.details == ("OOM when allocating",)
    assert error.exit_code == 3
    assert "--find-batch" in (error.hint or "")


class Exhausted(Exception):
    """TensorFlow's error for memory and for disks."""


TF = SimpleNamespace(errors=SimpleNamespace(ResourceExhaustedError=Exhausted))


def test_a_full_disk_is_not_a_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnostics, "tf", TF)
    full = Exhausted("/job/events; No space left on device")
    assert is_out_of_memory(Exhausted("OOM when allocating tensor"))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(full)
    error = explain(full, "there is no checkpoint yet")
    assert error is not None
    assert (error.message, error.exit_code) == ("no space left on the file system", 3)
    assert "there is no checkpoint yet" in (error.hint or "")
    assert explain(ValueError("ours"), "") is None
