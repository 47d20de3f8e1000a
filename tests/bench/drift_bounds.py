"""`python -m tests.bench.drift_bounds`: what no method of watching a series can exceed.

Likelihood ratio tests that know what no site does: the level, the law of the noise, its dependence
and the size of the drop. Where nights are independent they look at the last 1 to `within` nights or
are a CUSUM; where nights depend, at the innovations of the Kalman filter (Basseville and Nikiforov,
Detection of Abrupt Changes, 1993, chapters 2 and 7). The best of them counts. Thresholds give the
false alarms that the goals allow; alarms within 10 nights are one.
"""

from collections.abc import Callable, Sequence
from math import erf, sqrt

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
SD = 0.02
SPIKES, SPIKE = 0.04, 0.12
"""The share of nights with a spike, and its size, up or down."""
_STEP = 0.02
_SERIES, _NIGHTS, _DROPS, _BEFORE = 1500, 400, 8000, 60
_draw = np.random.default_rng(77)


def independent(kind: str, runs: int, nights: int, drop: float) -> Array:
    """Rates of independent nights, (nights, runs), around 1 - `drop`."""
    noise = _draw.standard_normal((nights, runs))
    shift = np.zeros(nights)
    if kind == "Student t3":
        noise = _draw.standard_t(3, (nights, runs)) / sqrt(3)
    elif kind == "one-sided":
        noise = 1 - _draw.exponential(1, (nights, runs))
    elif kind == "spikes":
        up_or_down = _draw.choice([-SPIKE, SPIKE], nights)
        shift = np.where(_draw.random(nights) < SPIKES, up_or_down, 0.0)
    rates: Array = (1 + SD * noise + shift[:, None]) * (1 - drop)
    return np.round(rates / _STEP) * _STEP if kind == "quantized 2 %" else rates


def density(kind: str, rates: Array, drop: float) -> Array:
    """The log density of each night's runs, (nights,), where the level is 1 - `drop`."""
    sd = SD * (1 - drop)
    apart = (rates / (1 - drop) - 1) / SD
    if kind == "one-sided":
        possible = (apart <= 1).all(axis=1)
        return np.where(possible, (apart - 1).sum(axis=1) - rates.shape[1] * np.log(sd), -40.0)
    if kind == "Student t3":
        law = -2 * np.log1p(apart**2)
        return np.asarray(law.sum(axis=1) - rates.shape[1] * np.log(sd))
    if kind == "quantized 2 %":
        values = np.arange(20, 80) * _STEP

        def below(edges: Array) -> Array:
            return np.array([0.5 * (1 + erf((edge - 1 + drop) / sd / sqrt(2))) for edge in edges])

        shares = np.log(below(values + _STEP / 2) - below(values - _STEP / 2) + 1e-12)
        which = np.clip(np.round(rates / _STEP).astype(int) - 20, 0, len(values) - 1)
        return np.asarray(shares[which].sum(axis=1))
    weights = ((1.0, 0.0),)
    if kind == "spikes":
        weights = ((1 - SPIKES, 0.0), (SPIKES / 2, -SPIKE), (SPIKES / 2, SPIKE))
    total = np.zeros(len(rates))
    for share, shift in weights:
        away = ((rates - (1 + shift) * (1 - drop)) ** 2).sum(axis=1) / (2 * sd**2)
        total += share * np.exp(-away) / sd ** rates.shape[1]
    return np.log(total + 1e-300)


def windows(ratios: Array, longest: int) -> Array:
    """The largest sum of the last 1 to `longest` log likelihood ratios, (series, nights)."""
    sums = np.cumsum(np.pad(ratios, ((0, 0), (1, 0))), axis=1)
    best = np.full(ratios.shape, -1e9)
    for width in range(1, longest + 1):
        last = sums[:, width:] - sums[:, :-width]
        best[:, width - 1 :] = np.maximum(best[:, width - 1 :], last)
    return best


def cusum(ratios: Array) -> Array:
    """Page's cumulative sum of log likelihood ratios, (series, nights)."""
    level, found = np.zeros(len(ratios)), np.empty_like(ratios)
    for night in range(ratios.shape[1]):
        level = np.maximum(level, 0) + ratios[:, night]
        found[:, night] = level
    return found


def threshold(quiet: Array, rate: float) -> float:
    """Where healthy series raise `rate` alarms in 1,000 nights."""
    low, high = 0.0, 20.0
    for _ in range(25):
        middle = (low + high) / 2
        if 1000 * _alarms(quiet > middle) / quiet.size > rate:
            low = middle
        else:
            high = middle
    return high


