"""Define by run: `EagerSession` computes every op when it is written, and differentiates what ran."""

from gdlab.base.errors import EagerError
from gdlab.eager.convert import FloatConv, HostOnlyConv, TensorConv, register_conv
from gdlab.eager.eager_options import Options
from gdlab.eager.eager_session import EagerSession
from gdlab.eager.grads import DeviceGradMap, Grads
from gdlab.eager.parameter_steps import Adadelta, AdaGrad, Adam, AdamW, LaProp, Momentum, RmsProp, Sgd
from gdlab.eager.params import NatRef, NatVecRef, Param
from gdlab.eager.references import AllocatorStats, AnyBuffer
from gdlab.eager.rng import RngState, split_rng
from gdlab.eager.rules import rule
from gdlab.eager.shapes import axis_map_array, dims_array
from gdlab.eager.tape import Tape, TensorRef
from gdlab.eager.tape_as_graph import TapeExport

__all__ = [
    "AdaGrad",
    "Adadelta",
    "Adam",
    "AdamW",
    "AllocatorStats",
    "AnyBuffer",
    "DeviceGradMap",
    "EagerError",
    "EagerSession",
    "FloatConv",
    "Grads",
    "HostOnlyConv",
    "LaProp",
    "Momentum",
    "NatRef",
    "NatVecRef",
    "Options",
    "Param",
    "RmsProp",
    "RngState",
    "Sgd",
    "Tape",
    "TapeExport",
    "TensorConv",
    "TensorRef",
    "axis_map_array",
    "dims_array",
    "register_conv",
    "rule",
    "split_rng",
]


def __dir__() -> list[str]:
    return sorted(__all__)
