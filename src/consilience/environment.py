"""What the environment says: variables that begin with CONSILIENCE_."""

from __future__ import annotations

from pathlib import Path

from platformdirs import user_cache_path
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Environment(BaseSettings):
    """Places on this machine and in its network.

    Attributes:
        data: The data directory.
        mirror: Where files are fetched from, as MIRROR/FILENAME, in place of the published addresses.
        kernels: Where compiled kernels are kept for later runs.
    """

    model_config = SettingsConfigDict(env_prefix="CONSILIENCE_", env_ignore_empty=True, frozen=True)

    data: Path = Field(default_factory=lambda: user_cache_path("consilience"))
    mirror: str | None = None
    kernels: Path = Field(default_factory=lambda: user_cache_path("consilience") / "kernels")
