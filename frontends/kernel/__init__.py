"""Python functions over tiles become one `kernel_call` (specs/kernel_language.md).

In: a function's source and the types of its arguments. `definition.py` holds a kernel's rules,
`trace.py` walks its source, `names.py` is what its body may call. Out: the operation. Compiling and
running live outside, in the package's `kernels.py`. Imported by `frontends/jax`,
`frontends/stablehlo`, `frontends/torch`, `girih`.
"""
