"""The phases of a run's wall time."""

PHASES = ("startup", "data", "training", "evaluation", "checkpoint")
"""What the clock tells apart; time in none of them is ``other``."""
