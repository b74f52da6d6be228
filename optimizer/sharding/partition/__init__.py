"""From a program whose tensors have shardings to the program of one device.

In: an operation and the shardings of its values. Out: the same on one device's blocks, with what
devices send. Imported by `girih`, `optimizer/sharding`.
"""
