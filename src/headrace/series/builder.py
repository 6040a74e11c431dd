"""Build the settings of series step by step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.errors import SettingsError
from headrace.series.config import Series


class SeriesBuilder:
    """Build the settings of `Series` step by step; `build` checks them all.

        series = (
            headrace.SeriesBuilder("timeseries")
            .target("streamflow")
            .features("precipitation", "temperature")
            .scale("features", StandardScaler(), strategy="unified", fit_on_n_basins=100)
            .split(train=0.6, val=0.2, test=0.2)
            .build()
        )

    Every method returns the builder. A setting that is given again replaces the earlier one, but `scale` adds a
    pipeline to its role. `where` takes any setting of `Series` by name.
    """

    def __init__(self, *source: str | Path) -> None:
        self._settings: dict[str, Any] = {"source": source} if source else {}
        self._pipelines: dict[str, list[dict[str, Any]]] = {}

    def regions(self, time_series: dict[str, str | Path], static: dict[str, str | Path] | None = None) -> SeriesBuilder:
        """Read directories by region, instead of sources."""
        found = {"region_time_series_base_dirs": time_series, "region_static_attributes_base_dirs": static or {}}
        return self.where(**found)

    def entity(self, column: str) -> SeriesBuilder:
        """Name the entity column of long tables."""
        return self.where(entity=column)

    def time(self, column: str, *formats: str) -> SeriesBuilder:
        """Name the time column and its formats."""
        return self.where(time=column, **({"time_format": formats} if formats else {}))

    def frequency(self, word: str) -> SeriesBuilder:
        """Set the step of all series, e.g. "1d"."""
        return self.where(frequency=word)

    def target(self, column: str) -> SeriesBuilder:
        """Name the column to predict."""
        return self.where(target=column)

    def features(self, *columns: str) -> SeriesBuilder:
        """Name the forcing columns."""
        return self.where(features=columns)

    def static(self, *files: str | Path, entity: str, features: Sequence[str], missing: str = "error") -> SeriesBuilder:
        """Join columns of static files on the column `entity`; without files, those of the regions."""
        return self.where(
            **({"static": files} if files else {}),
            static_entity=entity,
            static_features=tuple(features),
            missing_static=missing,
        )

    def split(self, *, train: float, val: float, test: float) -> SeriesBuilder:
        """Set the shares of each entity's observed targets."""
        return self.where(train_ratio=train, val_ratio=val, test_ratio=test)

    def quality(self, *, min_train_years: float, max_imputation_gap_size: int) -> SeriesBuilder:
        """Set the years of data that an entity needs to train, and the longest gap that is filled."""
        return self.where(min_train_years=min_train_years, max_imputation_gap_size=max_imputation_gap_size)

    def scale(self, role: str, *pipeline: Any, strategy: str, **more: Any) -> SeriesBuilder:
        """Add a pipeline for "features", "target" or "static_features": steps as in `PipelineSettings`, or objects.

        more: columns, fit_on_n_basins.
        """
        if role not in (roles := ("features", "target", "static_features")):
            raise SettingsError(f"scale is given role {role!r}; give one of {', '.join(roles)}")
        steps = pipeline[0] if len(pipeline) == 1 else list(pipeline)
        self._pipelines.setdefault(role, []).append({"strategy": strategy, "pipeline": steps, **more})
        return self

    def where(self, **settings: Any) -> SeriesBuilder:
        """Set any settings of `Series` by name."""
        self._settings.update(settings)
        return self

    def build(self) -> Series:
        """Return the checked settings. Raises `SettingsError` if they cannot work."""
        settings = dict(self._settings)
        if self._pipelines:
            given = {role: each[0] if len(each) == 1 else each for role, each in self._pipelines.items()}
            settings["preprocessing_configs"] = {**settings.get("preprocessing_configs", {}), **given}
        return Series(**settings)
