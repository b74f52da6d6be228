"""The optimizer: licensed rules, passes and plans; every pass is a function Module -> Module.

In: a verified module, options, a machine and what a target can do. Out: a module of kernels, its
schedule and a plan of steps and memory. Imported by `backends`, `cli`, `girih`.
"""
