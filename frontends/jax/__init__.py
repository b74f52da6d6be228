"""JAX's exports and functions; importing.py reads them."""
