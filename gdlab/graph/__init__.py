"""The graph: an append-only list of nodes in topological order, plus outputs; values, sources, traversal."""

from gdlab.graph.graph import Graph, current_graph, no_collector, place, replace_current, scratch, whole
from gdlab.graph.node import Attr, Attrs, AttrVar, ConstantData, Node, attrs_key
from gdlab.graph.pattern_graph import PatternGraph, PatternValue, Rewrite
from gdlab.graph.source import Frame, Location, Source, capture, here
from gdlab.graph.value import Value
from gdlab.graph.walk import reachable, shown_names, users

__all__ = [
    "Attr",
    "AttrVar",
    "Attrs",
    "ConstantData",
    "Frame",
    "Graph",
    "Location",
    "Node",
    "PatternGraph",
    "PatternValue",
    "Rewrite",
    "Source",
    "Value",
    "attrs_key",
    "capture",
    "current_graph",
    "here",
    "no_collector",
    "place",
    "reachable",
    "replace_current",
    "scratch",
    "shown_names",
    "users",
    "whole",
]
