"""Programs whose processes may wait for each other for ever are refused before they run; others
are not, and the interpreter runs them to their end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.runtime.distributed import rooms

import girih
from girih.hlo.build import Builder, build_module, build_region
from girih.hlo.call_order import check_call_order
from girih.hlo.graph import Module, Value
from girih.hlo.placement import WHOLE
from girih.hlo.sharding import Mesh, parse_sharding
from girih.hlo.types import F32, I32, TensorType

COUNT = 4
KIND, SCALAR, NUMBER = TensorType((4,), F32), TensorType((), F32), TensorType((), I32)
OWN, HALF, ALL = 1, 2, 4  # members of the groups in which a value is equal, or that communicate
GROUPS = {
    HALF: ((0, 1), (3, 2)),
    ALL: ((0, 1, 2, 3),),
}


def all_reduce(b: Builder, x: Value, level: int, name: str = "add") -> Value:
    scalar = x.tensor.with_dims(())
    body = build_region([scalar, scalar], lambda b, x, y: [b(name, x, y)])
    facts = {"replica_groups": GROUPS[level], "channel_id": 1, "use_global_device_ids": True}
    return b.op("all_reduce", [x], facts, (body,)).result


def talk(b: Builder, x: Value, level: int, kind: int) -> Value:
    """x after one communication among groups of that size."""
    groups = GROUPS[level]
    if kind == 0:
        return all_reduce(b, x, level, "maximum")
    if kind == 1:
        pairs = tuple((g[n], g[(n + 1) % len(g)]) for g in groups for n in range(len(g)))
        return b("collective_permute", x, source_target_pairs=pairs, channel_id=1)
    if kind == 2:
        boxes = tuple((g[0], member, (0,), (1,), (3,)) for g in groups for member in g)
        return b("exchange", x, type=KIND, transfers=boxes, channel_id=1)
    cut = {"split_dimension": 0, "concat_dimension": 0, "split_count": level}
    facts = {**cut, "replica_groups": groups, "channel_id": 1}
    return b.op("all_to_all", [x], facts).result


class Generator:
    """Random programs. `wrong`: which of the loops and branches that communicate is decided by what
    is equal in smaller groups than it communicates among; -1: none."""

    def __init__(self, seed: int, wrong: int = -1) -> None:
        self.random, self.wrong = np.random.default_rng(seed), wrong
        self.controls = 0

    def module(self) -> Module:
        def body(b: Builder, x: Value) -> Sequence[Value]:
            return [self.block(b, x, ALL, 3)]

        return replace(build_module([KIND], body), attributes={"mhlo.num_partitions": COUNT})

    def scalar(self, b: Builder, x: Value, level: int, wrong: bool) -> Value:
        """A number that is equal in groups of that size, or, where it is wrong, in smaller ones."""
        if wrong:
            number = b("partition_id")
            if level == ALL and self.random.integers(2):
                number = b("divide", number, b.constant(np.uint32(2)))
            return b.convert(number, F32)
        if level == OWN:
            if self.random.integers(2):
                return b.convert(b("partition_id"), F32)
        else:
            x = all_reduce(b, x, level)
        part = b("slice", x, start_indices=(1,), limit_indices=(2,), strides=(1,))
        return b.reshape(part, ())

    def block(self, b: Builder, x: Value, inside: int, depth: int) -> Value:
        for _ in range(self.random.integers(1, 4)):
            what = self.random.integers(5 if depth else 3)
            if what == 0:
                x = b("add", x, b("multiply", x, x))
            elif what <= 2:
                levels = [level for level in (HALF, ALL) if level <= inside]
                if levels:
                    x = talk(b, x, int(self.random.choice(levels)), int(self.random.integers(4)))
            else:
                x = self.control(b, x, inside, depth, what == 3)
        return x

    def control(self, b: Builder, x: Value, inside: int, depth: int, loop: bool) -> Value:
        levels = [level for level in (OWN, HALF, ALL) if level <= inside]
        level = int(self.random.choice(levels))
        number = self.scalar(b, x, level, level > OWN and self.controls == self.wrong)
        self.controls += level > OWN
        above = b.compare("GT", number, b.constant(np.float32(1)))

        def inner(b: Builder, y: Value) -> Value:
            if level > OWN:
                y = talk(b, y, level, int(self.random.integers(4)))
            return self.block(b, y, level, depth - 1)

        if not loop:
            regions = [build_region([], lambda b: [inner(b, x)]), build_region([], lambda b: [x])]
            return b.op("if", [above], {}, regions, [KIND]).result
        often = b.convert(above, I32)

        def more(b: Builder, i: Value, y: Value) -> Sequence[Value]:
            return [b.compare("LE", i, often)]

        def step(b: Builder, i: Value, y: Value) -> Sequence[Value]:
            return [b("add", i, b.constant(np.int32(1))), inner(b, y)]

        kinds = [NUMBER, KIND]
        regions = [build_region(kinds, more), build_region(kinds, step)]
        return b.op("while", [b.constant(np.int32(0)), x], {}, regions).results[1]


def test_a_thousand_random_programs_and_their_mutants():
    """What is decided by equal values passes, and runs to its end; what is not is refused."""
    mutants = 0
    for seed in range(1000):
        generator = Generator(seed)
        module = generator.module()
        check_call_order(module)
        if seed % 10 == 0:
            given = np.random.default_rng(seed).standard_normal((COUNT, 4)).astype(np.float32)
            with np.errstate(all="ignore"):
                girih.interpret_parallel(module, [[row] for row in given])
        if generator.controls:
            wrong = seed % generator.controls
            with pytest.raises(girih.UserError, match="may differ there"):
                check_call_order(Generator(seed, wrong).module())
            mutants += 1
    assert mutants > 400


def test_what_waits_for_ever_in_the_interpreter_is_refused():
    waited = 0
    for seed in range(300):
        module = Generator(seed, 0).module()
        given = np.random.default_rng(seed).standard_normal((COUNT, 4)).astype(np.float32)
        try:
            with np.errstate(all="ignore"):
                girih.interpret_parallel(module, [[row] for row in given])
        except girih.UserError as error:
            assert "wait for each other for ever" in str(error)
            waited += 1
            with pytest.raises(girih.UserError, match="may differ there"):
                check_call_order(module)
    assert waited > 20


@pytest.mark.parametrize("name", [*rooms.PROGRAMS, "on_grid"])
def test_every_room_that_communicates_is_known(name):
    check_call_order(rooms.on_grid(2) if name == "on_grid" else rooms.program(name, 4))


def decided_by(make: Any, facts: Any = None, meshes: Any = None) -> Module:
    """A branch with an all-reduce over all, decided by what `make` gives."""

    def body(b: Builder, x: Value) -> Sequence[Value]:
        part = b("slice", make(b, x), start_indices=(0,), limit_indices=(1,), strides=(1,))
        above = b.compare("GT", b.reshape(part, ()), b.constant(np.float32(0)))
        regions = [
            build_region([], lambda b: [all_reduce(b, x, ALL)]),
            build_region([], lambda b: [x]),
        ]
        return [b.op("if", [above], {}, regions, [KIND]).result]

    module = build_module([KIND], body)
    main = replace(module.main, argument_attributes=({} if facts is None else facts,))
    return replace(
        module,
        functions={"main": main},
        attributes={"mhlo.num_partitions": COUNT},
        meshes=meshes or {},
    )


def gathered(b: Builder, x: Value, level: int) -> Value:
    facts = {"replica_groups": GROUPS[level], "channel_id": 1, "use_global_device_ids": True}
    return b.op("all_gather", [x], {"all_gather_dim": 0, **facts}).result


def test_what_is_equal_on_all():
    check_call_order(decided_by(lambda b, x: gathered(b, x, ALL)))
    check_call_order(decided_by(lambda b, x: all_reduce(b, gathered(b, x, HALF), ALL)))
    crossed = ((0, 3), (1, 2))  # of what both halves have, each pair has one of each

    def twice(b: Builder, x: Value) -> Value:
        facts = {"replica_groups": crossed, "channel_id": 1, "use_global_device_ids": True}
        return b.op("all_gather", [gathered(b, x, HALF)], {"all_gather_dim": 0, **facts}).result

    check_call_order(decided_by(twice))


@pytest.mark.parametrize(
    "make",
    [
        lambda b, x: x,
        lambda b, x: gathered(b, x, HALF),
        lambda b, x: talk(b, gathered_back(b, x), ALL, 1),
        lambda b, x: b("add", gathered_back(b, x), x),
        lambda b, x: b.broadcast(b.convert(b("partition_id"), F32), (4,), ()),
    ],
)
def test_what_may_differ(make):
    with pytest.raises(girih.UserError, match="all_reduce among the processes"):
        check_call_order(decided_by(make))


def gathered_back(b: Builder, x: Value) -> Value:
    """Equal in halves, of x's dims."""
    return all_reduce(b, x, HALF)


