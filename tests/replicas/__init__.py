"""Several replicas on one database give the result of one: `python -m tests.replicas`."""
