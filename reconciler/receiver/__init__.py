"""Webhooks in: signatures, handshakes, deliveries as events, group commit, answers."""
