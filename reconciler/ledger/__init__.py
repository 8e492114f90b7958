"""The one transaction: claim, guard, facts and changes, effects; its tables and its SQL."""
