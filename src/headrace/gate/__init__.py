"""Read files that nobody vouches for: every file of a run, a cache or a source passes here.

    mapped.py   maps files, and tells one that was cut while it is in use
    json.py     JSON files, bounded in size and depth
    parquet.py  Parquet files that describe a run, decoded under a budget
    pages.py    page headers of Parquet, which bound what their pages decode to
    compressed.py  gzip and ZIP, decompressed under a budget
    arrow.py    Arrow files and streams, whose record batches are validated when first touched

What a file says about itself – lengths, offsets, counts, sizes once decompressed – may be wrong on
purpose. A digest does not help, as whoever changes a file can seal it again. Nothing outside this
package maps a file, or opens one of these formats; a test holds that.
"""

# what to do about a file of a run that is damaged
RESTORE = "restore it or prepare the run again"
# What honest writers reach: a file, or a part of one, grows at most so many times when it is read.
MOST_GROWTH = 200
