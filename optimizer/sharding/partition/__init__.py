"""From a program whose tensors have shardings to the program of one device."""
