"""What a training would take on other machines: pure functions of what runs have measured and of a link's speed.

docs/plan.md has the assumptions, and what has been held against measured runs.
"""
