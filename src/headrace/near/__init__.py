"""Find near duplicates: documents whose sets of shingles are nearly equal. Pure.

A shingle is `WORDS` consecutive words or `TOKENS` consecutive tokens. The similarity of two
documents is the Jaccard index of their sets of shingles, shared ÷ all. MinHash signatures propose
pairs, and the sets themselves decide:

    texts or tokens → hashed shingles of each document
    shingles        → a few 32-bit numbers per document; near documents share one with a known
                      probability
    numbers         → pairs that share one, a bounded number per document
    pairs           → their exact Jaccard index

`shingles` has these steps. `stages` does them out of core, as stages of a run.
"""

# the least threshold: below it, bands have few rows and make most documents candidates
LEAST_NEAR = 0.5

STAGES = {  # stage → its action and the unit of its tasks
    "near_sign": ("sign documents", "parts"),
    "near_copies": ("find copies", "tasks"),
    "near_propose": ("propose near pairs", "bands"),
    "near_candidates": ("gather pairs", "tasks"),
    "near_shingles": ("keep shingles", "parts"),
    "near_compare": ("compare pairs", "parts"),
}
