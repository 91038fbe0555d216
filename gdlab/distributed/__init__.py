"""Clusters of engines, sweeps over many runs, and predictions of how runs scale. Only this room imports ipyparallel."""
