"""Reports: what a sweep's runs came to, as tables, charts and words, from the tracking store alone."""
