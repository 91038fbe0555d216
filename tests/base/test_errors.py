"""The tree of errors: each name in its place, public, picklable, and with its fields."""

from __future__ import annotations

import pickle

import pytest

import gdlab as gd
from gdlab.base import errors

OF_SESSION = """ReadNodeError DeviceUnavailableError CapabilityError ExternalBindError ExpertIndexError
MissingInputError ParamNotSetError InputConflictError StaleViewError NoRunError EagerError SessionConsumedError
GraphEncodeError ReorderViolation""".split()
WARNINGS = ("StaleViewWarning", "UnderDeclaredWarning")
CLASSES = [name for name in errors.__all__ if name not in WARNINGS]


@pytest.mark.parametrize("name", OF_SESSION)
def test_a_session_error_is_caught_as_one(name: str) -> None:
    kind = getattr(gd, name)
    assert kind is not gd.SessionError and issubclass(kind, gd.SessionError) and issubclass(kind, RuntimeError)


def test_the_others_have_their_built_in() -> None:
    assert issubclass(gd.ActiveExtentUnsupported, ValueError) and issubclass(gd.ActiveExtentUnsupported, gd.GdlabError)
    assert not issubclass(gd.ActiveExtentUnsupported, (gd.CompileError, gd.SessionError))
    assert issubclass(gd.UnknownRuleError, gd.OptimizeError) and issubclass(gd.UnknownRuleError, KeyError)
    for name in WARNINGS:
        assert issubclass(getattr(gd, name), UserWarning)


def test_every_class_of_the_module_is_public_and_in_the_tree() -> None:
    made = {k for k, v in vars(errors).items() if isinstance(v, type) and v.__module__ == errors.__name__}
    assert made - {"_WithFields", "UnknownSlot", "TooSmall"} == set(errors.__all__) <= set(gd.__all__)
    tree = errors.__doc__ or ""
    assert [name for name in errors.__all__ if name not in tree] == []


@pytest.mark.parametrize("name", CLASSES)
def test_an_error_has_one_form_and_survives_a_pickle(name: str) -> None:
    error = getattr(errors, name)("run", "x", "a", "b", node=3)
    again = pickle.loads(pickle.dumps(error))
    assert str(error) == str(again) == "run: x: given a, wanted b" and again.node == 3 and type(again) is type(error)


def test_an_expert_that_does_not_exist_has_its_numbers() -> None:
    error = gd.ExpertIndexError("run", "idx", "8 in row 2", "0 … 7", row=2, index=8, experts=8)
    again = pickle.loads(pickle.dumps(error))
    assert (again.row, again.index, again.experts) == (2, 8, 8)
    refused = pickle.loads(pickle.dumps(gd.GraphEncodeError("finish", "node 70", "a", "b", index=70, op="softmax")))
    assert (refused.index, refused.op) == (70, "softmax")
