"""Finds lasting changes in nightly values: a robust, window-limited likelihood ratio. Pure.

Every night the mean since each of some nights is tested against the mean of all nights before
(Lai 1995, J. R. Stat. Soc. B 57:613), on the innovations of `estimate`: the step's size against
its standard error, as Student's t turned into a normal deviate (Wallace 1959), because spread and
dependence are estimates. Nights are looked at as they come; nothing looks ahead. A change that is
found begins a new level, which inherits the scatter of the one before.

A night that was measured again is looked at by itself, run by run (`_of_runs`): how far its runs
and those of the night before lie below the level, and how much of that all runs of a night share.
What made the night doubtful happens by chance on few nights; given that, its further runs are fair,
and so are those of later nights.

The constants:
TELL: z-score from which a change is reported; 3.3 is what 1 false alarm in 2,000
    series-nights allows.
SURE: what a rise needs.
BREAKAGE: a night so far below its level, and twice as far as any before, counts in full.
ODDS: (log) at which a level counts as the old one again: 20 to 1.
DOUBT: the shares of a level's nights, and of the means of two in a row, that are as low as a night
    that is measured again; PICKED is the share of nights that are.
GO_ON: the strength from which such a night is measured once more, and its growth with each run.
ALONE: spreads by which a run may lie below the highest of its night, beyond its own rarity.
LOOKS: chances of a look to be wrong: two spans of nights, several runs, and it closes a while.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from statistics import NormalDist, median
from typing import NamedTuple

from hpcdl.regress.estimate import (
    NARROWEST,
    Nightly,
    Noise,
    Shared,
    as_normal,
    caps,
    noise_of,
    spread_of,
)

TELL, SURE, BREAKAGE, ODDS = 3.3, 4.4, 0.15, 3.0
DOUBT, PICKED, GO_ON, ALONE, LOOKS = (0.036, 0.024), 0.06, (2.35, 0.2), 1.5, 6
CLEAR = 1.3
"""(log) odds by which a night must speak for one of two levels, before something is blamed."""
_SPIKE = 4.5
MIN_NIGHTS, FEW_NIGHTS, LEVEL_NIGHTS = 20, 6, 90
"""Nights of a first level and of later ones before changes can be seen; the most that make one."""
WINDOWS = (2, 3, 4, 5, 6, 8, 10, 13, 17, 22, 28, 36, 46, 60, 80)
_NORMAL = NormalDist()


class Found(NamedTuple):
    """A change by index.

    Whether it is a rise, its first night, the night it was seen, the level before, the first night
    of the level that holds now, the noise before it, the first night of the level before, the
    first night that was back at it, and how strongly its first night alone spoke for it, where
    that was measured again.
    """

    rise: bool
    began: int
    seen: int
    before: float
    level_start: int
    noise: Noise
    old_start: int = 0
    ended: int | None = None
    looked: float = 0.0


def closing_strength(budget: float, series: int) -> float:
    """The evidence from which on one of so many series may close a gate.

    All of them together do so wrongly on at most `budget` of the nights (Bonferroni 1936, over
    series and windows).
    """
    return -_NORMAL.inv_cdf(budget / (max(1, series) * len(WINDOWS)))


@dataclass
class _Window:
    """Innovations of a level's nights, to compare the last ones with those before."""

    noise: Noise
    new: list[float]
    sums: list[float]
    last: float

    @classmethod
    def of(cls, noise: Noise, values: Sequence[float]) -> _Window:
        new, last = noise.innovations(values)
        return cls(noise, new, [0.0, *accumulate(new)], last)

    def add(self, value: float) -> None:
        (new,), self.last = self.noise.innovations([value], self.last)
        self.new.append(new)
        self.sums.append(self.sums[-1] + new)

    def t(self, first: int) -> float:
        """Student's t of a step that began with this night of the level."""
        later, sums = 1 - self.noise.memory, self.sums
        square = later * later
        weight = 1 + (len(self.new) - first - 1) * square
        total = self.new[first] + later * (sums[-1] - sums[first + 1])
        size = total / weight - sums[first] / first / later
        return size / math.sqrt(self.noise.variance * (1 / weight + 1 / (first * square)))

    def strength(self, first: int) -> float:
        """The same, as a normal deviate."""
        return self.noise.normal(self.t(first), len(self.new) - first)


