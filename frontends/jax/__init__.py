"""JAX's exports and functions; importing.py reads them.

In: a jax.export file or a function with example arguments. Out: a module with the trees of its
inputs. Imported by `cli`, `frontends`, `girih`.
"""
