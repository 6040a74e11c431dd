"""The codec of histories: latency codes, addresses, and the row blob. Pure: arrays and bytes in, arrays and bytes out."""
