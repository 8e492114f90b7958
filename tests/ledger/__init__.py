"""The one transaction: stories for each cell of its tables, and what holds under concurrency."""
