"""Name the time formats. This module imports nothing, so that shell completion is fast."""

DATE_WORDS = (
    "iso",
    "yyyymmdd",
    "epoch_s",
    "epoch_ms",
    "epoch_us",
    "epoch_ns",
    "epoch_days",
    "excel_days",
)
