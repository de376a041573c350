"""Graphs in files: lists of edges, GraphML, adjacency as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

from consilience.errors import UserError
from consilience.graphs import lazily as nx
from consilience.reading import content, parse_json

MOST = 1 << 28
"""How many bytes a file may have."""
LONGEST = 18
"""How many characters a whole number may have; a longer one is a name."""


def order(name: str) -> tuple[bool, int, str]:
    """The key by which names of nodes are sorted: whole numbers come first, by their value."""
    number = name.removeprefix("-").isdecimal() and len(name) <= LONGEST
    return not number, int(name) if number else 0, name


def read_graph(path: Path) -> nx.Graph[str]:
    """The graph in a file, without self-loops."""
    readers = {
        ".edges": _read_edges,
        ".txt": _read_edges,
        ".csv": _read_edges,
        ".graphml": _read_graphml,
        ".json": _read_json,
    }
    if path.suffix not in readers:
        raise UserError(f"topology file: {path} does not end in any of {', '.join(readers)}")
    try:
        graph = readers[path.suffix](content(path, MOST).decode("utf-8-sig"))
    except OSError as error:
        raise UserError(f"topology file: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"topology file: {path} is not text in UTF-8") from None
    except ValueError as error:
        raise UserError(f"topology file: {path}: {' '.join(str(error).split())}") from None
    if not len(graph):
        raise UserError(f"topology file: {path} holds no nodes")
    graph.remove_edges_from(list(nx.selfloop_edges(graph)))
    return graph


def _read_edges(text: str) -> nx.Graph[str]:
    graph: nx.Graph[str] = nx.Graph()
    for number, line in enumerate(text.splitlines(), 1):
        pair = line.partition("#")[0].strip()
        names = [name.strip() for name in pair.split(",")] if "," in pair else pair.split()
        if not names:
            continue
        if len(names) != 2 or not all(names):
            raise ValueError(f"line {number} is no pair of nodes: {pair!r:.60}")
        graph.add_edge(*names)
    return graph


def _read_graphml(text: str) -> nx.Graph[str]:
    try:
        graph = nx.parse_graphml(text)
    except (
        ParseError,
        nx.NetworkXException,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        raise ValueError(f"not valid GraphML ({error})") from None
    if graph.is_directed():
        raise ValueError("the graph is directed; peers hear each other, so make it undirected")
    return nx.Graph(graph)  # of parallel edges one is left


def _read_json(text: str) -> nx.Graph[str]:
    try:
        data = parse_json(text)
    except ValueError as error:
        raise ValueError(f"not valid JSON ({error})") from None
    heard = {name: set(neighbours) for name, neighbours in _neighbours(data).items()}
    for name, neighbours in heard.items():
        for other in sorted(neighbours):
            if name not in heard.get(other, ()):
                raise ValueError(
                    f"{name!r:.40} lists {other!r:.40} but not the other way round; the graph is directed, "
                    "make it undirected"
                )
    graph: nx.Graph[str] = nx.Graph()
    graph.add_nodes_from(heard)
    graph.add_edges_from((name, other) for name, neighbours in heard.items() for other in neighbours)
    return graph


def _neighbours(data: Any) -> Mapping[str, list[str]]:
    """Whom each node hears, from a plain mapping or from networkx's adjacency_data."""
    match data:
        case {"directed": True, "adjacency": list()}:
            raise ValueError("the graph is directed; peers hear each other, so make it undirected")
        case {"nodes": list(nodes), "adjacency": list(rows)} if len(nodes) == len(rows):
            lists = {_identifier(node): row for node, row in zip(nodes, rows, strict=True)}
            return {name: [_identifier(other) for other in _list(name, row)] for name, row in lists.items()}
        case dict():
            return {name: [_name(other) for other in _list(name, row)] for name, row in data.items()}
    raise ValueError('expected {"0": [1, 2], ...}, the neighbours of every node')


def _identifier(node: Any) -> str:
    return _name(node.get("id") if isinstance(node, dict) else None)


def _list(name: str, row: Any) -> list[Any]:
    if not isinstance(row, list):
        raise ValueError(f"the neighbours of {name!r:.40} are no list: {row!r:.40}")
    return row


def _name(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"a node's name must be a number or text, not {value!r:.40}")
    return str(value)
