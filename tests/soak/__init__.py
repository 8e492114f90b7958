"""A day in small: the daemon under steady load and trouble, and whether anything of it grows."""
