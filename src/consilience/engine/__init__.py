"""Runs algorithms: cohorts, batches, executors, rounds, checkpoints."""
