"""Model bundles: a manifest, checks, loading. Importing this package loads no torch; loading a bundle does."""
