"""The specifications: wire schemas, op list, numerics, bundle format; their generated code.

In: the rooms of `hlo/` and the schemas here. Out: the pages and protobuf messages. Imported by name
alone.
"""
