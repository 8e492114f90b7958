"""A pretend provider with a store of its own, and relays that are killed while they call it."""
