"""Readers of other people's programs: each folder turns one kind of export into an `hlo.Module`."""
