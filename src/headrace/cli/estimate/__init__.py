"""What a run will cost, by doing a small sample of it: `heads` of files, a `reduced` recipe, what it `measured`."""
