"""Rules of this library for those who have a Flower app: a Strategy, and one call in the training code.

    strategy = consilience.flower.HWAStrategy()                                    # in the ServerApp
    content = RecordDict({"arrays": ..., "metrics": ..., **curvature(net, loader)})  # in the ClientApp

Everything else stays as it is. Methods that change training, or clients that remember, need the other way
round: `consilience deploy flower`, which brings whole methods to Flower.
"""

from __future__ import annotations

try:
    import flwr as flwr
except ImportError:
    raise ImportError("consilience.flower needs Flower: pip install 'consilience[flower]'") from None

from consilience.flower.evidence import curvature, evidence
from consilience.flower.secure import SecureHWAStrategy, for_sums
from consilience.flower.strategies import HWAStrategy, RuleStrategy

__all__ = ["HWAStrategy", "RuleStrategy", "SecureHWAStrategy", "curvature", "evidence", "for_sums"]
