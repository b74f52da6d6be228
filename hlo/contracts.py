"""The contract of a kernel: what its writer says about cutting it, in the words of an einsum.

    b s h d, b t h d -> b s h d; replicate={t}
    m k, k n -> m n; reduction={k}
    m k -> m; reduction=max{k}
    s c, w c -> s c; halo={s: 1 1}; multiple={s: 16}; min_local={s: 64}

For each array, for each dim a name, or `_` for a dim that cannot be cut. Along a name that the
results hold, every part is computed for itself. Names in `reduction` are folded: the results of
parts are summed (`max`, `min`: the largest, the least is taken). Names that operands alone hold
have to be listed in `reduction` or `replicate`; those listed in `replicate` are never cut.

Along a name in `halo` the kernel runs on a part with so many elements before and behind it, zeros
beyond the arrays' ends, and the part alone of its results is taken. A part is cut where its size is
a multiple of what `multiple` says and at least what `min_local` says; such parts are all equal.

A tile function without a contract has the one that follows from its windows (`kernel_windows.py`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .errors import UserError
from .factors import Dims, Factor, FactorBuilder, FactorKind, Factors, factor_name
from .graph import Op, Value
from .kernel_windows import contract_of, walks
from .sharding import REDUCTIONS, SUM

_OPTION = re.compile(r"(\w+)=(\w*)\{([\w ,:]*)\}")
_FORMS = (
    "reduction={k}, reduction=max{k}, replicate={k}, halo={k: 1 1}, multiple={k: 16} or "
    "min_local={k: 64}"
)


def contract_text(o: Op) -> str:
    """The contract of a kernel's call, said or found; "" for none."""
    if o.sharding or o.name != "kernel_call":
        return str(o.sharding)
    return contract_of(o)


def call_factors(o: Op) -> Factors | None:
    """The factors of a kernel's call; None without a contract."""
    text = contract_text(o)
    return contract_factors(o, text) if text else None


def contract_factors(o: Op, text: str) -> Factors:
    """The factors that a contract says; UserError where it does not fit the call `o`."""
    arrays, *options = (part.strip() for part in text.split(";"))
    sides = arrays.split("->")
    if len(sides) != 2:
        raise _broken(o, text, "it is names of operands' dims, `->`, names of results' dims")
    operands = _tensors(o, text, sides[0], o.operands, "operands")
    results = _tensors(o, text, sides[1], o.results, "results")
    sizes = _sizes(o, text, [*operands, *results])
    kinds = _kinds(o, text, options, sizes)
    held_by_results = {name for names in results for name in names}
    rule = FactorBuilder(o)
    for name, size in sizes.items():
        factor = kinds.get(name, Factor(1))._replace(size=size)
        if name not in held_by_results and factor.kind is FactorKind.PASS:
            raise _broken(o, text, f"no result holds '{name}': list it in reduction or replicate")
        if name not in held_by_results and factor.kind is FactorKind.PERMUTATION:
            raise _broken(o, text, f"no result holds '{name}', which has a halo")
        if name in held_by_results and factor.kind is FactorKind.REDUCTION:
            raise _broken(o, text, f"a result holds '{name}', which is said to be folded")
        places = (
            {n: names.index(name) for n, names in enumerate(side) if name in names}
            for side in (operands, results)
        )
        rule.add(factor, *places)
    return rule.build()


def contract_names(o: Op, text: str) -> list[str]:
    """The names of a contract's dims, in the order of their factors; those of size 1 have none."""
    operands, results = text.partition(";")[0].split("->")
    tensors = _tensors(o, text, operands, o.operands, "operands")
    tensors += _tensors(o, text, results, o.results, "results")
    return [name for name, size in _sizes(o, text, tensors).items() if size != 1]


def rule_contract(rule: Factors) -> str:
    """The contract that says what a rule says; "" for one whose dims hold several factors. Factors
    that need other parts' elements, of which a rule does not say how many, are not cut."""
    if any(len(held) > 1 for dims in rule.tensors for held in dims):
        return ""

    def side(tensors: Sequence[Dims]) -> str:
        return ", ".join(
            " ".join(factor_name(*held) if held else "_" for held in dims) for dims in tensors
        )

    whole = (FactorKind.REPLICATE, FactorKind.PERMUTATION)
    held_by_results = {n for dims in rule.results for held in dims for n in held}
    kept = [n for n, f in enumerate(rule.factors) if f.kind in whole]
    folded = rule.of_kind(FactorKind.REDUCTION)
    kept += [n for n in range(len(rule.factors)) if n not in {*held_by_results, *kept, *folded}]
    options = (("reduction", folded), ("replicate", kept))
    said = [f"{word}={{{', '.join(map(factor_name, n))}}}" for word, n in options if n]
    return "; ".join((f"{side(rule.operands)} -> {side(rule.results)}", *said))


def require_contract(o: Op) -> None:
    """UserError for a kernel's call whose operands are to be cut, where the kernel does not say
    what that means."""
    if contract_text(o):
        return
    raise UserError(
        f"{o.place}kernel '{o.kernel}' has no contract, so that its operands cannot be cut among "
        "devices; give it sharding='m k, k n -> m n; reduction={k}' with names for its dims, or "
        "constrain its operands to be whole: girih.shard(x, None)"
    )


