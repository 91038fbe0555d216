"""The common fields of the config.json of encoders, of transformers and of timm, and their readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gdlab.base.errors import LoadError
from gdlab.models.config_fields import LARGEST, Field, Fields, anything, one_of, only
from gdlab.models.encoder_block import FUNCTIONS
from gdlab.models.family import WHERE

activation = one_of(**{name: name for name in FUNCTIONS})
MOST_LAYERS = 256


def architecture(fields: Mapping[str, Any], tasks: Mapping[str, Any], start: str) -> Any:
    """Return the task of the first of the `architectures` of config.json, whose names are `start` and a name of
    `tasks`."""
    given = fields.get("architectures") or [f"{start}Model"]
    name = given[0] if isinstance(given, list) else given
    if not isinstance(name, str) or name.removeprefix(start) not in tasks or not name.startswith(start):
        wanted = f"one of {', '.join(start + task for task in tasks)}"
        raise LoadError(WHERE, "config.json: architectures", f"{given!r:.120}", wanted)
    return tasks[name.removeprefix(start)]


def labels(fields: Mapping[str, Any]) -> int:
    """Return the number of classes that a head of transformers has: 2 by default."""
    given = fields.get("id2label")
    classes = len(given) if isinstance(given, Mapping) and given else fields.get("num_labels", 2)
    if isinstance(classes, bool) or not isinstance(classes, int) or classes < 1:
        raise LoadError(WHERE, "config.json: num_labels", f"{classes!r:.80}", "an int ≥ 1")
    return classes


def image_classes(fields: Mapping[str, Any], start: str) -> int:
    """Return the number of classes of an image model of transformers, 0 without a head: its architectures begin with
    `start`."""
    return labels(fields) if architecture(fields, {"Model": False, "ForImageClassification": True}, start) else 0


def side(given: Any) -> int:
    """Read the extent of a square: a number, or two equal ones."""
    extents = given if isinstance(given, list) else [given]
    if len(extents) > 2 or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in extents):
        raise ValueError("an int ≥ 1")
    if len(set(extents)) != 1:
        raise ValueError("one number, or two equal ones: images are squares here")
    return int(extents[0])


def numbers(given: Any) -> tuple[int, ...]:
    """Read a list of ints ≥ 1."""
    if not isinstance(given, list) or not 0 < len(given) <= 64:
        raise ValueError("a list of ints")
    if any(isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= 1 << 16 for n in given):
        raise ValueError("ints in 1 … 65,536")
    return tuple(given)


def arguments(given: Any, table: Fields) -> dict[str, Any]:
    """Read `model_args` of a config.json of timm: the arguments of its network. Those that are left out are left out.
    """
    if not isinstance(given, Mapping):
        raise ValueError("an object")
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in table:
            raise ValueError(f"arguments that are understood, not {name!r:.80}: {', '.join(table)}")
        try:
            read = table[name].read(value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}, not {value!r:.80}") from None
        if table[name].ours:
            values[table[name].ours] = read
    return values


def reader(table: Fields) -> Callable[[Any], dict[str, Any]]:
    """Return the reader of `model_args` with this table."""
    return lambda given: arguments(given, table)


def timm_name(fields: Mapping[str, Any]) -> str:
    """Return the network that a config.json of timm or torchvision names, without its weights: "" in other files."""
    return str(fields.get("architecture", "")).partition(".")[0]


def timm_fields(table: Fields, pool: str) -> Fields:
    """Return the fields of a config.json of timm: `table` reads the arguments of its network, which has this pooling.
    """
    return {
        "architecture": Field("", anything, ""), "num_classes": Field("classes", count, 1000),
        "global_pool": Field("", only(pool, ""), pool), "num_features": Field("", anything, None),
        **{f"label_{name}": Field("", anything, None) for name in ("names", "descriptions")},
        "model_args": Field("arguments", reader(table), {}),
    }  # fmt: skip


def depth(given: Any) -> int:
    """Read a number of layers, bounded because the graph is built before any tensor is read."""
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= MOST_LAYERS:
        raise ValueError(f"an int in 1 … {MOST_LAYERS}")
    return given


def depths(given: Any) -> tuple[int, ...]:
    """Read the numbers of blocks in the layers of a network."""
    if sum(numbers(given)) > MOST_LAYERS:
        raise ValueError(f"at most {MOST_LAYERS} blocks in all")
    return numbers(given)


def count(given: Any) -> int:
    """Read an int ≥ 0."""
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given <= LARGEST:
        raise ValueError(f"an int in 0 … {LARGEST:,}")
    return given


def has_cross_entropy(given: Any) -> bool:
    """Read `problem_type`: whether the loss of the head is the cross entropy of one class."""
    kinds = (None, "single_label_classification", "multi_label_classification", "regression")
    if given not in kinds:
        raise ValueError(f"null or one of {', '.join(filter(None, kinds))}")
    return given in kinds[:2]
