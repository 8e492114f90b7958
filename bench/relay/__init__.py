"""How fast the relay works off a backlog, beside job queues that one would use in its place."""
