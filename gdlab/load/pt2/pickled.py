"""Read the tensors that `torch.save` wrote: the opcodes of its pickle are interpreted here, and nothing is executed."""

from __future__ import annotations

import pickletools
from typing import Any

from gdlab.base.types import Shape
from gdlab.load.pt2.archive import Archive, ArchivedTensor, check_strides, whole_number
from gdlab.load.shared import Malformed

MOST_PICKLE = 1 << 21
STORAGES = {
    "FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool",
}  # fmt: skip
TENSOR, PARAMETER = "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_parameter"
DICT = "collections OrderedDict"
NAMES = frozenset((TENSOR, PARAMETER, DICT, *(f"torch {name}" for name in STORAGES)))
MARK = object()
CONSTANTS = {"EMPTY_TUPLE": (), "NEWTRUE": True, "NEWFALSE": False, "NONE": None}
LITERALS = frozenset(("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BININT", "BININT1", "BININT2", "LONG1"))
PUTS, GETS = frozenset(("BINPUT", "LONG_BINPUT")), frozenset(("BINGET", "LONG_BINGET"))
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Name(str):
    """A global name in the pickle."""

    __slots__ = ()


class _Storage(tuple[str, str]):
    """A storage: (entry, dtype) of the bytes that tensors share."""

    __slots__ = ()


def saved_tensors(archive: Archive) -> dict[str, ArchivedTensor]:
    """Return the tensors by name of a `torch.save` of a dict."""
    found = archive.ending("data.pkl")
    if len(found) != 1:
        raise Malformed("tensors", f"{len(found)} entries data.pkl", "one")
    text = archive.read(found[0])
    if len(text) > MOST_PICKLE:
        raise Malformed(found[0], f"{len(text):,} bytes", f"at most {MOST_PICKLE:,}")
    folder = found[0].removesuffix("data.pkl")
    made = _Machine(archive, folder).run(text)
    if not isinstance(made, dict) or not all(
        isinstance(v, ArchivedTensor) and isinstance(k, str) for k, v in made.items()
    ):
        raise Malformed(found[0], f"{type(made).__name__}", "a dict of tensors by name")
    return made


class _Machine:
    """The stack and the memo of a pickle, for the opcodes that tensors in dicts need."""

    def __init__(self, archive: Archive, folder: str) -> None:
        self.archive, self.folder = archive, folder
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, text: bytes) -> Any:
        """Return the object that the pickle makes."""
        try:
            for op, argument, _ in pickletools.genops(text):
                if op.name == "STOP":
                    return self.stack.pop()
                self.step(op.name, argument)
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise Malformed("pickle", f"{type(error).__name__}: {error!s:.80}", "one that torch.save wrote") from None
        raise Malformed("pickle", "no end", "one that torch.save wrote")

    def step(self, name: str, argument: Any) -> None:
        """Carry out one opcode."""
        push, pop = self.stack.append, self.stack.pop
        if name in ("PROTO", "FRAME"):
            return
        if name in LITERALS:
            push(argument)
        elif name in CONSTANTS:
            push(CONSTANTS[name])
        elif name in PUTS or name == "MEMOIZE":
            self.memo[len(self.memo) if argument is None else argument] = self.stack[-1]
        elif name in GETS:
            push(self.memo[argument])
        elif name == "MARK":
            push(MARK)
        elif name == "EMPTY_DICT":
            push({})
        elif name == "TUPLE":
            push(tuple(self.marked()))
        elif name in TUPLES:
            push(tuple(reversed([pop() for _ in range(TUPLES[name])])))
        elif name == "GLOBAL":
            push(self.named(argument))
        elif name == "STACK_GLOBAL":
            attribute, module = pop(), pop()
            push(self.named(f"{module} {attribute}"))
        elif name == "BINPERSID":
            push(self.storage(pop()))
        elif name == "REDUCE":
            arguments, function = pop(), pop()
            push(self.called(function, arguments))
        elif name == "SETITEM":
            value, key = pop(), pop()
            self.set_items([key, value])
        elif name == "SETITEMS":
            self.set_items(self.marked())
        elif name == "BUILD" and isinstance(self.stack[-1], dict) and isinstance(self.stack[-2], dict):
            pop()  # attributes of a dict: versions of modules
        else:
            raise Malformed("pickle", f"the opcode {name}", "a dict of tensors")

    def marked(self) -> list[Any]:
        """Take the values above the last mark off the stack."""
        found = []
        while (top := self.stack.pop()) is not MARK:
            found.append(top)
        return found[::-1]

    def named(self, name: str) -> _Name:
        """Return a global, which must be one of those that tensors need."""
        if name not in NAMES:
            given = f"{name.replace(' ', '.')!r:.100}"
            raise Malformed("pickle", given, "tensors alone: no other class or function is read from a file")
        return _Name(name)

    def storage(self, given: Any) -> _Storage:
        """Return the bytes that a persistent id names."""
        kind, storage, key, _, _ = given
        if kind != "storage" or not isinstance(storage, _Name) or not isinstance(key, str):
            raise Malformed("pickle", f"{given!r:.80}", "a storage")
        return _Storage((f"{self.folder}data/{key}", STORAGES[storage.removeprefix("torch ")]))

    def called(self, function: Any, arguments: Any) -> Any:
        """Return the result of a call: a dict, or a tensor of a storage."""
        if not isinstance(function, _Name) or not isinstance(arguments, tuple):
            raise Malformed("pickle", f"a call of {function!r:.60}", "tensors alone")
        if function == DICT and arguments == ():
            return {}
        if function == PARAMETER and len(arguments) == 3 and isinstance(arguments[0], ArchivedTensor):
            return arguments[0]
        if function == TENSOR and len(arguments) in (6, 7) and isinstance(arguments[0], _Storage):
            return self.tensor(*arguments[:4])
        raise Malformed("pickle", f"{function.replace(' ', '.')} with {len(arguments)} arguments", "a tensor")

    def tensor(self, storage: _Storage, offset: Any, shape: Any, strides: Any) -> ArchivedTensor:
        """Return a tensor from checked numbers."""
        entry, dtype = storage
        extents: Shape = tuple(whole_number(n, "pickle: shape") for n in tuple(shape))
        steps: Shape = tuple(whole_number(n, "pickle: strides") for n in tuple(strides))
        check_strides("pickle", extents, steps)
        return ArchivedTensor(self.archive, entry, dtype, extents, steps, whole_number(offset, "pickle: offset"))

    def set_items(self, items: list[Any]) -> None:
        """Add keys and values to the dict below them."""
        target = self.stack[-1]
        if not isinstance(target, dict):
            raise Malformed("pickle", "items of something else", "a dict")
        target.update(zip(items[::2], items[1::2], strict=True))
