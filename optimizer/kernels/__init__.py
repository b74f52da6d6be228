"""Choices: in which form the contractions of a program become kernels of a target.

In: a fusion around one product or convolution, a machine with its prices (`../cost/`) and what the
target can do (`backends/capabilities.py`). Out: the fusions that do the same: copies of operands,
convolutions as products over their taps, parts of a sum and what adds them. They are operations of
the module, so that the plan owns the memory between them. `choose.py` is asked first. Imported by
`optimizer`.
"""
