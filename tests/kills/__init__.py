"""kill -9 of real processes under load, at every point of `reconciler.faults` and at any time."""
