"""What each released StableHLO can say: forms of operations, types, bytecode formats.

A version is a pair (major, minor); patch releases say the same as their minor one. Taken from
StableHLO 1.20.0: `VhloOps.td`, `VhloTypes.td`, `VhloAttrs.td`, `VhloToVersion.cpp`, `Version.cpp`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from ...hlo.errors import UserError
from .. import tree
from .vhlo_table import ATTRIBUTES

Version = tuple[int, int]

OLDEST: Version = (0, 9)
STABLE: Version = (1, 0)
NEWEST: Version = (1, 20)
_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?")


def parse_version(text: str) -> Version:
    """'1.9' or '1.9.3' -> (1, 9); UserError for what is no released version."""
    match = _VERSION.fullmatch(text.removeprefix("v"))
    version = (int(match[1]), int(match[2])) if match else None
    released = version is not None and (
        (version[0] == 0 and 9 <= version[1] <= 20) or STABLE <= version <= NEWEST
    )
    if version is None or not released:
        raise UserError(
            f"'{text}' is no version of StableHLO that girih writes: 0.9.0 to 0.20.0, and "
            f"{version_text(STABLE)} to {version_text(NEWEST)}"
        )
    return version


def version_text(version: Version) -> str:
    """(1, 9) -> '1.9.0'."""
    return f"{version[0]}.{version[1]}.0"


class OperationForm(NamedTuple):
    """One form of an operation, and the versions that have it."""

    name: str
    first: Version
    last: Version

    @property
    def attributes(self) -> tuple[str, ...]:
        """Their names, sorted: the order in which bytecode stores them."""
        return ATTRIBUTES[self.name]


_SINCE = """
all_gather_v2 1.5  all_reduce_v2 1.5  all_to_all_v2 1.5  async_done_v1 1.15  async_start_v1 1.15
cbrt_v2 1.10  collective_broadcast_v1 0.16  collective_broadcast_v2 1.20  collective_reduce_v1 1.19
composite_v1 0.19  composite_v2 1.14  cosine_v2 1.10  custom_call_v2 1.18  dot_general_v2 1.6
dynamic_conv_v2 0.20  dynamic_gather_v2 1.1  exponential_minus_one_v2 1.10  exponential_v2 1.9
gather_v2 1.1  log_plus_one_v2 1.10  log_v2 1.10  logistic_v2 1.10  recv_v2 1.12  rsqrt_v2 1.10
scatter_v2 1.1  send_v2 1.12  sine_v2 1.10  sqrt_v2 1.10  tan_v1 1.4  tan_v2 1.10  tanh_v2 1.10
"""
"""Forms that came later than the oldest version; an older form ends where the next begins."""

_TYPES_SINCE = """
i2 1.2  ui2 1.2  f8E4M3FNUZ 0.10  f8E5M2FNUZ 0.10  f8E4M3B11FNUZ 0.11  f8E4M3 1.7  f8E3M4 1.7
f4E2M1FN 1.8  f6E2M3FN 1.8  f6E3M2FN 1.8  f8E8M0FNU 1.8  tf32 1.6  none 1.6
"""


def _pairs(words: str) -> dict[str, Version]:
    items = words.split()
    found: dict[str, Version] = {}
    for name, version in zip(items[::2], items[1::2], strict=True):
        major, _, minor = version.partition(".")
        found[name] = int(major), int(minor)
    return found


def _read_forms() -> dict[str, tuple[OperationForm, ...]]:
    since = _pairs(_SINCE)
    found: dict[str, list[OperationForm]] = {}
    for name in sorted(ATTRIBUTES):
        base, _, _ = name.rpartition("_v")
        first = since.get(name, OLDEST)
        forms = found.setdefault(base, [])
        if forms:
            forms[-1] = forms[-1]._replace(last=before(first))
        forms.append(OperationForm(name, first, NEWEST))
    return {base: tuple(forms) for base, forms in found.items()}


def before(version: Version) -> Version:
    """The released version before this one."""
    major, minor = version
    return (major, minor - 1) if minor else (major - 1, 20)


FORMS: dict[str, tuple[OperationForm, ...]] = _read_forms()
"""Operation without its prefix ("gather") -> its forms, oldest first."""

_TYPES = _pairs(_TYPES_SINCE)
_PER_AXIS: Version = (0, 18)
_BUFFERS: Version = (1, 13)
_FUTURES: Version = (1, 15)
MESHES: Version = (1, 16)
_TYPED_CALLS: Version = (1, 3)
_FUTURE_CALLS: Version = (1, 17)
_MIXED_REDUCTIONS: Version = (0, 17)
_REDUCTIONS = (
    "all_reduce",
    "reduce",
    "reduce_scatter",
    "reduce_window",
    "scatter",
    "select_and_scatter",
)


def form_at(base: str, version: Version) -> OperationForm | None:
    """The form that the version has; None where it has none."""
    for form in FORMS.get(base, ()):
        if form.first <= version <= form.last:
            return form
    return None


def bytecode_format(version: Version) -> int:
    """The number of MLIR's bytecode format that the version wrote."""
    for first, number in (((0, 15), 6), ((0, 14), 4), ((0, 12), 3), ((0, 10), 1)):
        if version >= first:
            return number
    return 0


