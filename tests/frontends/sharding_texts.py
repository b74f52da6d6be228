"""StableHLO texts with shardings that JAX does not state, but Shardy reads."""

# ruff: noqa: E501
from __future__ import annotations

FORMS = {
    "priorities": """
module { sdy.mesh @mesh = <["x"=4, "y"=2, "z"=4]>
 func.func @main(%a: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}p0, {?}p2], replicated={"y"}>}) -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z":(1)2, ?}p1, {"x":(2)2}]>}) {
  %0 = stablehlo.add %a, %a {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", "z":(2)2}, {?}]>]>} : tensor<8x8xf32>
  return %0 : tensor<8x8xf32> } }
""",
    "inlined": """
module {
 func.func @main(%a: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<mesh<["x"=4, "y"=2], device_ids=[7,6,5,4,3,2,1,0]>, [{"x"}, {}]>}) -> tensor<8x8xf32> {
  %0 = sdy.sharding_constraint %a <mesh<["a"=8]>, [{"a"}, {}]> : tensor<8x8xf32>
  return %0 : tensor<8x8xf32> } }
""",
    "maximal": """
module { sdy.mesh @maximal_mesh_1 = <[], device_ids=[1]>
 sdy.mesh @mesh = <["a"=8]>
 func.func @main(%a: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@maximal_mesh_1, []>}) -> tensor<8x8xf32> {
  %0 = sdy.sharding_constraint %a <@mesh, [{"a"}, {}]> : tensor<8x8xf32>
  return %0 : tensor<8x8xf32> } }
""",
    "barrier": """
module { sdy.mesh @mesh = <["x"=4, "y"=2]>
 func.func @main(%a: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = sdy.propagation_barrier %a allowed_direction=BACKWARD : tensor<8x8xf32>
  %1 = sdy.propagation_barrier %0 allowed_direction=NONE : tensor<8x8xf32>
  sdy.sharding_group %1 group_id=21 : tensor<8x8xf32>
  %2 = sdy.reshard %1 <@mesh, [{"x"}, {}]> : tensor<8x8xf32>
  return %2 : tensor<8x8xf32> } }
""",
    "several_results": """
module { sdy.mesh @mesh = <["x"=4, "y"=2]>
 func.func @main(%a: tensor<8x8xf32>, %b: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
  %0:2 = "stablehlo.optimization_barrier"(%a, %b) {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {?}]>, <@mesh, [{?}, {?}]>]>} : (tensor<8x8xf32>, tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>)
  return %0#0, %0#1 : tensor<8x8xf32>, tensor<8x8xf32> } }
""",
    "same_result_twice": """
module { sdy.mesh @mesh = <["x"=4, "y"=2]>
 func.func @main(%a: tensor<8x8xf32>) -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}) {
  return %a, %a : tensor<8x8xf32>, tensor<8x8xf32> } }
""",
    "private": """
module { sdy.mesh @mesh = <["x"=4, "y"=2]>
 func.func @main(%a: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = call @f(%a) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32> }
 func.func private @f(%a: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}) {
  %0 = stablehlo.sine %a : tensor<8x8xf32>
  return %0 : tensor<8x8xf32> } }
""",
    "manual": """
module { sdy.mesh @mesh = <["x"=4, "y"=2]>
 func.func @main(%a: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = sdy.manual_computation(%a) in_shardings=[<@mesh, [{"x", ?}p1, {"y"}]>] out_shardings=[<@mesh, [{"x", ?}, {?}], unreduced={"y"}>] manual_axes={"x"} (%b: tensor<2x8xf32>) {
   sdy.return %b : tensor<2x8xf32> } : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32> } }
""",
    "open_while": """
module { sdy.mesh @mesh = <["x"=4, "y"=2]>
 func.func @main(%a: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %c = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %c, %x = %a) : tensor<i32>, tensor<8x8xf32> attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{"x"}, {?}]>]>}
  cond { %n = stablehlo.constant dense<3> : tensor<i32>
   %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
   stablehlo.return %p : tensor<i1> } do { %o = stablehlo.constant dense<1> : tensor<i32>
   %j = stablehlo.add %i, %o : tensor<i32>
   stablehlo.return %j, %x : tensor<i32>, tensor<8x8xf32> }
  return %0#1 : tensor<8x8xf32> } }
""",
}

NAMED = """
module { sdy.mesh @mesh = <["x"=4, "y"=2]>
 func.func @main(%a: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = sdy.named_computation<"f">(%a) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"y"}, {}]>] (%b: tensor<8x8xf32>) {
   %1 = stablehlo.sine %b : tensor<8x8xf32>
   sdy.return %1 : tensor<8x8xf32> } : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32> } }
"""

MAXIMUM = """
module { sdy.mesh @mesh = <["x"=4, "y"=2]>
 func.func @main(%a: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = sdy.sharding_constraint %a <@mesh, [{}, {}], unreduced=max{"x"}> : tensor<8x8xf32>
  return %0 : tensor<8x8xf32> } }
"""

FRONTEND = """
module attributes {mhlo.frontend_attributes = {xla.sdy.meshes = "{mesh = #sdy.mesh<[\\22x\\22=4, \\22y\\22=2]>}"}} {
 func.func @main(%a: tensor<8x8xf32> {mhlo.frontend_attributes = {xla.sdy.sharding = "#sdy.sharding<@mesh, [{\\22x\\22}, {}]>"}}) -> tensor<8x8xf32> {
  %0 = stablehlo.custom_call @Sharding(%a) {mhlo.frontend_attributes = {xla.sdy.sharding = "#sdy.sharding_per_value<[<@mesh, [{\\22y\\22}, {?}]>]>"}} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32> } }
"""


def with_argument(sharding: str) -> str:
    return f"""module {{ sdy.mesh @mesh = <["x"=4, "y"=2]>
 func.func @main(%a: tensor<8x8xf32> {{sdy.sharding = #sdy.sharding{sharding}}}) -> tensor<8x8xf32> {{
  return %a : tensor<8x8xf32> }} }}"""


def with_constraint(sharding: str) -> str:
    return f"""module {{ sdy.mesh @mesh = <["x"=4, "y"=2]>
 func.func @main(%a: tensor<8x8xf32>) -> tensor<8x8xf32> {{
  %0 = sdy.sharding_constraint %a {sharding} : tensor<8x8xf32>
  return %0 : tensor<8x8xf32> }} }}"""