def _tensors(o: Op, text: str, side: str, values: tuple[Value, ...], what: str) -> list[list[str]]:
    """For each tensor the names of its dims."""
    tensors = [part.split() for part in side.split(",")] if side.strip() or values else []
    if len(tensors) != len(values):
        raise _broken(o, text, f"it has {len(tensors)} {what}, the call {len(values)}")
    for names, value in zip(tensors, values, strict=True):
        if len(names) != value.rank:
            raise _broken(o, text, f"`{' '.join(names)}` is {len(names)} dims of {value.type}")
        for name in names:
            if not name.isidentifier():
                raise _broken(o, text, f"'{name}' is no name of a dim")
            if name != "_" and names.count(name) > 1:
                raise _broken(o, text, f"'{name}' is two dims of one array")
    return tensors


def _sizes(o: Op, text: str, tensors: list[list[str]]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for names, value in zip(tensors, (*o.operands, *o.results), strict=True):
        for name, size in zip(names, value.dims, strict=True):
            if name != "_" and sizes.setdefault(name, size) != size:
                raise _broken(o, text, f"'{name}' is {sizes[name]} and {size}")
    return sizes


def _kinds(o: Op, text: str, options: list[str], sizes: dict[str, int]) -> dict[str, Factor]:
    """What the options say of names."""
    kinds: dict[str, Factor] = {}
    limits: list[tuple[str, str, int]] = []
    for option in options:
        found = _OPTION.fullmatch(option)
        if found is None or found[1] not in (*_KINDS, *_LIMITS):
            raise _broken(o, text, f"`{option}` is not {_FORMS}")
        word, reduction, listed = found.groups()
        reduction = reduction or SUM
        if reduction not in (REDUCTIONS if word == "reduction" else (SUM,)):
            raise _broken(o, text, f"'{reduction}' is none of {', '.join(REDUCTIONS)}")
        for name, numbers in _entries(o, text, option, listed, _NUMBERS[word]):
            if name not in sizes:
                raise _broken(o, text, f"'{name}' is no dim; there are {', '.join(sizes)}")
            if word in _LIMITS:
                if (name, word) in ((one, other) for one, other, _ in limits):
                    raise _broken(o, text, f"'{name}' is listed twice in {word}")
                limits.append((name, word, numbers[0]))
                continue
            if name in kinds:
                raise _broken(o, text, f"'{name}' is listed twice")
            halo = (numbers[0], numbers[1]) if word == "halo" else (0, 0)
            kinds[name] = Factor(1, _KINDS[word], reduction=reduction, halo=halo)
    for name, word, number in limits:
        known = kinds.get(name, Factor(1))
        if known.kind is FactorKind.REPLICATE:
            raise _broken(o, text, f"'{name}' is never cut, and {word} says how its parts are")
        kinds[name] = known._replace(**{_LIMITS[word]: number})
    return kinds


_KINDS = {
    "reduction": FactorKind.REDUCTION,
    "replicate": FactorKind.REPLICATE,
    "halo": FactorKind.PERMUTATION,
}
_LIMITS = {"multiple": "multiple", "min_local": "least"}
_NUMBERS = {"reduction": 0, "replicate": 0, "halo": 2, "multiple": 1, "min_local": 1}
"""How many numbers stand behind each name of an option."""


def _entries(
    o: Op, text: str, option: str, listed: str, count: int
) -> list[tuple[str, tuple[int, ...]]]:
    """The names that an option lists, each with its numbers."""
    if not count:
        return [(name, ()) for name in listed.replace(",", " ").split()]
    found: list[tuple[str, tuple[int, ...]]] = []
    for entry in listed.split(","):
        name, _, rest = entry.partition(":")
        numbers = rest.split()
        if len(numbers) != count or not all(number.isdecimal() for number in numbers):
            raise _broken(o, text, f"`{option}` is not {_FORMS}")
        found.append((name.strip(), tuple(map(int, numbers))))
        if count == 1 and not found[-1][1][0] or count == 2 and not any(found[-1][1]):
            raise _broken(o, text, f"`{option}` says nothing: its numbers are from 1 on")
    return found


def _broken(o: Op, text: str, reason: str) -> UserError:
    return UserError(f"{o.place}{o.name} '{o.kernel}': the contract `{text}` cannot hold: {reason}")


def check_windows(o: Op) -> None:
    """UserError where the contract of a tile function says what its windows do not allow: parts
    that read elements of others without a halo, dims that are cut without those beside them.

    o: a `kernel_call` with a contract.
    """
    text = str(o.sharding)
    factors = contract_factors(o, text)
    names = contract_names(o, text)
    for walk in walks(o):
        held = {factors.tensors[memory][dim] for memory, dim in walk.places.items()}
        for number in sorted({number for dims in held for number in dims}):
            factor, name = factors.factors[number], _name(names, number)
            if factor.kind is FactorKind.REPLICATE:
                continue
            if held != {(number,)}:
                raise _broken(
                    o, text, f"tiles walk along '{name}' and along other dims at once: give these "
                    f"the same name, or list '{name}' in replicate"
                )  # fmt: skip
            low, high = walk.halo
            if low > factor.halo[0] or high > factor.halo[1]:
                raise _broken(
                    o, text, f"tiles read {low} elements before and {high} behind their own along "
                    f"'{name}': say halo={{{name}: {low} {high}}}, or list it in replicate"
                )  # fmt: skip


def _name(names: Sequence[str], number: int) -> str:
    """Of a factor; those that nothing names are behind the others."""
    return names[number] if number < len(names) else "_"
