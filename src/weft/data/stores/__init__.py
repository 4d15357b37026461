"""Token stores: texts of any size as tokens on disk, read in windows."""
