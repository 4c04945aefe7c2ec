"""The subcommands of `trn-jax`, one file each."""
