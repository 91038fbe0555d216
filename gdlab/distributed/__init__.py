"""Run beyond one process: engines of ipyparallel, gradients that meet through MPI.

from gdlab.distributed import cluster
with cluster(n=2) as four:
    study.run(1000, feed=feed, adam=1e-3, on=four)
"""

from gdlab.distributed.calibration import Calibration, calibrate
from gdlab.distributed.clusters import Cluster, Engine, cluster

__all__ = ["Calibration", "Cluster", "Engine", "calibrate", "cluster"]
