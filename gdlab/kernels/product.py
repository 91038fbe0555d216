"""Write the beginning of every kernel of a matrix product: its variables, and the entry point."""

from __future__ import annotations

from dataclasses import dataclass

from gdlab.base.types import DType
from gdlab.kernels.pieces import read_part
from gdlab.plan.dispatch import Matmul

FLAT = "(group.z * groups.y + group.y) * groups.x + group.x"
MAIN = """fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {"""


@dataclass(frozen=True, slots=True)
class Product:
    """A product and its variables: `a` and `b` name bindings, which hold vec4 where `wide_a`, `wide_b`, `wide_out`;
    `blocks_b`: four steps of a column of b are decoded together, `{b}_four(k, column)`; `weight` and `wide_weight` are
    those of the norm of a's rows; of a dual product `dual` is the second factor, read as `b`, both of `dtype`, and
    `dual_rows` its rows, where they are not a."""

    p: Matmul
    a: str
    b: str
    wide_a: bool
    wide_b: bool
    wide_out: bool
    blocks_b: bool = False
    weight: str = ""
    wide_weight: bool = False
    dual: str = ""
    dual_rows: str = ""
    dtype: DType = DType.f32

    @property
    def node(self) -> int:
        """Id of the node that the product computes."""
        return self.p.node


def aligned(p: Matmul) -> tuple[bool, bool, bool]:
    """Return whether a, b and the result can be read and written four neighbours at a time."""
    return (p.k if p.a == "mk" else p.m) % 4 == 0, (p.n if p.b == "kn" else p.k) % 4 == 0, p.n % 4 == 0


def side_read(side: str) -> str:
    """Return the part of the work that reads operand a or b: operand 0 or 1 of the dispatch."""
    return read_part("ab".index(side))


def k_comes_last(p: Matmul, side: str) -> bool:
    """Return whether the steps of operand a or b lie side by side in memory."""
    return p.a == "mk" if side == "a" else p.b == "nk"
