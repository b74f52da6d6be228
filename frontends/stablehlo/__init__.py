"""StableHLO programs, as text or as portable artifacts, read without MLIR."""
