"""Model name or file -> geometry. Names are found as they are listed, never guessed."""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from calibration.geometry.config import from_config, geometry_of, weights_of
from calibration.geometry.number_format import number_format
from calibration.geometry.shape import Geometry
from simulator.errors import InputError, nearest
from simulator.profile import Strict, first_problem


class Shipped(Strict):
    """A model's config, cut to what shape and memory depend on.

    ``also`` are other published names of the same shape, each with the number format of its weights where that is
    another than the config states.
    """

    model: str
    source: str
    also: dict[str, str | None]
    config: dict[str, Any]

    def formats(self) -> Iterator[tuple[str, str | None]]:
        """Every name with its number format: as published, and without the organisation before the slash."""
        for name, word in {self.model: None, **self.also}.items():
            yield name, word
            yield name.rpartition("/")[2], word


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise InputError(f"{path}: cannot be read as a JSON text") from None


def load_geometry(
    model: str, path: Path | None = None, dtype: str = "bfloat16", kv_cache_dtype: str = "auto"
) -> Geometry:
    """The geometry in this file, or the shipped one of this model. Raises InputError naming file and key.

    The file is a geometry, or the model's own Hugging Face ``config.json``. A config's sizes hold for ``dtype``, a word
    of ``number_format``: a quantised word goes before the format that the model's name or config states, and that
    before another word (an engine reports ``bfloat16`` for a quantised model too).
    """
    if path is not None:
        content = _text(path)
        of_model = '"model_type"' in content
        return from_config(content, model, dtype, path.name, kv_cache_dtype) if of_model else _parse(content, path.name)
    written = importlib.resources.files("calibration") / "models" / model / "config.json"
    if "/" not in model and written.is_file():
        content = written.read_text(encoding="utf-8")
        return from_config(content, model, dtype, f"models/{model}/config.json", kv_cache_dtype)
    known = {name: (one, word) for one in shipped_models() for name, word in one.formats()}
    if model not in known:
        raise InputError(f"model: no shipped geometry of {model!r}{nearest(model, known)}; pass --geometry FILE")
    one, word = known[model]
    if word is None or number_format(dtype).is_quantised:
        weights = weights_of(one.config, dtype, one.model)
    else:
        weights = number_format(word)
    return geometry_of(one.config, one.model, one.source, weights, kv_cache_dtype, one.model)


def shipped_models() -> list[Shipped]:
    """All models that ship, by name."""
    folder = importlib.resources.files("calibration") / "data" / "models"
    models = []
    for entry in folder.iterdir():
        try:
            models.append(Shipped.model_validate_json(entry.read_text(encoding="utf-8")))
        except ValidationError as error:
            raise InputError(f"{entry.name}: {first_problem(error)}") from None
    return sorted(models, key=lambda one: one.model)


def _parse(content: str, file: str) -> Geometry:
    try:
        return Geometry.model_validate_json(content)
    except ValidationError as error:
        raise InputError(f"{file}: {first_problem(error)}") from None
