"""Python functions over tiles become one `kernel_call` (specs/kernel_language.md).

`definition.py` holds a kernel's rules, `trace.py` walks its source, `names.py` is what its body may
call. Compiling and running live outside, in the package's `kernels.py`.
"""
