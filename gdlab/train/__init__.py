"""Train a session over batches: the trainer, its callbacks, loaders and data sets."""
