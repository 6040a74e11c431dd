"""Near duplicates: documents whose sets of shingles are nearly equal. Pure.

A shingle is `WORDS` words, or `TOKENS` tokens, in a row; the likeness of two documents is the Jaccard index of their
sets of shingles, shared ÷ all. MinHash signatures propose pairs, the sets themselves decide:

    shingles    texts or tokens → hashed shingles of each document
    minhash     shingles → a few 32-bit numbers a document; near documents have one in common with a known probability
    candidates  numbers → pairs that have one in common, a bounded number a document
    likeness    pairs → their exact Jaccard index; pairs at the threshold → connected components

`headrace.run.near` does this out of core, as stages of a run.
"""

LEAST_NEAR = 0.5  # the least threshold: below it, bands of few rows make candidates of most documents

STAGES = {  # for each, what it does and what its tasks are
    "near_sign": ("sign documents", "parts"),
    "near_copies": ("find copies", "tasks"),
    "near_propose": ("propose near pairs", "bands"),
    "near_candidates": ("gather pairs", "tasks"),
    "near_shingles": ("keep shingles", "parts"),
    "near_compare": ("compare pairs", "parts"),
}
