"""What drift detection promises on series of many kinds: a small share of its benchmark."""

import random
from datetime import timedelta

import pytest

from hpcdl.regress.changes import closing_strength, detect, evidence_now
from hpcdl.regress.drift import BUDGET, may_be_worse, runs_of, worse
from tools.bench.bench_drift import sure_nights, told
from tools.bench.drift_series import CHANGE_AT, KINDS, START, drop, ramp, series

SEED = "not the benchmark's"


@pytest.mark.parametrize("kind", KINDS)
def test_a_drop_is_seen_and_healthy_series_are_left_alone(kind):
    """Of 1,800 healthy nights a detector of 1 in 1,000 may speak of two, not of seven."""
    rng = random.Random(f"{SEED} {kind}")
    assert sum(len(told(runs_of(series(kind, rng, 3)).nights)) for _ in range(12)) <= 6
    seen = [told(runs_of(series(kind, rng, 3, drop(0.05))).nights) for _ in range(10)]
    assert sum(any(night > CHANGE_AT // 2 for night in nights) for nights in seen) >= 9


@pytest.mark.parametrize(
    ("kind", "runs", "size", "nights", "seen", "of"),
    [
        ("normal", 3, 0.05, 3, 38, 40),
        # Two nights farther than any before are no chance, also where nights depend.
        ("AR .5", 3, 0.1, 2, 38, 40),
        ("one-sided", 3, 0.1, 2, 18, 20),
    ],
)
def test_a_drop_is_seen_within_a_few_nights(kind, runs, size, nights, seen, of):
    rng = random.Random(f"{SEED} within {kind}")
    each = [
        told(runs_of(series(kind, rng, runs, drop(size), CHANGE_AT + nights)).nights)
        for _ in range(of)
    ]
    assert sum(any(night >= CHANGE_AT for night in one) for one in each) >= seen


def test_a_site_of_100_healthy_series_is_hardly_ever_closed():
    """One night in 100 is the budget: of 10 series as noisy as those of a site, 1.5 at most."""
    rng, enough = random.Random(SEED), closing_strength(BUDGET, 100)
    closed = [sure_nights(runs_of(series(kind, rng, 1)).nights, enough) for kind in KINDS]
    assert sum(map(len, closed)) <= 3


def test_a_larger_site_asks_for_more_evidence_and_gets_it_from_more_nights():
    one, some, many = (closing_strength(BUDGET, series) for series in (1, 100, 5000))
    assert one < some < many
    nights = series("normal", random.Random(3), 1, drop(0.05), CHANGE_AT + 30)
    known = (
        worse([n for n in nights if (n.date - START).days < CHANGE_AT + since], 5000)
        for since in (3, 30)
    )
    assert [bool(change and change.sure) for change in known] == [False, True]


@pytest.mark.parametrize("size", [0.06, 0.2])
def test_one_event_is_one_change(size):
    for seed in range(15):
        nights = series("normal", random.Random(seed), 3, drop(size))
        found = [one for one in detect(runs_of(nights).nights) if one.seen >= CHANGE_AT]
        assert [one.rise for one in found if not one.rise][:1] == [False]
        assert len([one for one in found if one.began <= CHANGE_AT + 2]) == 1


def test_a_loss_that_goes_on_is_one_change_of_the_size_it_has_now():
    right = 0
    for seed in range(15):
        change = worse(series("normal", random.Random(seed), 3, ramp(0.002), CHANGE_AT + 50))
        right += change is not None and abs(change.change + 0.1) <= 0.015
    assert right >= 13


@pytest.mark.parametrize(("later", "suspects"), [(0, ("release r1 -> r2",)), (1, ()), (2, ())])
def test_a_release_that_came_with_a_drop_is_blamed_and_one_after_it_is_not(later, suspects):
    named = 0
    for seed in range(20):
        nights = with_release(series("normal", random.Random(seed), 3, drop(0.1)), later)
        named += worse(nights).suspects == suspects
    assert named >= (20 if later else 18)


def test_the_evidence_grows_while_a_drop_lasts_and_fades_when_it_was_chance():
    nights = runs_of(series("normal", random.Random(5), 1, drop(0.05))).nights
    (found,) = [one for one in detect(nights) if one.seen >= CHANGE_AT]
    early = type(nights)(nights.values[: found.seen + 1], 0.0)
    assert evidence_now(found, nights) > evidence_now(found, early) + 2
    healed = [*early.values, *nights.values[:40]]
    assert evidence_now(found, type(nights)(healed, 0.0)) < evidence_now(found, early)


@pytest.mark.parametrize("kind", KINDS)
def test_the_gates_quick_look_passes_over_no_change_for_the_worse(kind):
    """What series on changing nodes, and an earlier rise, must not hide."""
    rng, seen = random.Random(f"{SEED} {kind}"), 0
    for size, at in [(0.05, 60), (0.05, 90), (0.06, 117)] * 2:
        nights = series(kind, rng, 1, drop(size, at), 120)
        if worse(nights):
            seen += 1
            assert may_be_worse([one.value for one in nights], [one.node for one in nights])
    assert seen


def up_then_down(night):
    """A level 10 % higher from night 60 on, and 5 % lower from night 90 on."""
    return (1.1 if night >= 60 else 1.0) * (0.95 if night >= 90 else 1.0)


def with_release(nights, later):
    """The same nights, with a release so many nights after their change."""
    at = START + timedelta(days=CHANGE_AT + later)
    return [night._replace(release="r2" if night.date >= at else "r1") for night in nights]


def test_a_drop_after_a_rise_closes_the_gate():
    """The level before the rise is no yardstick: with it, none of these closed within 28 nights."""
    enough, closed = closing_strength(BUDGET, 40), 0
    for seed in range(10):
        rng = random.Random(f"{SEED} after a rise {seed}")
        nights = runs_of(series("normal", rng, 1, up_then_down, 118)).nights
        closed += 117 in sure_nights(nights, enough)
    assert closed == 10
