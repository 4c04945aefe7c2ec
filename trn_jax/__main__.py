"""`python -m trn_jax`: the command line where no `trn-jax` is on the path."""

from trn_jax.cli import main

if __name__ == "__main__":
    main()
