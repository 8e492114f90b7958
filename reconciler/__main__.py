"""`python -m reconciler` is `reconciler`."""

from reconciler.cli import main

if __name__ == "__main__":
    main(prog_name="reconciler")
