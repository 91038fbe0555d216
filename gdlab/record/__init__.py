"""Encode ops one by one into buffers of the caller's, inspect and change the list of dispatches, and submit it:
`GraphExecutor("cpu").begin_recorded()`."""

from gdlab.base.errors import ExpertIndexError, GraphEncodeError, ReorderViolation, SessionConsumedError
from gdlab.plan.order import ConflictTracker
from gdlab.record.buffers import Buffer
from gdlab.record.compute_graph import ComputeGraph, Node
from gdlab.record.encoder import CommandEncoder
from gdlab.record.executor import GraphExecutor
from gdlab.record.finish import PendingWork
from gdlab.record.graph_session import GraphSession
from gdlab.record.list_report import Report
from gdlab.record.node_times import ListProfile, NodeTime
from gdlab.record.products import GgmlQuantizedMatmulIdParams, GgmlQuantizedMatmulParams, QuantizedMatmulParams
from gdlab.record.scaled_attention import FlashAttnVecParams, SdpaParams

__all__ = [
    "Buffer",
    "CommandEncoder",
    "ComputeGraph",
    "ConflictTracker",
    "ExpertIndexError",
    "FlashAttnVecParams",
    "GgmlQuantizedMatmulIdParams",
    "GgmlQuantizedMatmulParams",
    "GraphEncodeError",
    "GraphExecutor",
    "GraphSession",
    "ListProfile",
    "Node",
    "NodeTime",
    "PendingWork",
    "QuantizedMatmulParams",
    "ReorderViolation",
    "Report",
    "SdpaParams",
    "SessionConsumedError",
]
