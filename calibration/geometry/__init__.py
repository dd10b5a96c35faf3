"""A decoder's shape -> parameters, bytes, floating-point operations and communication, whole or of one rank."""

from __future__ import annotations

from calibration.geometry.config import from_config
from calibration.geometry.rank import Rank
from calibration.geometry.shape import Experts, Geometry, Latent
from calibration.geometry.shipped import load_geometry

__all__ = ["Experts", "Geometry", "Latent", "Rank", "from_config", "load_geometry"]
