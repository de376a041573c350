"""The newest message of every node, for graphs whose nodes do not wake together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from consilience import tree
from consilience.transfer import to_device
from consilience.types import Booleans, IntArray, State


@dataclass(frozen=True)
class Mailbox:
    """The newest message of every node, and who holds it: for nodes that do not wake together."""

    messages: State
    """[replicas, nodes, ...] the newest message of each node."""
    sent: IntArray
    """[replicas, nodes] the round of each node's newest message; -1 before its first."""
    held: IntArray
    """[replicas, receivers, senders] the round of the newest message that arrived; -1 before the first."""

    @classmethod
    def empty(cls, uploads: State, replicas: int, nodes: int) -> Mailbox:
        """The mailbox before the first message, for uploads like these."""
        blank = tree.map_leaves(lambda v: v.new_zeros((replicas, nodes, *v.shape[1:])), uploads)
        never = np.full((replicas, nodes, nodes), -1, dtype=np.int64)
        return cls(blank, never[:, 0].copy(), never)

    def post(self, uploads: State, places: IntArray, arrived: Booleans, round_number: int) -> Mailbox:
        """The mailbox with the messages of a round in it.

        Args:
            uploads: The messages, stacked.
            places: [messages, 2] the replica and the node of each.
            arrived: [replicas, receivers, senders] where they arrived.
            round_number: The round, counted from 0.
        """
        device = next(iter(tree.flatten(uploads).values())).device
        replicas, nodes = to_device(places.T.copy(), device)
        # Groups are those of the uploads: one without tensors is not in a checkpoint.
        messages = {
            group: {
                name: self.messages[group][name].index_put((replicas, nodes), value)
                for name, value in params.items()
            }
            for group, params in uploads.items()
        }
        sent = self.sent.copy()
        sent[places[:, 0], places[:, 1]] = round_number
        return Mailbox(messages, sent, np.where(arrived, round_number, self.held))

    def usable(self, round_number: int, staleness: int | None) -> Booleans:
        """[replicas, receivers, senders] whose newest message a node holds and may use.

        A message that was lost leaves its link silent until the next one arrives: the one before is gone.
        """
        age = round_number - self.sent[:, None, :]
        fresh = age <= (np.iinfo(np.int64).max if staleness is None else staleness)
        usable: Booleans = (self.sent[:, None, :] >= 0) & (self.held == self.sent[:, None, :]) & fresh
        return usable

    def snapshot(self) -> State:
        """The mailbox as a State, for a checkpoint."""
        clock = {"sent": torch.from_numpy(self.sent), "held": torch.from_numpy(self.held)}
        return {"mailbox_clock": clock, **{f"mailbox.{g}": params for g, params in self.messages.items()}}

    @classmethod
    def restore(cls, snapshot: State, device: torch.device) -> Mailbox | None:
        """The mailbox of a snapshot; None where there was none."""
        if "mailbox_clock" not in snapshot:
            return None
        clock = snapshot["mailbox_clock"]
        messages = {
            group.removeprefix("mailbox."): {name: value.to(device) for name, value in params.items()}
            for group, params in snapshot.items()
            if group.startswith("mailbox.")
        }
        return cls(messages, clock["sent"].cpu().numpy(), clock["held"].cpu().numpy())
