"""Programs of several processes: who runs them, and what they say to each other.

In: a plan of one process and what a launcher has set. Out: calls that walk the plan and exchange
boxes with the other processes. Imported by `cli`, `girih`, `runtime`.
"""
