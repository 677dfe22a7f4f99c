"""Reports: what a sweep's runs came to, as tables, charts and words, from the tracking store alone."""

EXPORTED = ".json"
"""How the name of a file with exported runs ends; any other name is looked up in the tracking store."""
