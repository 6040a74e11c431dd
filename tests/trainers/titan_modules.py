"""The module for torchtitan over its real base class, or over stand-ins for those of its two registries."""

from __future__ import annotations

import importlib
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from types import ModuleType

import pytest

NAME = "headrace.trainers.torchtitan"


class Functions(ABC):
    """The base class of loaders before 0.3, as far as a loader meets it."""

    @abstractmethod
    def __iter__(self): ...


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


def module_over(base, patch: pytest.MonkeyPatch) -> ModuleType:
    """Import the module anew. base: a stand-in; None: that of the torchtitan installed here."""
    if base is not None:
        loaders = ModuleType("torchtitan.components.dataloader")
        loaders.BaseDataLoader = base
        tyro = ModuleType("tyro")
        tyro.conf = ModuleType("tyro.conf")
        tyro.conf.Suppress = object()
        stood_in = {"torchtitan": ModuleType("torchtitan"), "torchtitan.components": ModuleType("components")}
        for name, module in {**stood_in, "torchtitan.components.dataloader": loaders, "tyro": tyro}.items():
            patch.setitem(sys.modules, name, module)
    patch.delitem(sys.modules, NAME, raising=False)
    return importlib.import_module(NAME)
