"""The history test: seeded trouble over HTTP and real processes, judged from what was written."""
