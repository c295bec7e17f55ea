"""Many images, one call: an input list, workers on this machine or on a Ray cluster, one table of results."""
