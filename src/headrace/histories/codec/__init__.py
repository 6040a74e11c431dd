"""Encode and decode histories: latency codes, addresses, the row blob.

Pure: arrays and bytes in and out.
"""
