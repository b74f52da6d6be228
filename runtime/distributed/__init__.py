"""Programs of several processes: who runs them, and what they say to each other."""
