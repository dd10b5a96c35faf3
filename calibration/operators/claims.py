"""What folders and tables say they are of, against what the command says: model, tensor-parallel size, GPU.

Names of folders (``tp2``, ``h100_sxm``), ``meta.yaml`` and a table's column ``device`` count. Where they say nothing
there is nothing to compare.
"""

from __future__ import annotations

import csv
import importlib.resources
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from calibration.devices import Device
from calibration.geometry import Geometry, Rank, load_geometry
from calibration.operators.table import Table
from simulator.errors import InputError

_RANKS = re.compile(r"tp(\d+)", re.IGNORECASE)
_NUM_FOLDERS = 3  # a folder and two above it, as in rtx_pro_6000/qwen3-32b/tp2


def meta(folder: Path) -> Mapping[str, Any] | None:
    """``meta.yaml`` there or one folder up; None where there is none. Raises InputError where it is no mapping."""
    for path in (folder / "meta.yaml", folder.resolve().parent / "meta.yaml"):
        if path.is_file():
            try:
                found = yaml.safe_load(path.read_text(encoding="utf-8"))
            except (yaml.YAMLError, UnicodeDecodeError):
                raise InputError(f"{path.name}: not YAML") from None
            if not isinstance(found, Mapping):
                raise InputError(f"{path.name}: expected keys gpu and vllm_version")
            return found
    return None


def check_folders(folders: Iterable[Path], model: str, rank: Rank, device: Device) -> None:
    """Raises InputError where a folder says that it is of another model, GPU or tensor-parallel size."""
    for folder in folders:
        stated = meta(folder) or {}
        if stated.get("model"):
            _check_model(f"{folder}: meta.yaml", str(stated["model"]), model, rank.geometry)
        if stated.get("gpu"):
            _check_gpu(f"{folder}: meta.yaml", str(stated["gpu"]), device)
        _check_system(folder, device)
        match, num_ranks = _RANKS.fullmatch(folder.resolve().name), rank.tensor_parallel_size
        if match and int(match[1]) != num_ranks:
            raise InputError(
                f"{folder}: tables of tensor-parallel size {int(match[1])}, but --tensor-parallel-size is {num_ranks}"
            )


def check_tables(tables: Iterable[Table], device: Device) -> None:
    """Raises InputError where a table has rows of another GPU."""
    for table in tables:
        for gpu in sorted({str(row["device"]) for row in table.rows if row.get("device")}):
            _check_gpu(table.file, gpu, device)


def _check_model(where: str, stated: str, model: str, geometry: Geometry) -> None:
    """One model has several names: a shape and number format in common make them one, as does all but the organisation.
    """
    if _short(stated) == _short(model):
        return
    try:
        other = load_geometry(stated)
    except InputError:  # not one that ships: only its name is known
        same = _short(stated) == _short(geometry.model)
    else:
        same = other.model_copy(update={"model": geometry.model, "source": geometry.source}) == geometry
    if not same:
        raise InputError(f"{where}: tables of {stated}, but --model is {model}")


def _short(model: str) -> str:
    return model.rpartition("/")[2].casefold()


def _check_gpu(where: str, gpu: str, device: Device) -> None:
    """A driver's name may be in no table of ours (another form factor): then a word with a digit, as H100, decides."""
    drivers = {row["name"]: row["device"] for row in _devices("names.csv")}
    of = drivers.get(gpu)
    same = of == device.name if of else bool(_numbered(gpu) & _numbered(device.name))
    if not same:
        raise InputError(f"{where}: tables of {gpu}, but --device is {device.name}")


def _numbered(name: str) -> set[str]:
    return {word for word in name.casefold().split() if any(map(str.isdigit, word))}


def _check_system(folder: Path, device: Device) -> None:
    """The innermost folder that has a GPU's name (as AIConfigurator's systems are called) tells whose tables it has."""
    systems = {row["source_file"].partition(".")[0]: row["device"] for row in _devices("devices.csv")}
    whole = folder.resolve()
    for path in (whole, *whole.parents)[:_NUM_FOLDERS]:
        of = systems.get(path.name.casefold())
        if of is not None:
            if of != device.name:
                raise InputError(f"{folder}: tables of {of}, but --device is {device.name}")
            return


def _devices(file: str) -> list[dict[str, str]]:
    path = importlib.resources.files("calibration") / "data" / "gpu_devices" / file
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
