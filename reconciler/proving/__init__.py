"""Pretend worlds to prove the product against: a sender and a destination that misbehave."""
