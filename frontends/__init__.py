"""Readers of other people's programs: each folder turns one kind of export into an `hlo.Module`.

In: a file, bytes, text or a framework's own object. Out: a verified module, or all that blocks its
import, with places and remedies. Imported by `cli`, `girih`.
"""
