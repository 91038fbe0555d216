"""cffi reads a type with the typedefs that it names, and it is the same type."""

from __future__ import annotations

from typing import Any

import cffi
import pytest
from cffi import cparser
from machine import needs

from gdlab.devices.wgpu.c_types import read_types_quickly
from gdlab.devices.wgpu.wgpu_device import adapters

DECLARED = """
typedef struct A { int x; struct A *next; } A;
typedef A B;
typedef enum Kind { Kind_One = 1, Kind_Two = 2 } Kind;
typedef struct Holder { B held[2]; Kind kind; uint64_t bytes; } Holder;
typedef void (*Callback)(Kind kind, Holder *holder, void *more);
"""
TEXTS = (
    "A", "B *", "A[]", "Holder[3]", "Holder const *", "Kind", "Callback", "struct A *", "enum Kind", "uintptr_t",
    "uint8_t[]", "unsigned long long", "char *", "void(*)(Kind, B *, void *)", "Holder *[2]",
)  # fmt: skip


def made() -> Any:
    ffi = cffi.FFI()
    ffi.cdef(DECLARED)
    return ffi


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that the parser of C reads from now on."""
    texts, parser = list[str](), cparser._get_parser()

    class Noted:
        def parse(self, text: str) -> Any:
            texts.append(text)
            return parser.parse(text)

    monkeypatch.setattr(cparser, "_get_parser", Noted)
    return texts


@pytest.mark.parametrize("text", TEXTS)
def test_a_type_is_the_same(text: str) -> None:
    quick, slow = made(), made()
    read_types_quickly(quick)
    one, other = quick.typeof(text), slow.typeof(text)
    assert (one.cname, one.kind) == (other.cname, other.kind)
    if "[]" not in text:
        assert quick.sizeof(one) == slow.sizeof(other)


def test_only_the_typedefs_that_a_type_names_are_parsed(parsed: list[str]) -> None:
    ffi = made()
    read_types_quickly(ffi)
    read_types_quickly(ffi)  # twice is once
    del parsed[:]
    assert ffi.new("Holder *", {"held": [{"x": 3}, {"x": 4}], "kind": 2}).held[1].x == 4
    assert len(parsed) == 1 and "typedef int Holder;" in parsed[0]
    assert "typedef int A;" not in parsed[0] and "Callback" not in parsed[0]


def test_a_type_that_is_not_declared_is_refused() -> None:
    ffi = made()
    read_types_quickly(ffi)
    with pytest.raises(cffi.CDefError):
        ffi.typeof("Unknown *")
    ffi.cdef("typedef struct { A a; Holder h; } Unknown;")
    assert [name for name, _ in ffi.typeof("Unknown").fields] == ["a", "h"]


def test_an_ffi_made_otherwise_stays_as_it_is() -> None:
    read_types_quickly(object())


def test_the_library_of_adapters_reads_types_so(parsed: list[str]) -> None:
    needs("wgpu")
    from wgpu.backends.wgpu_native import ffi

    adapters()
    del parsed[:]
    ffi.typeof("WGPUDeviceLostReason *[7]")
    assert len(parsed) == 1 and parsed[0].count("typedef") < 5
