"""The commands: their parameters and help. What they do is in modules of cli/, each imported when
its command is given.

In: parsed parameters. Out: calls of those modules. Imported by `cli`.
"""
