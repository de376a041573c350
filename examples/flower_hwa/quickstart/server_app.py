"""The server: Flower's own loop, with HWA as its strategy."""

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from safetensors.torch import save_file

from consilience.flower import HWAStrategy

from .task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds."""
    torch.manual_seed(0)
    strategy = HWAStrategy(guard=1.0)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        num_rounds=context.run_config["rounds"],
    )
    save_file(result.arrays.to_torch_state_dict(), "final_model.safetensors")
