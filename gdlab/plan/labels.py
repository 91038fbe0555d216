"""Name dispatches in tables, profiles and timelines: `FusedMatMulAdd[32x128x784] + relu`."""

from __future__ import annotations

from collections.abc import Sequence

from gdlab.base.words import whole
from gdlab.plan.dispatch import Arg, Matmul, PointOp, Reduce

_WORDS = {
    "matmul": "MatMul", "at": "AT", "bt": "BT", "swiglu": "SwiGLU", "u32": "U32",
}  # fmt: skip
_SHOWN = 5  # names in a label; the rest is counted


def display(op: str) -> str:
    """Return the display name of an op: `fused_matmul_at_add` → `FusedMatMulATAdd`."""
    return "".join(_WORDS.get(word, word.capitalize()) for word in op.split("_"))


def names(ops: Sequence[str], separator: str) -> str:
    """Join the first few names, and the number of further ones."""
    more = len(ops) - _SHOWN
    return separator.join(ops[:_SHOWN]) + (f"{separator}{more} more" if more > 0 else "")


def pointwise(chain: Sequence[PointOp], size: int) -> str:
    """Label a pointwise dispatch: `Pointwise(mul,sigmoid)[4096]`."""
    return f"Pointwise({names([p.op for p in chain], ',')})[{size}]"


def matmul(p: Matmul, via: str, norm: str = "") -> str:
    """Label a product: `MatMulAT[784x128x32]`; one that came from a fused op bears its name; `norm` is the op that it
    computes as it reads: `MatMul(rms_norm)[1x128x128]`; of two products: `DualMatMul[1x512x128]`."""
    plain = "MatMul" + ("AT" if p.a == "km" else "") + ("BT" if p.b == "nk" else "")
    inside = f"({norm})" if norm else ""
    two = "" if p.dual is None else "Dual"
    return f"{two}{display(via) if 'matmul' in via else plain}{inside}[{p.m}x{p.n}x{p.k}]"


def reduce(r: Reduce, chain: Sequence[PointOp]) -> str:
    """Label a fold: `SumRows[64x128]` folds rows, `SumInner[64x10]` the last axis, `SumAll(mul)[640]` everything."""
    name = "Mean" if r.combine == "sum" and r.finish != "acc" else r.combine.capitalize()
    inside = f"({names([p.op for p in chain], ',')})" if chain else ""
    if r.outer == r.inner == 1:
        return f"{name}All{inside}[{r.length}]"
    if r.outer == 1:
        return f"{name}Rows{inside}[{r.length}x{r.inner}]"
    if r.inner == 1:
        return f"{name}Inner{inside}[{r.outer}x{r.length}]"
    return f"{name}{inside}[{r.outer}x{r.length}x{r.inner}]"


def custom(op: str, chain: Sequence[PointOp], extents: str) -> str:
    """Label a kernel with a shader file: `RmsNorm[512x1024]`; with the ops before it `RmsNorm(add)[512x1024]`."""
    inside = f"({names([p.op for p in chain], ',')})" if chain else ""
    return f"{display(op)}{inside}[{extents}]"


def update(rule: str, sizes: Sequence[int]) -> str:
    """Label an update: `Adam[200704]`; of several parameters `Adam[6 parameters, 235,146]`; `rule` is its label."""
    if len(sizes) == 1:
        return f"{rule}[{sizes[0]}]"
    return f"{rule}[{len(sizes)} parameters, {whole(sum(sizes))}]"


def suffix(chain: Sequence[PointOp], skip: Sequence[str] = ()) -> str:
    """Return the ops after the core as ` + relu`, without those that `skip` names."""
    touched: set[int] = set()
    found = []
    left = list(skip)
    for i, p in enumerate(chain):
        if any(_is_acc(a) or (a.kind == "op" and a.index in touched) for a in p.args):
            touched.add(i)
            if p.op in left:
                left.remove(p.op)
            else:
                found.append(p.op)
    return "".join(f" + {name}" for name in found[:_SHOWN]) + (" + …" if len(found) > _SHOWN else "")


def _is_acc(arg: Arg) -> bool:
    return arg.kind in ("acc", "dual")
