"""Sizes that data decide as masks: the rules of the pass `mask-bounded`, by families."""
