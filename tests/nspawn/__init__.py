"""Boots the shipped units for real, in systemd-nspawn: `python -m tests.nspawn`."""
