"""How training rows are dealt to clients: one way a file, registered by the line that imports it.

All are deterministic in the generator they get, none retries without bound, and a request that cannot be
met is refused with its numbers.
"""

from __future__ import annotations

from consilience.data.partitioners.base import Partitioner as Partitioner
from consilience.data.partitioners.by_client import ByClient as ByClient
from consilience.data.partitioners.by_writer import ByWriter as ByWriter
from consilience.data.partitioners.dirichlet_class import DirichletClass as DirichletClass
from consilience.data.partitioners.dirichlet_client import DirichletClient as DirichletClient
from consilience.data.partitioners.homogeneous_blocks import HomogeneousBlocks as HomogeneousBlocks
from consilience.data.partitioners.iid import Iid as Iid
from consilience.data.partitioners.shards import Shards as Shards
from consilience.data.partitioners.shards_two_classes import ShardsTwoClasses as ShardsTwoClasses
from consilience.data.partitioners.sizes import Sizes as Sizes
from consilience.plugins import registry

PARTITIONERS = registry(globals(), Partitioner, "partition")
"""The partitioners, by the names that configurations use."""
