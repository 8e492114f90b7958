"""Every database and network call of a scenario fails once, for each N until all pass untouched."""
