"""Decisions about sizes that a call fixes, while code is made that serves all of them.

Passes and emitters compute with sizes as with numbers. Where they ask whether one is below
another, the answer is proven from what the program says of its symbols; where that cannot be, it is
the one at the *hints*, sizes of a likely call, and becomes a *guard*: the code that is made is for
calls of which all guards hold. What only makes code faster asks `at_hint`, or computes inside of
`estimating`, where sizes are the numbers that they are at the hints; what is right either way asks
`surely_below` and `surely_at_most`. None of these leaves a guard.

    with deciding(assumptions, {"batch": 4}) as decisions:
        plan = ...
    decisions.guards
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from traceback import extract_stack
from typing import Any, TypeVar

from .assumptions import Assumptions, assuming
from .errors import CompilerBug, UnsupportedError
from .sizes import SizeConstraint
from .symbols import Dim, SizeOrder, SizeTooLong, SymbolicDim, bound, ordered_by
from .types import TensorType


class Decisions(SizeOrder):
    """What is assumed of symbols while code is made, and the guards that it has come to need.
    `likely`: the hints, for who makes nothing that depends on them."""

    def __init__(self, assumptions: Assumptions, hints: Mapping[str, int]) -> None:
        self.assumptions, self.likely = assumptions, dict(hints)
        self.asked = False  # whether anything may depend on what the hints are
        self.guards: dict[SizeConstraint, None] = {}
        self.estimates = 0  # how many `estimating` are around

    @property
    def hints(self) -> Mapping[str, int]:
        """The sizes of a likely call; whoever reads them here makes what depends on them."""
        self.asked = True
        return self.likely

    def at_most(self, left: Dim, right: Dim) -> bool:
        """left <= right, at the sizes that the code is for."""
        if self.estimates:
            return bound(left, self.hints) <= bound(right, self.hints)
        known = self.assumptions.at_most(left, right)
        if known is not None:
            return known
        holds = bound(left, self.hints) <= bound(right, self.hints)
        where = _asker()
        if holds:
            guard = SizeConstraint(left, "<=", right, where)
        else:
            guard = SizeConstraint(right + 1, "<=", left, where)
        self.guards.setdefault(guard)
        return holds

    @contextmanager
    def recording(self) -> Iterator[dict[SizeConstraint, None]]:
        """The guards that come to be needed inside; they are kept as well."""
        before, self.guards = self.guards, {}
        found = self.guards
        try:
            yield found
        finally:
            before.update(found)
            self.guards = before

    def said_of(self, names: Sequence[str]) -> str:
        """All that decides what is made of sizes with these symbols: "" without symbols."""
        if not names:
            return ""
        lines = [
            f"{name}: {self.assumptions.symbols.get(name)}, about {self.hints[name]}"
            for name in sorted(names)
        ]
        known = [c for c in self.assumptions.constraints if not set(names).isdisjoint(c.symbols)]
        return "\n".join(["", *lines, *map(str, known)])

    def estimate(self, size: SymbolicDim) -> int:
        if not self.estimates:
            raise TypeError(f"the size {size} is no number yet, and nothing is estimated here")
        return size.bind(self.hints)


_CURRENT: ContextVar[Decisions | None] = ContextVar("decisions", default=None)


@contextmanager
def deciding(assumptions: Assumptions, hints: Mapping[str, int]) -> Iterator[Decisions]:
    """Sizes can be compared inside; `hints` has a value for each symbol."""
    decisions = Decisions(assumptions, hints)
    with decided_by(decisions):
        yield decisions


@contextmanager
def decided_by(decisions: Decisions | None) -> Iterator[None]:
    """Go on with decisions that were begun before; None: all sizes are fixed."""
    before = _CURRENT.set(decisions)
    try:
        known = nullcontext() if decisions is None else assuming(decisions.assumptions)
        with ordered_by(decisions), known:
            yield
    finally:
        _CURRENT.reset(before)


@contextmanager
def estimating() -> Iterator[None]:
    """Sizes are numbers inside, those at the hints: for what only makes code faster. Also a
    decorator of functions."""
    decisions = _CURRENT.get()
    if decisions is None:
        yield
        return
    decisions.estimates += 1
    try:
        yield
    finally:
        decisions.estimates -= 1


def current() -> Decisions | None:
    """The decisions that are being taken; None outside of `deciding`."""
    return _CURRENT.get()


_Made = TypeVar("_Made")


def once(memo: dict[Any, Any], key: Hashable, make: Callable[[], _Made]) -> _Made:
    """What `make()` gives, which `memo` keeps for the same key and the same assumptions: but where
    it depends on what the likely call is."""
    decisions = _CURRENT.get()
    known = key, None if decisions is None else decisions.assumptions
    if known in memo:
        return memo[known]
    if decisions is None:
        made = memo[known] = make()
        return made
    before, decisions.asked = decisions.asked, False
    try:
        made = make()
        if not decisions.asked:
            memo[known] = made
    finally:
        decisions.asked |= before
    return made


def is_decided(kind: TensorType) -> bool:
    """Whether sizes are fixed, or code is being made for all that calls may decide."""
    return kind.is_static or current() is not None


@contextmanager
def codeable(place: str, what: str, names: Sequence[str]) -> Iterator[None]:
    """Inside, code is made for sizes with these symbols; none: for fixed ones.

    What passes and emitters cannot do with them is an UnsupportedError that says what can be done,
    whatever they stumble over: that a size is no number shows first where a number is needed.
    """
    try:
        yield
    except (TypeError, AttributeError, AssertionError, SizeTooLong, CompilerBug) as error:
        if not names:
            raise
        reason = f"it stopped at: {error or type(error).__name__}"
        raise without_code(f"{place}{what}", names, reason) from error


def without_code(what: str, names: Sequence[str], reason: str) -> UnsupportedError:
    """The error for what has code for fixed sizes only, but is met with these symbols."""
    one = len(names) == 1
    fixed = " ".join(f"--size {name}=NUMBER" for name in names)
    return UnsupportedError(
        f"{what}: there is no code for it yet where calls decide the "
        f"size{'' if one else 's'} {', '.join(names)}; fix "
        f"{'it' if one else 'one of them, or all'} with {fixed} or sizes={{...}} ({reason})"
    )


def _decisions() -> Decisions:
    found = _CURRENT.get()
    if found is None:
        raise CompilerBug("sizes that a call fixes are compared outside of `deciding`")
    return found


def surely_at_most(left: Dim, right: Dim) -> bool:
    """Whether left <= right at all sizes; False where that is not proven."""
    if isinstance(left, SymbolicDim) or isinstance(right, SymbolicDim):
        return _decisions().assumptions.at_most(left, right) is True
    return left <= right


def surely_below(left: Dim, right: Dim) -> bool:
    """Whether left < right at all sizes; False where that is not proven."""
    return surely_at_most(left + 1, right)


def at_hint(size: Any) -> Any:
    """The size in the call that code is tuned for; numbers are themselves."""
    return size.bind(_decisions().hints) if isinstance(size, SymbolicDim) else size


def largest(size: Any) -> Any:
    """The most that a size can be; numbers are themselves. CompilerBug where there is no end."""
    if not isinstance(size, SymbolicDim):
        return size
    found = _decisions().assumptions.maximum(size).value
    if found is None:
        raise CompilerBug(f"{size} has no largest value")
    return found


def larger(left: Dim, right: Dim) -> Dim:
    """A size that is neither below `left` nor below `right`: one of them where that is proven."""
    if surely_at_most(left, right):
        return right
    return left if surely_at_most(right, left) else left + right


def common_divisor(*sizes: Dim) -> int:
    """The largest number that is known to divide all sizes; 0 where all are 0."""
    from math import gcd

    return gcd(*(size if isinstance(size, int) else gcd(*_decisions().assumptions.congruence(size))
                 for size in sizes))  # fmt: skip


def surely_divides(divisor: int, size: Dim) -> bool:
    """Whether the size is a multiple of a positive number in all calls; False where that is not
    proven."""
    return common_divisor(size, divisor) == divisor


def _asker() -> str:
    """The line that has compared sizes."""
    for frame in reversed(extract_stack(limit=12)[:-3]):
        if not frame.filename.endswith(("deciding.py", "symbols.py")):
            return f"{frame.filename.rpartition('girih/')[2]}:{frame.lineno}"
    return ""
