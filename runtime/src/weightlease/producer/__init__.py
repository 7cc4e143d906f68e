"""Producers: from a source to the final layout, streamed into a store."""