@dataclass
class _State:
    """The state so far: the level's first night, earlier levels, changes found.

    `earlier` are deviations of nights before the level from theirs; `search` is the first night
    that a change may begin with, `back` the level to return to and its `earlier`.
    """

    nights: Nightly
    start: int = 0
    search: int = 0
    earlier: list[float] = field(default_factory=list)
    back: tuple[int, list[float]] = (0, [])
    window: _Window | None = None
    fresh_until: int = 0
    found: list[Found] = field(default_factory=list)
    shared: Shared = field(init=False)

    def __post_init__(self) -> None:
        self.shared = self.nights.shared

    @property
    def need(self) -> int:
        """Nights that the level must have before changes against it can be seen."""
        return MIN_NIGHTS if len(self.earlier) < MIN_NIGHTS else FEW_NIGHTS

    def learn(self, end: int) -> Noise | None:
        """Return the estimate from the level's nights before `end`."""
        past = self.nights.sample[max(self.start, end - LEVEL_NIGHTS) : end]
        missing = LEVEL_NIGHTS - len(past)
        earlier = self.earlier[-missing:] if missing else []
        return noise_of(past, earlier, self.nights.step)

    def known(self, night: int) -> _Window | None:
        """The level's nights up to this one, by an estimate that may be a few nights old."""
        if self.window and night < self.fresh_until:
            self.window.add(self.nights.values[night])
            return self.window
        self.fresh_until = night + max(3, (night - self.start) // 8)
        noise = self.learn(night)
        values = self.nights.values[self.start : night + 1]
        self.window = _Window.of(noise, values) if noise else None
        return self.window

    def restart(self, start: int, earlier: list[float]) -> None:
        """Another level holds."""
        self.start, self.earlier, self.window = start, earlier, None

    @property
    def active(self) -> Found | None:
        """The last change, where it has not ended."""
        last = self.found[-1] if self.found else None
        return last if last and last.ended is None else None


def detect(nights: Nightly) -> list[Found]:
    """Changes of a series, by index, as they would have been reported night by night."""
    return _until(nights, len(nights.values)).found


def shared_by(nights: Nightly) -> Shared:
    """What a series tells of what the runs of a night share, beyond what was known before."""
    return _until(nights, len(nights.values)).shared


def _until(nights: Nightly, end: int) -> _State:
    state = _State(nights)
    for night in range(end):
        _step(state, night)
    return state


def _step(state: _State, night: int) -> None:
    _look_for_end(state, night)
    # Such a night would also tip slow evidence over, and hide behind an earlier onset.
    if _looked(state, night):
        return
    _learn_shared(state, night)
    if night - state.start > state.need:
        _look_for_change(state, night)


def is_doubtful(nights: Nightly, *, fresh: bool = False) -> bool:
    """Return whether the last night of a series should be measured again, or once more.

    With `fresh`, such as on the first night of a release, three times as many nights are doubtful.
    """
    night = len(nights.values) - 1
    state = _until(nights, night)
    _look_for_end(state, night)
    runs = len(nights.runs[night]) if nights.runs else 1
    if runs == 1:  # however low: it may be a spike
        return _is_low(state, night, 3 if fresh else 1)
    # Also where it is sure by now: the further runs may take it back.
    return _strength(state, night)[1] >= GO_ON[0] + (runs - 2) * GO_ON[1]


def _unsure(state: _State, night: int) -> Found | None:
    """The drop of the last few nights, whose level is too young to look at others beside it."""
    last = state.active
    recent = last and not last.rise and night - last.began < FEW_NIGHTS
    return last if recent else None


def _is_low(state: _State, night: int, times: int) -> bool:
    """Return whether a night, or it and the one before, are among the lowest of their level."""
    # The first run of each: what was measured again for being low is no longer as low.
    values, start = state.nights.firsts, max(state.start, night - LEVEL_NIGHTS)
    if last := _unsure(state, night):
        return values[night] < last.before - last.noise.spread
    past = values[start:night]
    if len(past) > 2 and values[night] < median(past) * (1 - BREAKAGE / 2):
        return True
    if len(past) < state.need:
        return False
    level = median(past)
    each = [value - level for value in past]
    each = [*state.earlier, *each][-LEVEL_NIGHTS:]
    spread = spread_of(each)
    each = [one for one in each if one > -_SPIKE * spread]
    now = values[night] - level
    again = state.nights.runs[night - 1] if state.nights.runs else ()
    if len(again) > 1 and sum(again) / len(again) < level - spread:
        return now < -spread  # last night was not cleared
    both = now + values[night - 1] - level
    pairs = [first + second for first, second in pairwise(each)]
    return now < 0 and (
        _is_rare(now, each, DOUBT[0] * times, spread)
        or _is_rare(both, pairs, DOUBT[1] * times, spread * math.sqrt(2))
    )


def _is_rare(value: float, before: Sequence[float], share: float, spread: float) -> bool:
    """Return whether normal values of this spread are as low so seldom, and those before were."""
    if value >= _NORMAL.inv_cdf(share) * spread:
        return False
    lower = sum((one < value) + (one <= value) for one in before) / 2  # of a coarse one its middle
    return lower < max(1.0, 1.15 * share * len(before))


def _strength(state: _State, night: int) -> tuple[int, float]:
    """How strongly the last night, or the last two, speak for a drop, and the first of them."""
    if last := _unsure(state, night):
        level_nights = last.began - last.old_start
        return last.began, _of_runs(state, last.noise, last.began, night, level_nights)
    best = (night, 0.0)
    for first in (night, night - 1):
        if first < state.search:  # that night was answered by tonight's
            continue
        few = FEW_NIGHTS - 1 if first == night and _broke(state, night) else state.need
        noise = state.learn(first) if first - state.start >= few else None
        if noise is not None:
            strength = _of_runs(state, noise, first, night, first - state.start)
            best = max(best, (first, strength), key=lambda one: one[1])
    return best


def _of_runs(state: _State, noise: Noise, first: int, last: int, level_nights: int) -> float:
    """Return the normal deviate of the runs of these nights being below a level.

    It is that of all runs, or of those after the one that made a night doubtful: given that one,
    which is as low on PICKED of the nights, the others are there by no choice.
    """
    nights, shared, memory = state.nights, state.shared.part, noise.memory
    every, fair, picked = _Mean(), _Mean(), None
    for night in range(first, last + 1):
        runs = nights.runs[night] if nights.runs else [nights.values[night]]
        each = _evidence_of(noise, runs)
        several = max(1.0, len(runs) / nights.usual)
        every = every.and_one(sum(each) / len(each), shared + (1 - shared) / several)
        expected, part = (picked or 0.0) * memory, memory
        if picked is None:
            if len(runs) == 1 or nights.usual > 1:
                continue
            picked, *each = each
            expected, part = picked * shared, shared
        variance = max(0.0, shared - part * part) + (1 - shared) / len(each)
        fair = fair.and_one(sum(each) / len(each) - expected, variance)
    count = last - first + 1
    more = sum(2 * (count - lag) * memory**lag for lag in range(1, count)) / count**2
    more += (1 + memory) / (1 - memory) / min(level_nights, LEVEL_NIGHTS)
    degrees = max(3.0, len(noise.ranks) - 1)
    if not fair.weight:
        return every.below(more, degrees)
    rare = PICKED * _NORMAL.cdf(-fair.below(more, degrees))
    return max(every.below(more, degrees), -_NORMAL.inv_cdf(max(1e-300, rare)))


class _Mean(NamedTuple):
    """A mean of deviates, each weighted by one over its variance."""

    total: float = 0.0
    weight: float = 0.0

    def and_one(self, value: float, variance: float) -> _Mean:
        return _Mean(self.total + value / variance, self.weight + 1 / variance)

    def below(self, more: float, degrees: float) -> float:
        """By how many standard errors it is below 0, where its variance is `more` larger."""
        size = self.total / self.weight / math.sqrt(1 / self.weight + more)
        return math.copysign(as_normal(size, degrees), -size)


def _evidence_of(noise: Noise, runs: Sequence[float]) -> list[float]:
    """The runs of a night, each for its rarity; of three, for as much as all of them are low.

    A night all of whose runs are far below the level, and unlike any before, counts in full.
    """
    each = [(run - noise.level) / noise.spread for run in runs]
    unlike = max(runs) < noise.level * (1 - BREAKAGE) and max(each) < 2 * noise.ranks[0]
    if unlike and len(runs) != 2:  # two may be two spikes: a third run tells
        return each  # nothing like it was ever seen: no rarity cuts it
    cut = [noise.evidence([run])[0] for run in runs]
    least = max(each) - ALONE if len(runs) > 2 else 0.0
    return [max(z, min(least, one)) if z < 0 else one for z, one in zip(each, cut, strict=True)]


def _learn_shared(state: _State, night: int) -> None:
    """Take a night that was measured again, and is no drop, as an example of what runs share.

    Of a drop all runs are low: taken for an example, it would hide every later one.
    """
    runs = state.nights.runs[night] if state.nights.runs and state.nights.usual == 1 else ()
    noise = state.learn(night) if len(runs) > 1 and night - state.start >= state.need else None
    if noise is None:
        return
    first, *others = ((run - noise.level) / noise.spread for run in runs)
    state.shared = state.shared.and_night(first, others)


def _looked(state: _State, night: int) -> bool:
    """Return whether a night that was measured again, or that broke, is a drop by itself.

    While a drop is young, all its nights say how strong it is: what was chance is taken back.
    """
    unsure = _unsure(state, night)
    since = unsure.began if unsure else max(state.search, night - 1)
    again = any(len(one) > 1 for one in state.nights.runs[since : night + 1])
    if not (again or (unsure and unsure.looked) or _broke(state, night)):
        return False
    first, strength = _strength(state, night)
    if unsure:
        state.found[-1] = unsure._replace(looked=strength)
        return False
    noise = state.learn(first) if strength >= TELL else None
    if noise is None:
        return False
    found = Found(False, first, night, noise.level, first, noise, state.start, None, strength)
    _tell(state, found)
    return True


def evidence_now(change: Found, nights: Nightly) -> float:
    """How strongly all nights since its onset still speak for a change, as a normal deviate.

    They are compared with the level that the change ended, and no night before that level: nights
    before an earlier rise once made every later drop look small, and no gate closed for weeks.
    """
    first = max(change.old_start, change.began - LEVEL_NIGHTS)
    window = _Window.of(change.noise, nights.values[first:])
    since = window.strength(change.began - first) if change.began > first else 0.0
    return max(since, _as_one_of_many(change.looked))


def _as_one_of_many(strength: float) -> float:
    """The strength of a look at a night, as one of all windows would have it."""
    rare = LOOKS * _NORMAL.cdf(-strength) / len(WINDOWS)
    return -_NORMAL.inv_cdf(max(rare, 1e-300)) if strength > 0 else 0.0


def onset(change: Found, nights: Nightly) -> tuple[int, Sequence[int]]:
    """When a change began, by the likelihood of the nights around under the levels beside it.

    The most likely first night, and those that are clear: they speak for the new level by
    themselves, and the ones before them for the old one. Only what changed on such a night can be
    blamed.
    """
    values, noise = nights.values, change.noise
    since = values[change.began : min(change.ended or len(values), change.began + MIN_NIGHTS)]
    spread = noise.spread * math.sqrt(noise.variance)
    after = median(since) if len(since) > 2 else sum(since) / len(since)
    first = max(1, change.began - MIN_NIGHTS // 2)
    last = min(len(values), max(change.seen, change.began + 1))
    most = caps(len(noise.ranks))[0]

    def gain(night: int) -> float:
        old, new = ((values[night] - level) / spread for level in (change.before, after))
        return (min(most, abs(old)) ** 2 - min(most, abs(new)) ** 2) / 2

    costs = {first: 0.0}
    for night in range(first, last - 1):
        costs[night + 1] = costs[night] + gain(night)
    least = min(costs.values())
    clear = [
        night
        for night, cost in costs.items()
        if cost - least <= CLEAR and gain(night) >= CLEAR and gain(night - 1) <= -CLEAR
    ]
    return min(costs, key=lambda night: costs[night]), clear


def _look_for_change(state: _State, night: int) -> None:
    """A window that ends tonight and differs from the nights before it begins a new level."""
    window = state.known(night)
    if window is None:
        return
    count, least = len(window.new), max(state.need, state.search - state.start)
    each = {window.t(count - size): size for size in WINDOWS if count - size >= least}
    t = max(each, key=abs, default=0.0)
    if abs(t) > 0.76 * TELL:
        _confirm(state, night, each[t], least, -1 if t < 0 else 1)


def _confirm(state: _State, night: int, size: int, least: int, sign: int) -> None:
    """Look again, with an estimate that knows nothing of the window's nights."""
    noise = state.learn(night - size + 1)
    if noise is None:
        return
    window = _Window.of(noise, state.nights.values[state.start : night + 1])
    count = len(window.new)
    first = max(
        range(max(least, count - 2 * size), count - 1), key=lambda one: sign * window.t(one)
    )
    evidence = window.strength(first)
    if evidence < (TELL if sign < 0 else SURE):
        return
    began = state.start + first
    found = Found(sign > 0, began, night, noise.level, began, noise, state.start)
    _tell(state, found)


def _tell(state: _State, new: Found) -> None:
    """A change is new, or continues the one before: then it is the same event."""
    last, start = state.active, state.start
    past = state.nights.sample[max(start, new.began - LEVEL_NIGHTS) : new.began]
    earlier = [*state.earlier, *(value - new.before for value in past)][-LEVEL_NIGHTS:]
    if last and last.rise is new.rise and new.began - last.level_start <= MIN_NIGHTS:
        state.found[-1] = last._replace(level_start=new.began)
    else:
        since = state.nights.values[new.began : new.seen + 1]
        half = last and sum(since) / len(since) > (last.before + new.before) / 2
        if last and not last.rise and half:  # a rise makes up for most of it
            state.found[-1] = last._replace(ended=new.began)
        state.found.append(new)
        state.back = (start, state.earlier)
    state.restart(new.began, earlier)


def _broke(state: _State, night: int) -> bool:
    """Return whether all runs of a night are far below the nights before."""
    past = state.nights.values[max(0, night - LEVEL_NIGHTS) : night]
    runs = state.nights.runs[night] if state.nights.runs else [state.nights.values[night]]
    if len(past) < FEW_NIGHTS - 1 or max(runs) >= max(past) * (1 - BREAKAGE):
        return False  # as most are: no median is needed
    return max(runs) < median(past) * (1 - BREAKAGE)


def _look_for_end(state: _State, night: int) -> None:
    """Return whether the last change is over.

    A single night that broke is over where the next is well; a level by a sequential test of the
    old one against the new one (Wald 1945, Ann. Math. Stat. 16:117).
    """
    last, values = state.active, state.nights.values
    if last is None:
        return
    alone = not last.rise and last.began == last.seen == night - 1
    broke = values[night - 1] < last.before * (1 - BREAKAGE)
    if alone and broke and values[night] > last.before * (1 - BREAKAGE / 2):
        state.found[-1] = last._replace(ended=night)
        state.restart(*state.back)
        return
    soonest = 1 if last.looked else 2  # what one night says by itself, the next one may answer
    since = night - last.seen
    if since < soonest or last.level_start != last.began or since > LEVEL_NIGHTS:
        return
    if last.rise and night - last.began > MIN_NIGHTS:
        return  # it has become the level: what falls from there is a drop
    # Together, so that none counts for less than the night beside it: a rise was once taken for
    # over because its later nights, cut to their rarity, were nearer to the level before.
    each = last.noise.evidence(values[last.began : night + 1])
    changed, later = each[:-since], each[-since:]
    shift = sum(changed) / len(changed)
    if shift * sum(shift / 2 - value for value in later) > ODDS * last.noise.variance:
        state.found[-1] = last._replace(ended=last.seen + 1)
        state.restart(*state.back)
        state.search = night + 1


def may_hold(values: Sequence[float]) -> bool:
    """Return whether the last nights may be lower than those before: a quick test.

    It rests on the spread of differences between neighbours, which neither a change nor dependent
    nights enlarge, and asks for less than TELL, so that it sees more than `detect` does.
    """
    count = len(values)
    if count < FEW_NIGHTS:
        return False
    steps = sorted(map(abs, map(float.__sub__, values[1:], values[:-1])))
    # 0.6745 and the root of 2: what the median of such differences is of a spread.
    spread = max(steps[len(steps) // 2] / 0.6745 / math.sqrt(2), NARROWEST * values[-1])
    sums = [0.0, *accumulate(values)]
    for cut in (count - size for size in (1, *WINDOWS) if count - size >= 1):
        after = (sums[count] - sums[cut]) / (count - cut)
        for size in {min(most, cut) for most in (FEW_NIGHTS, 12, 24, 48, LEVEL_NIGHTS)}:
            less = (sums[cut] - sums[cut - size]) / size - after
            if less > 0.9 * TELL * spread * math.sqrt(1 / size + 1 / (count - cut)):
                return True
    return False
