"""Who hears whom: one topology a file, registered by the line that imports it."""

from __future__ import annotations

from consilience.graphs.barabasi_albert import BarabasiAlbert as BarabasiAlbert
from consilience.graphs.base import Topology as Topology
from consilience.graphs.complete import Complete as Complete
from consilience.graphs.erdos_renyi import ErdosRenyi as ErdosRenyi
from consilience.graphs.from_file import FromFile as FromFile
from consilience.graphs.grid import Grid as Grid
from consilience.graphs.line import Line as Line
from consilience.graphs.random_regular import RandomRegular as RandomRegular
from consilience.graphs.ring import Ring as Ring
from consilience.graphs.star import Star as Star
from consilience.graphs.star_graph import StarGraph as StarGraph
from consilience.graphs.watts_strogatz import WattsStrogatz as WattsStrogatz
from consilience.plugins import registry

TOPOLOGIES = registry(globals(), Topology, "topology")
"""The topologies, by the names that configurations use."""
