"""The module for torchtitan over its real base class, or over stand-ins for those of 0.3 and after."""

from __future__ import annotations

import importlib
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from types import ModuleType

import pytest
import torch

NAME = "headrace.trainers.torchtitan"


class Configs(ABC):
    """The base class since 0.3: a nested config builds the class that it belongs to."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        dataset: str = ""
        dataset_path: str | None = None

        def build(self, **given):
            return self._owner(config=replace(self), **given)

    def __init_subclass__(cls, **more):
        super().__init_subclass__(**more)
        cls.Config._owner = cls

    @abstractmethod
    def __iter__(self): ...


Configs.Config._owner = None


class Microbatches(Configs):
    """The base class after 0.3, whose config names no data."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        max_num_documents: int | None = None

        def build(self, **given):
            return self._owner(config=replace(self), **given)


@dataclass(kw_only=True, slots=True)
class TokenizedTrainingMicrobatch:
    """A batch after 0.3."""

    input: torch.Tensor
    labels: torch.Tensor
    positions: torch.Tensor
    padding_mask: torch.Tensor
    num_valid_tokens: int


def module_over(base, patch: pytest.MonkeyPatch) -> ModuleType:
    """Import the module anew. base: a stand-in; None: that of the torchtitan installed here."""
    if base is not None:
        at = "data.loader" if base is Microbatches else "dataloader"
        modules = {
            name: ModuleType(name)
            for name in ("torchtitan", "torchtitan.components", "tyro", "tyro.conf")
        }
        modules["tyro"].conf = modules["tyro.conf"]
        modules["tyro.conf"].Suppress = object()
        loader = modules[f"torchtitan.components.{at}"] = ModuleType("loader")
        loader.BaseDataLoader = base
        if base is Microbatches:
            data = modules["torchtitan.components.data"] = ModuleType("data")
            data.types = modules["torchtitan.components.data.types"] = ModuleType("types")
            data.types.TokenizedTrainingMicrobatch = TokenizedTrainingMicrobatch
        for name, module in modules.items():
            patch.setitem(sys.modules, name, module)
    patch.delitem(sys.modules, NAME, raising=False)
    return importlib.import_module(NAME)
