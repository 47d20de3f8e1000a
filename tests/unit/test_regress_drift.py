"""What counts as a change of a nightly series, and what does not."""

import random
from datetime import date, timedelta

import pytest

from hpcdl.regress.changes import detect as detect_nights
from hpcdl.regress.drift import is_doubtful, without_weekends, worse
from hpcdl.regress.estimate import Nightly, nightly
from hpcdl.regress.identity import Night
from hpcdl.regress.nodes import slow_nodes

START = date(2026, 1, 5)


def noisy(count, seed=1, spread=0.01, level=1000.0):
    rng = random.Random(seed)
    return [level * (1 + spread * rng.gauss(0, 1)) for _ in range(count)]


def stepped(count, factor, since=60, until=1000, seed=1, spread=0.01):
    """Such nights, times a factor from one of them until another."""
    values = noisy(count, seed, spread)
    return [v * (factor if since <= n < until else 1) for n, v in enumerate(values)]


def nights(values, **columns):
    return [Night(START + timedelta(days=n), v, **columns) for n, v in enumerate(values)]


def detect(values, weekdays=None):
    nights = Nightly(values, 0.0)
    return detect_nights(without_weekends(nights, weekdays) if weekdays else nights)


def drops(values):
    return [change for change in detect(values) if not change.rise]


@pytest.mark.parametrize("seed", range(20))
def test_a_drop_of_20_percent_is_seen_the_same_night(seed):
    values = [*noisy(60, seed), 800.0]
    assert (60, 60) in [(one.began, one.seen) for one in drops(values)]


@pytest.mark.parametrize(
    ("size", "told"), [(0.6, [(False, 60, 60, 61)]), (0.88, []), (0.92, []), (1.1, []), (1.5, [])]
)
def test_a_single_spike_fails_its_night_at_most_and_is_no_lasting_change(size, told):
    values = stepped(90, size, until=61)
    assert [(c.rise, c.began, c.seen, c.ended) for c in detect(values)] == told
    assert worse(nights(values)) is None


def test_a_drop_that_was_over_after_a_few_nights_has_ended_and_is_no_alarm():
    values = stepped(75, 0.93, until=63)
    (drop,) = detect(values)
    assert drop.ended <= 64
    assert worse(nights(values)) is None
    assert worse(nights(values[:62])).sure


def test_an_older_drop_that_holds_outlives_a_later_one_that_ended():
    values = [v * (0.93 if 90 <= n < 93 else 1) for n, v in enumerate(stepped(110, 0.9))]
    assert [change.ended is None for change in detect(values)] == [True, False]
    assert worse(nights(values)).began == START + timedelta(days=60)


@pytest.mark.parametrize("count", [6, 10, 14, 20])
def test_a_breakage_is_seen_in_a_history_of_a_few_nights(count):
    for seed in range(20):
        values = noisy(count, seed, 0.02)
        assert detect(values) == []
        assert [one.seen for one in drops([*values[:-1], values[-1] * 0.6])] == [count - 1]


def test_the_runs_of_a_night_are_averaged_but_for_one_gone_astray():
    runs = [[99.0, 100.0, 104.0], [98.0, 101.0, 102.0], [100.0, 101.0, 10.0], [7.0], [1.0, 3.0]]
    means = nightly(runs).values
    assert means[0] == pytest.approx(101.0, abs=0.7)
    assert 97 < means[2] < 101
    assert means[3:] == [7.0, 2.0]


@pytest.mark.parametrize("values", [[5.0] * 200, [0.0] * 50, []])
def test_constants_have_no_change(values):
    assert detect(values) == []


def test_times_of_nothing_are_in_no_doubt_and_no_change():
    assert not is_doubtful(nights([0.0] * 3), lower=True)
    assert worse(nights([0.0] * 30), lower=True) is None


def test_weekends_that_are_slower_every_week_are_no_change():
    values = [v * (0.96 if night % 7 >= 5 else 1) for night, v in enumerate(noisy(140))]
    assert detect(values, [night % 7 for night in range(140)]) == []


def test_a_rise_is_told_but_is_no_alarm_and_falling_back_is():
    values = stepped(100, 1.1, 40, 80)
    assert [change.rise for change in detect(values)] == [True, False]
    assert worse(nights(values[:80])) is None
    assert worse(nights(values)).sure


