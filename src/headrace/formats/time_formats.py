"""Names of the formats of times. This module imports nothing, so that a shell can offer them at once."""

DATE_WORDS = ("iso", "yyyymmdd", "epoch_s", "epoch_ms", "epoch_us", "epoch_ns", "epoch_days", "excel_days")
