"""The NVIDIA backend: tile functions and fusions become PTX."""