def test_nothing_looks_ahead():
    values = stepped(90, 0.9)
    whole = detect(values)
    for end in range(len(values)):
        known = [one for one in whole if one.seen < end]
        then = [one._replace(ended=None) if (one.ended or 0) >= end else one for one in known]
        assert detect(values[:end]) == then


@pytest.mark.parametrize("what", ["release", "driver", "node"])
def test_what_changed_with_it_is_named_and_dates_it_though_noise_hides_the_night(what):
    named = 0
    for seed in range(20):
        each = nights(stepped(70, 0.93, seed=seed, spread=0.02), **{what: "old"})
        each[60:] = [night._replace(**{what: "new"}) for night in each[60:]]
        change, right = worse(each), (f"{what} old -> new",)
        named += bool(change and change.sure and change.suspects == right)
        assert not (change and change.suspects) or change.began == each[60].date
    assert named >= 12


def test_nodes_that_differ_every_night_are_no_suspects():
    each = [one._replace(node=f"n{n % 7}") for n, one in enumerate(nights(stepped(70, 0.9)))]
    assert worse(each).suspects == ()


@pytest.mark.parametrize(
    ("count", "spread", "factor", "only", "slow"),
    [
        pytest.param(32, 0.01, 0.9, None, ("1",), id="one of many"),
        pytest.param(3, 0.02, 0.62, None, ("1",), id="one of three"),
        pytest.param(16, 0.0, 0.5, 1, (), id="on one night only"),
        pytest.param(16, 0.02, 1.0, None, (), id="none"),
    ],
)
def test_a_node_slower_than_the_others_on_each_night_is_named(count, spread, factor, only, slow):
    for seed in range(20):
        rng = random.Random(seed)
        series = [
            Night(
                START + timedelta(days=n),
                1000
                * (1 + spread * rng.gauss(0, 1))
                * (factor if node == 1 and only in {None, n} else 1),
                node=str(node),
            )
            for n in range(3)
            for node in range(count)
        ]
        assert slow_nodes(series) == slow


# A night that is measured again.


def again(values, *last):
    """Such nights, and runs of one more."""
    day = START + timedelta(days=len(values))
    return [*nights(values), *(Night(day, run) for run in last)]


@pytest.mark.parametrize(
    ("last", "more"),
    [
        pytest.param([975.0], True, id="lower than nearly all nights"),
        pytest.param([995.0], False, id="as most"),
        pytest.param([975.0, 1005.0], False, id="a spike"),
        pytest.param([975.0, 980.0], True, id="low again"),
        pytest.param([960.0, 965.0, 962.0], True, id="sure, which a further run may take back"),
    ],
)
def test_a_night_is_measured_again_until_it_is_a_spike(last, more):
    asked = [is_doubtful(again(noisy(90, seed), *last)) for seed in range(10)]
    assert sum(asked) >= 8 if more else sum(asked) <= 2


def test_runs_after_the_one_that_made_a_night_doubtful_are_no_selection_and_close_the_gate():
    runs = (975.0, 970.0, 969.0, 970.0, 969.0)
    closed = [worse(again(noisy(90, seed), *runs), 100) for seed in range(10)]
    assert sum(bool(change and change.sure) for change in closed) >= 8
    assert not any(change and change.sure for change in (worse(again(noisy(90), *runs[:2]), 100),))


def test_two_spikes_on_one_night_close_no_gate():
    """A run counts for no more than its rarity, unless all others of its night are low as well."""
    for seed in range(10):
        change = worse(again(noisy(90, seed), 850.0, 1002.0, 850.0, 1001.0), 100)
        assert change is None or not change.sure


def test_what_closed_by_chance_is_open_after_a_night_that_is_well():
    closed = again(noisy(90), 962.0, 966.0, 965.0, 967.0)
    assert worse(closed, 100).sure
    well = Night(closed[-1].date + timedelta(days=1), 1002.0)
    change = worse([*closed, well], 100)
    assert change is None or not change.sure


def test_a_rise_is_not_over_by_a_few_nights_that_are_not_as_high():
    """The drop at night 90 was measured against nights of the drop before, and closed no gate."""
    low = [0.9 * value for value in noisy(20, 3)]
    back = [1011.0, 1009.0, 972.0, 947.0, 972.0]
    each = [*noisy(40), *low, *back, *noisy(25, 2)]
    risen = [found for found in detect_nights(nightly([[one] for one in each])) if found.rise]
    assert [found.ended for found in risen] == [None]