def type_since(kind: tree.Type) -> Version:
    """The first version that has the type."""
    match kind:
        case str():
            return _TYPES.get(kind, OLDEST)
        case tree.Tensor(_, element) | tree.Unranked(element):
            return type_since(element)
        case tree.Buffer(_, element):
            return max(_BUFFERS, type_since(element))
        case tree.Complex(element):
            return type_since(element)
        case tree.Quantized():
            inner = max(type_since(kind.storage), type_since(kind.expressed))
            return inner if kind.axis is None else max(inner, _PER_AXIS)
        case tree.Tuple(types):
            return max(map(type_since, types), default=OLDEST)
        case tree.Future(types):
            return max([_FUTURES, *map(type_since, types)])
        case tree.FunctionType(inputs, results):
            return max(map(type_since, (*inputs, *results)), default=OLDEST)
    return OLDEST


class VersionNeed(NamedTuple):
    """What of an operation is not in every version, and the first version that has it."""

    what: str
    since: Version


def _element(kind: tree.Type) -> tree.Type:
    return kind.element if isinstance(kind, tree.Tensor) else kind


def needs(
    base: str, given: Iterable[str], operation: tree.Operation, facts: dict[str, Any]
) -> list[VersionNeed]:
    """What the operation needs beyond the oldest version.

    given: its attributes that differ from their defaults; facts: all its attributes.
    """
    found: list[VersionNeed] = []
    forms = FORMS[base]
    if forms[0].first > OLDEST:
        found.append(VersionNeed("the operation", forms[0].first))
    last = forms[-1]
    for key in given:
        since = next((form.first for form in forms if key in form.attributes), None)
        if since is not None and since > forms[0].first and key in last.attributes:
            found.append(VersionNeed(f"'{key}'", since))
    single = base in ("all_gather", "all_reduce", "all_to_all", "collective_broadcast")
    if single and len(operation.results) != 1:
        found.append(VersionNeed("several operands", last.first))
    if base == "composite" and operation.regions:
        found.append(VersionNeed("regions", last.first))
    if base == "custom_call":
        if facts.get("api_version") == 4:
            found.append(VersionNeed("the typed calling convention", _TYPED_CALLS))
        if any(isinstance(value.type, tree.Future) for value in operation.operands):
            found.append(VersionNeed("futures as operands", _FUTURE_CALLS))
    if base in _REDUCTIONS and operation.operands:
        elements = [_element(value.type) for value in operation.operands[: len(operation.results)]]
        if any(e != _element(r.type) for e, r in zip(elements, operation.results, strict=False)):
            found.append(VersionNeed("a result of another element type", _MIXED_REDUCTIONS))
    groups = facts.get("replica_groups")
    if isinstance(groups, tree.Structured):
        found.append(VersionNeed("replica groups by mesh axes", MESHES))
    return found
