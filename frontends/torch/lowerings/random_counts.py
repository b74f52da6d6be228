"""Random counts: samples of Poisson's and of the binomial distribution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....hlo.graph import Value
from ....hlo.types import F64, TensorType
from ..context import Context
from .random import above_zero, exponential_of, real_of, uniform_of


def poisson(c: Context, self: Value, *args: Any, **kwargs: Any) -> Value:
    """Counts of a rate: by intervals below 10, by transformed rejection (Hörmann 1993) above."""
    given = c.convert(self, real_of(self.element))
    finite = c("is_finite", given)  # of others no loop would end
    rate = c.select(finite, given, 0.0)
    small = c.compare("LT", rate, 10.0)
    few = _by_intervals(c, c.select(small, rate, 0.0))
    many = _by_rejection(c, c.select(small, 10.0, rate), small)
    return c.convert(c("select", finite, c("select", small, few, many), given), c.element)


def _by_intervals(c: Context, rate: Value) -> Value:
    """How many exponentially distributed intervals end before `rate`."""
    dims, real = rate.dims, rate.element

    def go_on(time: Value, count: Value) -> Value:
        return c.reduce("or", _le(c, time, rate), _all(time))

    def step(time: Value, count: Value) -> list[Value]:
        time = c("add", time, exponential_of(c, dims, real))
        return [time, c("add", count, c.convert(_le(c, time, rate), real))]

    start = [c.full(0, dims, real), c.full(0, dims, real)]
    return c.iterate(start, go_on, step)[1]


def _le(c: Context, left: Value, right: Value) -> Value:
    return c.builder.compare("LE", left, right)


def _all(value: Value) -> list[int]:
    return list(range(value.rank))


def _by_rejection(c: Context, rate: Value, done: Value) -> Value:
    """The transformed rejection PTRS, for rates of 10 and more; those of `done` are done before."""
    dims, real = rate.dims, rate.element
    log_rate = c("log", rate)
    spread = c.add(c.multiply(c("sqrt", rate), 2.53), 0.931)
    slope = c.add(c.multiply(spread, 0.02483), -0.059)
    inverse = c.add(c.divide(1.1328, c.subtract(spread, 3.4)), 1.1239)
    squeeze = c.subtract(0.9277, c.divide(3.6224, c.subtract(spread, 2)))

    def go_on(done: Value, count: Value) -> Value:
        return c.reduce("or", c("not", done), _all(done))

    def step(done: Value, count: Value) -> list[Value]:
        u = c.subtract(uniform_of(c, dims, real), 0.5)
        v = above_zero(c, dims, real)
        away = c.subtract(0.5, c("abs", u))
        first = c("divide", c.multiply(slope, 2), away)
        k = c("floor", c.add(c("add", c("multiply", c("add", first, spread), u), rate), 0.43))
        quick = c("and", c.compare("GE", away, 0.07), _le(c, v, squeeze))
        wrong = c("or", c.compare("LT", k, 0.0), c("and", c.compare("LT", away, 0.013),
                  c.builder.compare("GT", v, away)))  # fmt: skip
        below = c("add", c("divide", slope, c("multiply", away, away)), spread)
        left = c("log", c("divide", c("multiply", v, inverse), below))
        right = c("subtract", c("subtract", c("multiply", k, log_rate), rate),
                  c("chlo.lgamma", c.add(k, 1)))  # fmt: skip
        fits = c("or", quick, c("and", c("not", wrong), _le(c, left, right)))
        taken = c("and", fits, c("not", done))
        return [c("or", done, fits), c("select", taken, k, count)]

    return c.iterate([done, c.full(0, dims, real)], go_on, step)[1]


def binomial(c: Context, count: Value, prob: Value, generator: Any = None) -> Value:
    """How many of `count` trials of probability `prob` succeed: by the waiting times between those
    of the rarer kind where there are few, else by transformed rejection (Hörmann 1993); in f64,
    since the distribution's logarithms are differences of large numbers."""
    trials, chance = (c.fill(value, TensorType(c.dims, F64)) for value in (count, prob))
    mirrored = c.compare("GT", chance, 0.5)
    rare = c("select", mirrored, c.subtract(1, chance), chance)
    some = c("and", c.compare("GT", trials, 0.0), c.compare("GT", rare, 0.0))
    some = c("and", some, c("is_finite", trials))
    trials, rare = c.select(some, trials, 0.0), c.select(some, rare, 0.25)
    small = c.compare("LT", c("multiply", trials, rare), 10.0)
    few = _by_waiting(c, c.select(small, trials, 0.0), rare)
    many = _binomial_by_rejection(c, trials, rare, small)
    found = c("select", small, few, many)
    found = c("select", mirrored, c("subtract", c.fill(count, found.tensor), found), found)
    found = c.select(c.compare("LE", c.fill(count, found.tensor), 0.0), 0.0, found)
    return c.convert(c("select", c.is_nan(chance), chance, found), c.element)


