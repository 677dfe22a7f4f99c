"""How a run and a sweep are described, and the checks of their values."""
