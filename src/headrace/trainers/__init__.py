"""Adapters that let other libraries' trainers read headrace streams; each needs its library
installed.
"""
