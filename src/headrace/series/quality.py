"""What is told of every entity: `BasinQualityReport`, and the summary of all."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import numpy as np

from headrace.digest import sha256_hex
from headrace.series.arrays.axis import DAY_US, Frequency
from headrace.series.clean import Cleaned
from headrace.series.config import Series

_LONGEST_NAME = 150  # characters; file systems allow 255 bytes, with a suffix and a temporary prefix


def quality_report(
    settings: Series, frequency: Frequency, entity: str, source: str, cleaned: Cleaned
) -> dict[str, Any]:
    """The `BasinQualityReport` of one entity as JSON.

    Counts are of the steps that were kept; imputation_info has, for each column, gaps that were filled, that were left
    as too long, and that were left because a cut runs through them; values filled, made missing because no step can
    take them, and still missing; and the longest gap. targets.observed counts before anything is filled.
    """
    report: dict[str, Any] = {
        "entity": entity,
        "source": source,
        "passed_quality_check": cleaned.failure is None,
        "failure_reason": cleaned.failure,
        "frequency": frequency.word,
        "source_rows": dict(sorted(cleaned.rows.items())),
        "required_train_targets": cleaned.required_targets,
    }
    if cleaned.axis is None or cleaned.cut is None or cleaned.imputed is None or cleaned.first_last is None:
        return report
    times = cleaned.axis.times()
    imputed, parts = cleaned.imputed, cleaned.cut
    told = [_told(int(times[row])) for row in cleaned.first_last.ravel()]
    columns = settings.columns()
    return report | {
        "period": {"start": _told(int(times[0])), "end": _told(int(times[-1])), "steps": cleaned.axis.rows},
        "valid_period": {name: {"start": told[2 * n], "end": told[2 * n + 1]} for n, name in enumerate(columns)},
        "processing_steps": _steps(settings, frequency, cleaned),
        "added_rows": cleaned.added_rows,
        "trimmed_steps": {"start": cleaned.trimmed_steps[0], "end": cleaned.trimmed_steps[1]},
        "imputation_info": {
            name: {
                "short_gaps_count": int(imputed.filled_gaps[n]),
                "imputed_values_count": int(imputed.filled_values[n]),
                "long_gaps_count": int(imputed.left_gaps[n]),
                "cut_gaps_count": int(imputed.cut_gaps[n]),
                "unusable_values_count": int(imputed.unusable_values[n]),
                "missing_values_count": int(imputed.left_values[n]),
                "longest_gap": int(imputed.longest_gap[n]),
            }
            for n, name in enumerate(columns)
        },
        "targets": {
            "observed": parts.train_targets + parts.val_targets + parts.test_targets,
            "train": parts.train_targets,
            "val": parts.val_targets,
            "test": parts.test_targets,
        },
        "split_starts": {
            name: _told(int(times[row])) if row < len(times) else None
            for name, row in (("train", 0), ("val", parts.val_row), ("test", parts.test_row))
        },
    }


def _steps(settings: Series, frequency: Frequency, cleaned: Cleaned) -> list[str]:
    start, end = cleaned.trimmed_steps
    assert cleaned.imputed is not None
    filled = int(cleaned.imputed.filled_values.sum())
    steps = [f"placed on steps of {frequency.word}, {cleaned.added_rows} missing rows added"]
    steps += [
        f"dropped {cleaned.rows[word]} rows: {word}"
        for word in ("bad_time", "off_grid", "duplicate_time")
        if cleaned.rows[word]
    ]
    steps.append(f"trimmed {start} steps at the start and {end} at the end")
    steps.append(f"carried {filled} values into gaps of at most {settings.max_imputation_gap_size}")
    return steps


def _told(micros: int) -> str:
    moment = np.datetime64(micros, "us")
    if micros % DAY_US == 0:
        return str(moment.astype("datetime64[D]"))
    return str(moment.astype("datetime64[s]") if micros % 1_000_000 == 0 else moment)


def file_name(entity: str) -> str:
    """A file name for an entity, without extension: any text gives one, and different texts different ones.

    Letters, digits and "-_.~" stand as they are, other characters as %XX; a name never begins with "." or "_".
    """
    name = quote(entity, safe="")
    if name[:1] in ("", ".", "_"):
        name = f"%{ord(name[0]):02X}{name[1:]}" if name else "%"
    if len(name) > _LONGEST_NAME:
        name = f"{name[:_LONGEST_NAME]}%{sha256_hex(entity.encode())[:32]}"
    return name
