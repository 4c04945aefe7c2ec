"""What `trn-jax profile` is made of: workloads named on a command line, and reports side by side."""
