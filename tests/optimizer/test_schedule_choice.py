"""How long a plan is predicted to take by each schedule, and which is taken by price."""

from __future__ import annotations

from typing import Any

import pytest

import girih
from girih.backends.nvidia import target_of
from girih.optimizer.cost.merging import ERROR
from girih.optimizer.cost.schedules import Decisions, LaunchPrice, Stretch, schedule_seconds

MACHINE = target_of("nvidia:sm_90a").machine
SORTED = """
    %s:1 = "stablehlo.sort"(%h) ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %less = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
        stablehlo.return %less : tensor<i1>
    }) {dimension = 1 : i64} : (tensor<4x32xf32>) -> tensor<4x32xf32>
"""
BRANCH = f"""module @m {{
  func.func public @main(%h: tensor<4x32xf32>, %p: tensor<i1>) -> tensor<4x32xf32> {{
    %r = "stablehlo.if"(%p) ({{
{SORTED}
      stablehlo.return %s#0 : tensor<4x32xf32>
    }}, {{
      %t = stablehlo.tanh %h : tensor<4x32xf32>
      stablehlo.return %t : tensor<4x32xf32>
    }}) : (tensor<i1>) -> tensor<4x32xf32>
    return %r : tensor<4x32xf32>
  }}
}}
"""
LOOP = f"""module @m {{
  func.func public @main(%x: tensor<4x32xf32>, %m: tensor<i32>) -> tensor<4x32xf32> {{
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    LIMIT
    %r:2 = stablehlo.while(%i = %zero, %h = %x) : tensor<i32>, tensor<4x32xf32>
      cond {{
        %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      }} do {{
        %j = stablehlo.add %i, %one : tensor<i32>
{SORTED}
        stablehlo.return %j, %s#0 : tensor<i32>, tensor<4x32xf32>
      }}
    return %r#1 : tensor<4x32xf32>
  }}
}}
"""


def plan_of(source: str, schedule: str = "auto") -> Any:
    options = girih.Options(schedule=schedule, cache="off")
    return girih.compile(source, target="nvidia:sm_80", options=options).plan


def test_launches_that_need_nothing_of_each_other_take_as_long_as_the_longest() -> None:
    one = LaunchPrice(1, 20e-6, 20e-6, 0.1)
    none = Decisions(0.0, 0.0, 0.0)
    apart, chain = (
        schedule_seconds([Stretch([one, one._replace(after=after)], 1.0, True)], none, MACHINE)
        for after in ((), (0,))
    )
    assert apart["graph"] < 0.7 * chain["graph"] and apart["launches"] == chain["launches"]
    full = one._replace(part=1.0)
    filled = schedule_seconds([Stretch([full, full], 1.0, True)], none, MACHINE)
    assert filled["graph"] >= 40e-6


def test_what_the_host_reads_back_costs_and_what_it_knows_does_not() -> None:
    turn = Stretch([LaunchPrice(1, 5e-6, 5e-6, 1.0)], 100.0, True)
    read = schedule_seconds([turn], Decisions(100.0, 100.0, 100.0), MACHINE)
    known = schedule_seconds([turn._replace(read=False)], Decisions(100.0, 0.0, 100.0), MACHINE)
    assert read["graph"] == known["graph"] and read["persistent"] == known["persistent"]
    assert known["host"] < known["graph"] < read["host"] <= read["launches"]


def test_a_branch_that_the_host_would_read_is_a_node_of_a_graph() -> None:
    plan = plan_of(BRANCH)
    prices = {one.schedule: one.seconds for one in plan.prices}
    assert plan.schedule == "graph" and not plan.schedule_required
    assert prices["graph"] < (1 - ERROR) * min(prices["host"], prices["launches"])
    assert list(prices.values()) == sorted(prices.values()) and len(prices) == 4


@pytest.mark.parametrize("turns", [100, None])
def test_a_loop_is_left_to_the_host(turns: int | None) -> None:
    """Which counts the turns, or which alone can stop a loop that may not end."""
    limit = f"%n = stablehlo.constant dense<{turns}> : tensor<i32>" if turns else ""
    plan = plan_of(LOOP.replace("LIMIT", limit).replace("%i, %n", "%i, %n" if turns else "%i, %m"))
    (branch,) = (one.branch_if_false for one in plan.steps if one.HasField("branch_if_false"))
    prices = {one.schedule: one.seconds for one in plan.prices}
    assert plan.schedule == "" and branch.HasField("known") == (turns is not None)
    if turns is None:
        assert prices["graph"] < (1 - ERROR) * prices["merged"]  # and yet
    else:
        assert branch.known.turns == turns and branch.known.here
        assert prices["merged"] < prices["graph"]


def test_what_is_forced_has_no_price() -> None:
    assert not plan_of(BRANCH, "host").prices
