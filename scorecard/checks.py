"""The table of all checks: what is promised, how it is attacked, and how often."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scorecard.finding import Finding
from scorecard.launching import launcher

Attack = Callable[[int, Path], Finding]
"""From a number of trials and an empty folder to what was found."""


@dataclass(frozen=True)
class Check:
    """One line of the scorecard."""

    number: int
    name: str
    promise: str
    how: str
    attack: str
    """The module and the function that attack; looked up when it is run."""
    trials: int
    quick: int = 0
    """With how many trials it is part of the tests; 0: it takes too long for them."""
    gate: bool = False
    """Whether anything below 100 % is a failure of the whole scorecard."""
    bounds: Mapping[str, float] = field(default_factory=dict)
    """The most that figures may be, where the machine is quiet."""
    flower: str = ""
    """The function that does the same to plain Flower."""

    @property
    def alone(self) -> bool:
        """Whether seconds are promised, so that nothing else should run meanwhile."""
        return any(name.endswith("(s)") for name in self.bounds)

    def run(self, trials: int, folder: Path) -> Finding:
        """Attack; nothing that was started is left."""
        try:
            return _found(self.attack)(trials, folder)
        finally:
            if launcher.cache_info().currsize:
                launcher().stop()

    def run_flower(self, trials: int, folder: Path) -> Finding:
        """Attack plain Flower."""
        return _found(f"plain_flower.{self.flower}")(trials, folder)


def _found(place: str) -> Attack:
    module, _, name = place.partition(".")
    attack: Attack = getattr(importlib.import_module(f"scorecard.{module}"), name)
    return attack


CHECKS = [
    Check(
        1,
        "kill -9 at a random instant",
        "final weights and files identical to those of a run that was not killed",
        "runs, a hub with its sites, and four peers over Zenoh, killed once or twice and started again",
        "processes.killed",
        50,
        quick=4,
        gate=True,
    ),
    Check(
        2,
        "kill -9 inside a checkpoint's write",
        "the new or the previous checkpoint loads, and the run ends identically",
        "a process kills itself amid the bytes of a checkpoint, or right after its rename",
        "files.killed_writing",
        50,
        quick=1,
        gate=True,
    ),
    Check(
        3,
        "bit flips in every file of a run",
        "refused by name, the previous checkpoint offered where it serves; or the same result to the bit",
        "one bit, file after file, of a run that was stopped and one that has ended; then resumed and read",
        "files.flips",
        500,
        quick=34,
        gate=True,
        flower="flips",
    ),
    Check(
        4,
        "truncations of every file of a run",
        "refused by name, the previous checkpoint offered where it serves; or the same result to the bit",
        "a file cut at a random place, file after file, of the same two runs; then resumed and read",
        "files.truncations",
        200,
        quick=34,
        gate=True,
    ),
    Check(
        5,
        "disk full",
        "one clear line, the old checkpoint intact, identical once there is room",
        "a small file system that fills up at a random point of a run",
        "files.disk_full",
        20,
        quick=1,
    ),
    Check(
        6,
        "SIGINT and SIGTERM",
        "out within 5 s, resumable, and says how",
        "sent to a run at a random instant",
        "processes.stopped",
        20,
        quick=2,
        bounds={"slowest exit (s)": 5.0},
    ),
    Check(
        7,
        "read-only or missing folder",
        "one line that names it, before the first round",
        "read-only file systems, places under files and in /proc, folders that are not there",
        "files.nowhere",
        8,
        quick=8,
    ),
    Check(
        8,
        "30 % dropout over 50 rounds",
        "all rounds complete, within 2 points, equal to aggregation over survivors",
        "FedAvg, SCAFFOLD and HWA; bytes compared with a simulation, accuracy on digits",
        "methods.dropout",
        3,
    ),
    Check(
        9,
        "a peer killed in mid-round",
        "others end the round by the deadline + 1 s and notice within 0.5 s",
        "ring of four over TLS, deadline 5 s; times from the kill to lines in the others' journals",
        "peers.killed",
        20,
        quick=1,
        bounds={"slowest end of the round (s)": 6.0, "slowest notice (s)": 0.5},
    ),
    Check(
        10,
        "a peer that hangs",
        "noticed within the lease (2 s) + 0.5 s",
        "SIGSTOP in a ring of four over TLS",
        "peers.hung",
        10,
        quick=1,
        bounds={"slowest notice (s)": 2.5},
    ),
    Check(
        11,
        "a peer that comes back after 1 to 5 rounds",
        "back within 3 s, no stall by the old incarnation",
        "killed and started again in a ring of four over TLS, what it imports being there",
        "peers.rejoined",
        20,
        quick=1,
        bounds={"slowest return (s)": 3.0, "longest round of a neighbour (s)": 1.0},
    ),
    Check(
        12,
        "a network that falls apart, two and two, and heals",
        "both sides progress; 20 rounds later disagreement at most 1.1 times the baseline",
        "a ring of four cut for ten rounds; the baseline is one that never was, in the same round",
        "peers.parted",
        1,
        bounds={"disagreement afterwards, of one never apart": 1.1},
    ),
    Check(
        13,
        "NaN and infinity in weights or curvature",
        "none reaches an honest model, the sender is named",
        "8 variants, each at a hub (HWA) and at a peer (DecHW)",
        "messages.not_finite",
        8,
        quick=8,
        gate=True,
        flower="not_finite",
    ),
    Check(
        14,
        "wrong shape, type, names or order",
        "refused, and the round goes on as if the sender were away",
        "seven kinds, at a hub and at a peer",
        "messages.other_forms",
        50,
        quick=14,
        gate=True,
    ),
    Check(
        15,
        "oversize: ten times too much, headers of 2^63 bytes",
        "refused, with memory at most 1.2 times the limit",
        "a peer's mailbox, a site's socket, a hub; peak memory of the process, limit 16 MiB",
        "messages.oversize",
        9,
        quick=9,
        gate=True,
    ),
    Check(
        16,
        "malformed frames",
        "no crash, no hang over 1 s, none accepted",
        "flipped, cut, extended, spliced, headers rewritten; what is well formed goes to a hub and a peer",
        "frames.malformed",
        10_000,
        quick=400,
        gate=True,
        bounds={"slowest (s)": 1.0},
    ),
    Check(
        17,
        "a valid certificate and another sender's number",
        "refused, with a line at both ends",
        "sessions with certificates of neighbours: words, messages and keys of another one",
        "security.impostors",
        12,
        quick=3,
        gate=True,
    ),
    Check(
        18,
        "no, rogue, expired, wrong-name certificate, plaintext, no key file",
        "refused, and the cause is named",
        "attempts to connect to a node, and to start one",
        "security.strangers",
        7,
        quick=7,
        gate=True,
    ),
    Check(
        19,
        "a certificate expires in a run",
        "the link is closed within 60 s, and it is said 7 days ahead",
        "a certificate of 25 s in a ring of four, then another in its place",
        "security.expiring",
        1,
        bounds={"closed after expiry (s)": 60.0},
    ),
    Check(
        20,
        "replays and duplicates",
        "weights unchanged to the bit",
        "old pieces to peers' mailboxes, old orders to sites, old answers to a hub, in whole federations",
        "messages.replays",
        1000,
        quick=100,
        gate=True,
        flower="replays",
    ),
    Check(
        21,
        "rounds from -5 to +5",
        "only the current one is taken, and the next is kept for later",
        "at a hub, at a peer, in a mailbox",
        "messages.other_rounds",
        11,
        quick=3,
    ),
    Check(
        22,
        "malicious pickles",
        "none executed; no pickle, eval or unsafe load in the package",
        "pickles and torch.save files in place of every file and message; a look at all calls in the code",
        "pickles.pickles",
        1,
        quick=1,
        gate=True,
    ),
    Check(
        23,
        "inflated curvature, 1 client of 10",
        "its share is at most 0.20 with the guard",
        "x10 to x10^30, negative, flat, one-hot; four scopes of normalisation",
        "methods.inflated",
        36,
        quick=9,
        bounds={"largest share": 0.2},
        flower="inflated",
    ),
    Check(
        24,
        "sign flip, scaled noise, inner product, at the largest number of liars",
        "within 5 points of honest training; impossible numbers refused",
        "five robust rules, ten clients, digits, 30 rounds",
        "methods.liars",
        15,
    ),
    Check(
        25,
        "mutated configurations",
        "valid, or one line that names the field; no traceback, no hang",
        "values, keys and text changed at random; read and planned",
        "configurations.mutated",
        10_000,
        quick=200,
        gate=True,
    ),
    Check(
        26,
        "8 nodes, 100 rounds",
        "no message from who is no neighbour",
        "a ring of eight over TLS; whom everybody heard in every round",
        "peers.neighbours_alone",
        100,
        quick=2,
        gate=True,
    ),
    Check(
        27,
        "1,000 rounds with messages of 1 MB between 4 nodes over TLS",
        "memory at the end at most 1.05 times that after 100 rounds, descriptors constant",
        "resident memory and open files of every process",
        "peers.growth",
        1000,
        bounds={"memory at the end, of that at a tenth": 1.05},
    ),
    Check(
        28,
        "the same seed in process, over Flower and over Zenoh",
        "identical weights, in whatever order messages arrive",
        "answers shuffled 20 times, also as Flower's messages; real nodes, SuperLink and SuperNodes",
        "transports.same_weights",
        20,
        quick=1,
    ),
]