def test_blocks_of_arguments_are_equal_where_devices_hold_the_same():
    mesh = {"mesh": Mesh((("x", 2), ("y", 2)))}

    def module(sharding: str) -> Module:
        parsed = parse_sharding(sharding)
        dims = (8,) if '"' in sharding else (4,)
        whole = TensorType(dims, F32, parsed)
        return decided_by(lambda b, x: x, {WHOLE: whole}, mesh)

    check_call_order(module("<@mesh, [{}]>"))
    with pytest.raises(girih.UserError, match="may differ there"):
        check_call_order(module('<@mesh, [{"x"}]>'))


def test_a_loop_whose_values_part_is_refused():
    """They are equal at first, and the number of the process comes in with the second turn."""

    def body(b: Builder, x: Value) -> Sequence[Value]:
        kinds = [SCALAR, SCALAR, KIND]

        def more(b: Builder, bound: Value, other: Value, y: Value) -> Sequence[Value]:
            return [b.compare("LT", bound, b.constant(np.float32(3)))]

        def step(b: Builder, bound: Value, other: Value, y: Value) -> Sequence[Value]:
            own = b.convert(b("partition_id"), F32)
            return [b("add", bound, other), own, all_reduce(b, y, ALL)]

        zero, one = b.constant(np.float32(0)), b.constant(np.float32(1))
        regions = [build_region(kinds, more), build_region(kinds, step)]
        return b.op("while", [zero, one, x], {}, regions).results[2:]

    module = replace(build_module([KIND], body), attributes={"mhlo.num_partitions": COUNT})
    with pytest.raises(girih.UserError, match="the condition of while around it may differ"):
        check_call_order(module)


def test_the_compiler_and_the_partitioner_ask():
    with pytest.raises(girih.UserError, match="may differ there"):
        girih.compile(decided_by(lambda b, x: x))
