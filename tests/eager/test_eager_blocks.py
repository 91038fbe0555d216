"""Parameters in blocks: an eager session keeps the bytes that it was given."""

from __future__ import annotations

import io

import numpy as np
import pytest

from gdlab import EagerSession, ops
from gdlab.base.errors import DTypeError
from gdlab.base.formats.packed_bytes import Packed
from gdlab.base.types import DType, TensorType
from gdlab.eager import Param, TensorRef

SHAPE = (64, 2)
STEP_1 = np.float32(1).tobytes() + bytes([3, 1, 5, *range(5)] * 4)  # encoded again, its step would be 5 / 127
HELD = Packed(DType.q8, SHAPE, STEP_1 * 4)
X = np.arange(4 * 64, dtype=np.float32).reshape(4, 64) % 7


def session_with(device: str, dtype: str = "q8", **options: object) -> tuple[EagerSession, Param]:
    made = EagerSession(device=device, **options)
    with made:
        weight = ops.parameter("w", SHAPE, dtype=dtype)
    return made, made.params_by_leaf[weight.id]


def leaf_of(param: Param) -> np.ndarray:
    return param.session.use(param).numpy()


def test_bytes_that_are_set_are_those_of_the_device_and_of_all_that_is_made_of_them(device: str) -> None:
    s, w = session_with(device)
    s.set_param_host_value(w, HELD)
    np.testing.assert_array_equal(leaf_of(w), HELD)
    np.testing.assert_array_equal(w.value, HELD)
    assert isinstance(w.held, Packed) and w.held.data == HELD.data

    def product(x: TensorRef) -> TensorRef:
        return (x @ s.use(w)).sum_all()

    wanted = (X @ np.asarray(HELD)).sum()  # of integers: exact
    np.testing.assert_array_equal(s.jit(product)(s.input(X)).numpy(), [wanted])
    study = s.to_study(product(s.input(X)))
    assert study.session.values.held("w").data == HELD.data
    study.close()
    s.close()
    assert w.sync().data == HELD.data


def test_a_state_restores_blocks_bit_by_bit(device: str) -> None:
    s, w = session_with(device)
    s.set_param_host_value(w, HELD)
    file = io.BytesIO()
    np.savez(file, **s.state_dict())
    file.seek(0)
    other, v = session_with(device)
    with np.load(file) as state:
        other.load_state_dict(state)
    assert v.held.data == HELD.data
    np.testing.assert_array_equal(leaf_of(v), HELD)
    other.load_state_dict({**s.state_dict(), "param.0.w": np.asarray(HELD)})  # older states
    assert v.held.data == Packed.of(np.asarray(HELD), HELD.type).data != HELD.data
    s.close()
    other.close()


def test_memory_that_becomes_a_parameter_keeps_its_blocks(device: str) -> None:
    s, w = session_with(device)
    s.set_param_host_value(w, HELD)
    v = s._param("v", HELD.type, np.zeros(SHAPE, np.float32), False)
    for buffer in (s.buffer(s.use(w).id), s.owned_any_buffer("copy", s.buffer(s.use(w).id))):
        s.set_param_device_value(v, buffer)
        assert v.state == "D" and v.held.data == HELD.data
    s.close()


@pytest.mark.parametrize("dtype", ("f16", "bf16", "q8", "q4"))
@pytest.mark.parametrize("scalar", (np.float32, np.float64))
def test_a_value_is_what_the_device_holds_before_its_first_use_too(dtype: str, scalar: type) -> None:
    s, w = session_with("cpu", dtype, scalar=scalar)
    given = np.linspace(-1, 1, 128).reshape(SHAPE)
    s.set_param_host_value(w, given)
    before = w.value
    assert before.dtype == scalar
    np.testing.assert_array_equal(before, leaf_of(w))
    np.testing.assert_array_equal(before, Packed.of(np.float32(given), TensorType(SHAPE, DType[dtype])))
    s.close()


def test_a_number_beyond_the_storage_dtype_is_refused_and_changes_nothing(device: str) -> None:
    s, w = session_with(device, "f16")
    before = w.value
    with pytest.raises(DTypeError, match=r"eager.set_param_host_value: 'w'.*100000"):
        s.set_param_host_value(w, np.full(SHAPE, 1e5))
    np.testing.assert_array_equal(w.value, before)
    s.close()
