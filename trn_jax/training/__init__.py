"""Training a GPT with a chip's arithmetic. Its parts need the `train` extra; import them by their own names, e.g. `training.run`."""
