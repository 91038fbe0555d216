"""Define by run: `EagerSession` computes every op when it is written, and differentiates what ran."""

from gdlab.eager.export import TapeExport
from gdlab.eager.grads import DeviceGradMap, Grads
from gdlab.eager.leaves import NatRef, NatVecRef, Param
from gdlab.eager.memory import AllocatorStats, AnyBuffer
from gdlab.eager.options import Options
from gdlab.eager.session import EagerSession
from gdlab.eager.steps import Adadelta, AdaGrad, Adam, AdamW, LaProp, Momentum, RmsProp, Sgd
from gdlab.eager.tape import Tape, TensorRef

__all__ = [
    "AdaGrad",
    "Adadelta",
    "Adam",
    "AdamW",
    "AllocatorStats",
    "AnyBuffer",
    "DeviceGradMap",
    "EagerSession",
    "Grads",
    "LaProp",
    "Momentum",
    "NatRef",
    "NatVecRef",
    "Options",
    "Param",
    "RmsProp",
    "Sgd",
    "Tape",
    "TapeExport",
    "TensorRef",
]