def _alarms(above: NDArray[np.bool_], apart: int = 10) -> int:
    count = 0
    for row in above:
        last = -2 * apart
        for night in np.flatnonzero(row):
            count += night - last > apart
            last = night
    return count


def power(kind: str, runs: int, drop: float, within: int, rate: float) -> float:
    """The share of drops that are seen `within` nights, where nights are independent."""

    def ratios(series: int, nights: int, size: float) -> Array:
        rates = independent(kind, runs, series * nights, size)
        return (density(kind, rates, drop) - density(kind, rates, 0)).reshape(series, nights)

    quiet = ratios(_SERIES, _NIGHTS, 0)
    parts = [ratios(_DROPS, _BEFORE, 0), ratios(_DROPS, within, drop)]
    dropped = np.concatenate(parts, axis=1)
    tests: list[Callable[[Array], Array]] = [
        cusum, *(lambda found, w=w: windows(found, w) for w in range(1, within + 1))
    ]  # fmt: skip
    return max(_seen(test(quiet), test(dropped), rate) for test in tests)


def _seen(quiet: Array, dropped: Array, rate: float) -> float:
    limit = threshold(quiet, rate)
    return float((dropped[:, _BEFORE:] > limit).any(axis=1).mean())


def dependent_power(rho: float, runs: int, drop: float, within: int, rate: float) -> float:
    """As `power`, where the nights' common part has the autocorrelation `rho` (0: night effect)."""
    share = 1.0 if runs == 1 and rho else 0.5
    gain, spread = _kalman(rho, share, runs)
    answer = _innovations(np.ones((1, within)), rho, gain)[0] * -drop / SD

    def tests(series: int, nights: int, at: int) -> list[Array]:
        rates = _dependent(rho, share, runs, (series, nights), drop, at)
        found = _innovations((rates - 1) / SD, rho, gain)
        best, each = np.full(found.shape, -1e9), []
        for width in range(1, within + 1):
            mean = answer[:width]
            told = sum(mean[lag] * found[:, lag : nights - width + 1 + lag] for lag in range(width))
            ratio = (told - mean @ mean / 2) / spread
            best[:, width - 1 :] = np.maximum(best[:, width - 1 :], ratio)
            each.append(best.copy())
        return each

    healthy = tests(_SERIES, _NIGHTS, _NIGHTS)
    dropped = tests(_DROPS, _BEFORE + within, _BEFORE)
    return max(_seen(quiet[:, 20:], drops, rate)
               for quiet, drops in zip(healthy, dropped, strict=True))  # fmt: skip


def _dependent(
    rho: float, share: float, runs: int, shape: tuple[int, int], drop: float, at: int
) -> Array:
    common, state = np.empty(shape), _draw.standard_normal(shape[0])
    for night in range(shape[1]):
        state = rho * state + sqrt(1 - rho**2) * _draw.standard_normal(shape[0])
        common[:, night] = state
    own = _draw.standard_normal(shape) / sqrt(runs)
    level = np.where(np.arange(shape[1]) >= at, 1 - drop, 1.0)
    return np.asarray((1 + SD * (sqrt(share) * common + sqrt(1 - share) * own)) * level)


def _kalman(rho: float, share: float, runs: int) -> tuple[float, float]:
    """The steady gain, and the variance of an innovation in units of SD squared."""
    variance, noise = share, (1 - share) / runs
    for _ in range(200):
        gain = variance / (variance + noise)
        variance = rho**2 * variance * (1 - gain) + share * (1 - rho**2)
    return variance / (variance + noise), variance + noise


def _innovations(values: Array, rho: float, gain: float) -> Array:
    expected, found = np.zeros(len(values)), np.empty_like(values)
    for night in range(values.shape[1]):
        found[:, night] = values[:, night] - expected
        expected = rho * (expected + gain * found[:, night])
    return found


def main(kinds: Sequence[str] = ()) -> None:
    """Print the table of docs/nightly.md."""
    for runs, rate in ((3, 0.5), (1, 1.0)):
        for kind in kinds or ("normal", "Student t3", "spikes", "quantized 2 %", "one-sided"):
            five, ten = (power(kind, runs, *goal, rate) for goal in ((0.05, 3), (0.10, 2)))
            print(f"{runs} a night, {kind}: {five:.1%} {ten:.1%}", flush=True)
        for rho in (0.3, 0.5, 0.7, 0.0):
            five, ten = (dependent_power(rho, runs, *goal, rate) for goal in ((0.05, 3), (0.10, 2)))
            name = f"AR {rho}" if rho else "night effect"
            print(f"{runs} a night, {name}: {five:.1%} {ten:.1%}", flush=True)


if __name__ == "__main__":
    main()
