"""The common parts of the tables of encoders: where their parameters lie, and readers of their fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gdlab.base.errors import ArgumentError, LoadError
from gdlab.graph import Graph
from gdlab.models.encoder_block import FUNCTIONS
from gdlab.models.family import LARGEST, WHERE, Fields, GraphRequest, Source, Sources, one_of

activation = one_of(**{name: name for name in FUNCTIONS})
MOST_LAYERS = 256
BATCH_NORM = 1e-5  # eps of torch.nn.BatchNorm2d, which no model of these families changes


def sources_of(
    graph: Graph, prefix: str = "", heads: Sequence[str] = (), renamed: Mapping[str, str] | None = None
) -> Sources:
    """Return the tensor of every parameter: of the same name behind the prefix, which heads do not have. Matrices that
    are multiplied by from the right are [out, in] in the file. `renamed`: ends of names, ours and the file's."""
    turned = {node.inputs[1] for node in graph if node.op == "matmul"}
    found: dict[str, Source] = {}
    for node in graph.parameters:
        ends = [(ours, theirs) for ours, theirs in (renamed or {}).items() if node.name.endswith(ours)]
        name = node.name.removesuffix(ends[0][0]) + ends[0][1] if ends else node.name
        before = "" if node.name.startswith(tuple(heads)) else prefix
        found[node.name] = Source(before + name, transposed=node.id in turned)
    return found


def architecture(fields: Mapping[str, Any], tasks: Mapping[str, Any], start: str) -> Any:
    """Return what the first of the `architectures` of config.json stands for: those of `tasks`, each behind `start`."""
    given = fields.get("architectures") or [f"{start}Model"]
    name = given[0] if isinstance(given, list) else given
    if not isinstance(name, str) or name.removeprefix(start) not in tasks or not name.startswith(start):
        wanted = f"one of {', '.join(start + task for task in tasks)}"
        raise LoadError(WHERE, "config.json: architectures", f"{given!r:.120}", wanted)
    return tasks[name.removeprefix(start)]


def labels(fields: Mapping[str, Any]) -> int:
    """Return the number of classes that a head of transformers has: 2 where nothing is said."""
    given = fields.get("id2label")
    classes = len(given) if isinstance(given, Mapping) and given else fields.get("num_labels", 2)
    if isinstance(classes, bool) or not isinstance(classes, int) or classes < 1:
        raise LoadError(WHERE, "config.json: num_labels", f"{classes!r:.80}", "an int ≥ 1")
    return classes


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
    """Read `model_args` of a config.json of timm: what its network is built with besides its name. Those that are left
    out are left out."""
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


def depth(given: Any) -> int:
    """Read a number of layers: each is a part of the graph, which is built before any tensor is looked at."""
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


def check_request(request: GraphRequest, length: int, why: str, trainable: bool = True) -> None:
    """Refuse another length than the model's own, and training without a loss."""
    if request.length != length:
        raise ArgumentError(WHERE, "length", request.length, f"{length}, {why}")
    check_training(request, trainable)


def check_training(request: GraphRequest, trainable: bool) -> None:
    """Refuse training without a loss."""
    if request.mode == "training" and not trainable:
        wanted = "'inference': the model has no head whose loss is the cross entropy of at least two classes"
        raise ArgumentError(WHERE, "mode", "'training'", wanted)
