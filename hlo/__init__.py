"""The program's representation and its meaning; imports nothing else of girih."""
