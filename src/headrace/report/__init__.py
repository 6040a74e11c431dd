"""Draw a run: facts from its files → figures with an answer in words → one page that opens
offline.
"""

REPORT = "report.html"  # file name in a run