def _by_waiting(c: Context, trials: Value, chance: Value) -> Value:
    """How many successes come before the trials are over, each after a geometric number."""
    slope = c("log_plus_one", c("negate", chance))

    def go_on(time: Value, count: Value) -> Value:
        return c.reduce("or", _le(c, time, trials), _all(time))

    def step(time: Value, count: Value) -> list[Value]:
        wait = c("ceil", c("divide", c("log", above_zero(c, trials.dims, F64)), slope))
        time = c("add", time, c.binary("maximum", wait, 1))
        return [time, c("add", count, c.convert(_le(c, time, trials), F64))]

    return c.iterate([c.full(0, trials.dims, F64)] * 2, go_on, step)[1]


def _binomial_by_rejection(c: Context, trials: Value, chance: Value, done: Value) -> Value:
    """The transformed rejection BTRS, for probabilities up to 0.5 and means of 10 and more; others
    are done before."""
    odds = c("divide", chance, c.subtract(1, chance))
    mean = c("multiply", trials, chance)
    deviation = c("sqrt", c("multiply", mean, c.subtract(1, chance)))
    b = c.add(c.multiply(deviation, 2.53), 1.15)
    a = c("add", c.add(c.multiply(b, 0.0248), -0.0873), c.multiply(chance, 0.01))
    squeeze = c.subtract(0.92, c.divide(4.2, b))
    alpha = c("multiply", c.add(c.divide(5.1, b), 2.83), deviation)
    mode = c("floor", c("multiply", c.add(trials, 1), chance))
    log_odds = c("log", odds)

    def weight(k: Value) -> Value:
        """The logarithm of the probability of k, but for what all have in common."""
        ways = c("add", c("chlo.lgamma", c.add(k, 1)),
                 c("chlo.lgamma", c.add(c("subtract", trials, k), 1)))  # fmt: skip
        return c("subtract", c("multiply", k, log_odds), ways)

    most = weight(mode)

    def proposal() -> tuple[Value, Value, Value]:
        u = c.subtract(uniform_of(c, trials.dims, F64), 0.5)
        v = above_zero(c, trials.dims, F64)
        away = c.subtract(0.5, c("abs", u))
        slope = c("add", c("divide", c.multiply(a, 2), away), b)
        k = c("floor", c("add", c("multiply", slope, u), c.add(mean, 0.5)))
        quick = c("and", c.compare("GE", away, 0.07), _le(c, v, squeeze))
        outside = c("or", c.compare("LT", k, 0.0), c.builder.compare("GT", k, trials))
        below = c("add", c("divide", a, c("multiply", away, away)), b)
        left = c("log", c("divide", c("multiply", v, alpha), below))
        inside = c("select", outside, mode, k)
        fits = _le(c, left, c("subtract", weight(inside), most))
        return k, quick, c("and", fits, c("not", outside))

    def go_on(done: Value, count: Value) -> Value:
        return c.reduce("or", c("not", done), _all(done))

    def step(done: Value, count: Value) -> list[Value]:
        k, quick, fits = proposal()
        fits = c("or", quick, fits)
        return [c("or", done, fits), c("select", c("and", fits, c("not", done)), k, count)]

    return c.iterate([done, c.full(0, trials.dims, F64)], go_on, step)[1]


TABLE: dict[str, Callable[..., Any]] = {
    "aten.binomial.default": binomial,
    "aten.poisson.default": poisson,
}
