"""A primary is killed and its standby takes over under load: `python -m tests.failover`."""
