"""A transactional outbox: entries written in your transaction, called by a relay."""
