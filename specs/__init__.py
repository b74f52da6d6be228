"""The specifications: wire schemas, op list, numerics, bundle format; their generated code."""
