//! Model names to files: catalogue, downloads, cache.
