"""The properties that the engine relies on; each is a function whose docstring says what is claimed."""

from __future__ import annotations

from consilience.testing.executors import (
    batched_equals_sequential,
    buffers_and_dropout_work,
    replicas_do_not_touch,
)
from consilience.testing.federation import Property
from consilience.testing.federations import (
    bad_uploads_are_dropped,
    client_order_does_not_matter,
    clients_without_data_do_not_count,
    complete_graph_equals_star,
    runs_repeat_bit_for_bit,
    snapshots_continue,
)
from consilience.testing.messages import messages_survive_the_wire
from consilience.testing.states import (
    fleeting_memories_are_written_first,
    inputs_stay_as_they_are,
    nothing_is_kept_elsewhere,
    states_are_named_tensors,
)

PROPERTIES: tuple[Property, ...] = (
    states_are_named_tensors,
    inputs_stay_as_they_are,
    nothing_is_kept_elsewhere,
    fleeting_memories_are_written_first,
    messages_survive_the_wire,
    batched_equals_sequential,
    buffers_and_dropout_work,
    replicas_do_not_touch,
    client_order_does_not_matter,
    clients_without_data_do_not_count,
    snapshots_continue,
    complete_graph_equals_star,
    bad_uploads_are_dropped,
    runs_repeat_bit_for_bit,
)
"""What `check_algorithm` checks, in this order."""
