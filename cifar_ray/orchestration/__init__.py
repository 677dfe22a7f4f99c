"""Ray: starting or joining a cluster, placing workers on it, and keeping a run alive.

The only room that imports Ray.
"""
