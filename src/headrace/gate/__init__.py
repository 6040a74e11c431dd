"""Read files that nobody vouches for: every file of a run, a cache or a source passes here.

    mapped.py   maps files, and tells one that was cut while it is in use
    arrow.py    Arrow files and streams, whose record batches are validated when first touched

What a file says about itself – lengths, offsets, counts, sizes once decompressed – may be wrong on
purpose. A digest does not help, as whoever changes a file can seal it again. Nothing outside this
package maps a file, or opens one of these formats; a test holds that.
"""
