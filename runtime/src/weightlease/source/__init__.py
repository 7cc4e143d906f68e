"""Sources: immutable canonical checkpoints, listed, hashed and read file by file.

`model` says what a source is, `errors` how it fails; `folder` and `hub` are the two there are.
Pure decisions: `selection` (which files are payload, which assets), `shard_index` (which shards an
index names), `fingerprint` (the digest with which the selected files enter the identity).
"""
