"""Writes the samples beside it with jax: `python make_samples.py`, in this folder."""

import importlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

hlo: Any = importlib.import_module("jaxlib._hlo")

SOURCE = """
def step(params, x, y):
    def loss(p):
        h = jax.nn.gelu(x @ p["w1"] + p["b1"])
        h = h / (1e-3 + jnp.sqrt(jnp.mean(h * h, axis=-1, keepdims=True)))
        return jnp.mean((h @ p["w2"] - y) ** 2)
    value, gradient = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), value

def mixed(image, kernel, ids, key):
    image = jax.lax.conv_general_dilated(
        image, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    image = jax.lax.reduce_window(image, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    noise = jax.random.bernoulli(jax.random.wrap_key_data(key), 0.5, (2, 2))
    looped = jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2), (0, ids))[1]
    rows = jax.lax.scan(lambda c, r: (c + r, c), jnp.zeros(3, ids.dtype), looped)[1]
    chosen = jax.lax.cond(ids[0, 0] > 0, lambda v: v + 1, lambda v: -v, rows)
    taken = image.reshape(-1)[ids % 5].at[0].set(1)
    values, places = jax.lax.top_k(taken, 2)
    masked = jnp.where(noise, values[:2], 0)
    return masked, places, chosen, jnp.sort(taken, axis=0), jnp.argmax(rows)
"""

# The form in which TensorFlow's experimental_get_compiler_ir gives a function: names of the
# concrete function, parameters arg0.1, reshapes around the body, XLA_Args and XLA_Retvals.
TENSORFLOW = """HloModule a_inference_predict_17__.22, entry_computation_layout={(f32[2,3]{1,0}, f32[3,4]{1,0}, f32[4]{0})->f32[2,4]{1,0}}

%max_F32.15 (lhs.16: f32[], rhs.17: f32[]) -> f32[] {
  %lhs.16 = f32[] parameter(0)
  %rhs.17 = f32[] parameter(1)
  ROOT %maximum.18 = f32[] maximum(f32[] %lhs.16, f32[] %rhs.17)
}

%add_F32.21 (lhs.22: f32[], rhs.23: f32[]) -> f32[] {
  %lhs.22 = f32[] parameter(0)
  %rhs.23 = f32[] parameter(1)
  ROOT %add.24 = f32[] add(f32[] %lhs.22, f32[] %rhs.23)
}

ENTRY %a_inference_predict_17__.22 (arg0.1: f32[2,3], arg1.2: f32[3,4], arg2.3: f32[4]) -> f32[2,4] {
  %arg0.1 = f32[2,3]{1,0} parameter(0), parameter_replication={false}, metadata={op_name="XLA_Args"}
  %reshape.4 = f32[2,3]{1,0} reshape(f32[2,3]{1,0} %arg0.1)
  %arg1.2 = f32[3,4]{1,0} parameter(1), parameter_replication={false}, metadata={op_name="XLA_Args"}
  %dot.5 = f32[2,4]{1,0} dot(f32[2,3]{1,0} %reshape.4, f32[3,4]{1,0} %arg1.2), lhs_contracting_dims={1}, rhs_contracting_dims={0}, frontend_attributes={grad_x="false",grad_y="false"}, metadata={op_type="MatMul" op_name="dense/MatMul" source_file="/home/user/predict.py" source_line=12}
  %transpose.6 = f32[2,4]{1,0} transpose(f32[2,4]{1,0} %dot.5), dimensions={0,1}, metadata={op_type="MatMul" op_name="dense/MatMul"}
  %arg2.3 = f32[4]{0} parameter(2), parameter_replication={false}, metadata={op_name="XLA_Args"}
  %broadcast.7 = f32[2,4]{1,0} broadcast(f32[4]{0} %arg2.3), dimensions={1}, metadata={op_type="BiasAdd" op_name="dense/BiasAdd"}
  %add.8 = f32[2,4]{1,0} add(f32[2,4]{1,0} %transpose.6, f32[2,4]{1,0} %broadcast.7), metadata={op_type="BiasAdd" op_name="dense/BiasAdd"}
  %constant.9 = f32[] constant(-inf), metadata={op_type="Softmax" op_name="dense/Softmax"}
  %reduce.19 = f32[2]{0} reduce(f32[2,4]{1,0} %add.8, f32[] %constant.9), dimensions={1}, to_apply=%max_F32.15, metadata={op_type="Softmax" op_name="dense/Softmax"}
  %broadcast.20 = f32[2,4]{1,0} broadcast(f32[2]{0} %reduce.19), dimensions={0}
  %subtract.10 = f32[2,4]{1,0} subtract(f32[2,4]{1,0} %add.8, f32[2,4]{1,0} %broadcast.20)
  %exponential.11 = f32[2,4]{1,0} exponential(f32[2,4]{1,0} %subtract.10)
  %convert.12 = f32[2,4]{1,0} convert(f32[2,4]{1,0} %exponential.11)
  %constant.13 = f32[] constant(0)
  %reduce.25 = f32[2]{0} reduce(f32[2,4]{1,0} %convert.12, f32[] %constant.13), dimensions={1}, to_apply=%add_F32.21
  %broadcast.26 = f32[2,4]{1,0} broadcast(f32[2]{0} %reduce.25), dimensions={0}
  %divide.27 = f32[2,4]{1,0} divide(f32[2,4]{1,0} %exponential.11, f32[2,4]{1,0} %broadcast.26)
  %reshape.28 = f32[2,4]{1,0} reshape(f32[2,4]{1,0} %divide.27), metadata={op_name="XLA_Retvals"}
  %tuple.29 = (f32[2,4]{1,0}) tuple(f32[2,4]{1,0} %reshape.28), metadata={op_name="XLA_Retvals"}
  ROOT %get-tuple-element.30 = f32[2,4]{1,0} get-tuple-element((f32[2,4]{1,0}) %tuple.29), index=0, metadata={op_name="XLA_Retvals"}
}
"""  # noqa: E501


def main() -> None:
    place: dict[str, Any] = {"jax": jax, "jnp": jnp}
    exec(compile(SOURCE, "/home/user/model.py", "exec"), place)
    params = {"w1": jnp.ones((3, 8)), "b1": jnp.ones(8), "w2": jnp.ones((8, 2))}
    examples = {
        "step": (params, jnp.ones((4, 3)), jnp.ones((4, 2))),
        "mixed": (
            jnp.ones((1, 8, 8, 2)),
            jnp.ones((3, 3, 2, 4)),
            jnp.arange(6, dtype=jnp.int32).reshape(2, 3),
            jnp.zeros(2, jnp.uint32),
        ),
    }
    here = Path(__file__).resolve().parent
    options = hlo.HloPrintOptions()
    options.print_large_constants = True
    for name, arguments in examples.items():
        donated = (0,) if name == "step" else ()
        lowered: Any = jax.jit(place[name], donate_argnums=donated).lower(*arguments)
        module = lowered.compiler_ir("hlo").get_hlo_module()
        optimized = lowered.compile().runtime_executable().hlo_modules()[0]
        for kind, found in (("", module), ("_optimized", optimized)):
            data = found.as_serialized_hlo_module_proto()
            (here / f"{name}{kind}.hlo.pb").write_bytes(data)
            if not (name == "mixed" and kind):  # large, and says nothing that the others do not
                (here / f"{name}{kind}.hlo").write_text(found.to_string(options))
    module = hlo.hlo_module_from_text(TENSORFLOW)
    (here / "tensorflow_form.hlo.pb").write_bytes(module.as_serialized_hlo_module_proto())


if __name__ == "__main__":
    main()
