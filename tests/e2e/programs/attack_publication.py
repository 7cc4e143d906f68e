"""As root, publish what the Job may publish, keep every descriptor, then try to change it.

    attack_publication.py MODEL_ID SOURCE_FOLDER

Prints {"published": key} when the artifact is out, and {"attempts": {way: outcome}} when it has
tried everything with every descriptor of its own, of its threads and of its mount namespace.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import time

import weightlease
from weightlease.producer.snapshot import snapshot_folder


def reopen_everything() -> dict[str, str]:
    """Open each descriptor of this process for writing, and write where that works on a file."""
    outcome: dict[str, str] = {}
    for number in os.listdir("/proc/self/fd"):
        link = f"/proc/self/fd/{number}"
        try:
            target = os.readlink(link)
            if "weightlease" in target or target.endswith((".safetensors", ".json")):
                descriptor = os.open(link, os.O_RDWR)
                os.pwrite(descriptor, b"\xff" * 64, 4096)
                outcome[target] = "WROTE"
        except OSError as error:
            outcome[link] = errno.errorcode.get(error.errno or 0, str(error))
    return outcome


def main() -> None:
    model_id, folder = sys.argv[1:3]
    producer = snapshot_folder(folder, model_id=model_id)
    with weightlease.connect() as store:
        kept = []
        publication = store.begin(producer.identity, producer.total_bytes)
        metadata = producer.produce(publication)
        # every descriptor that exists while the artifact is still being made, and once more
        for number in os.listdir("/proc/self/fd"):
            try:
                kept.append(os.dup(int(number)))
            except OSError:
                continue
        finalized = publication.finalize(metadata)
        print(json.dumps({"published": finalized.key}), flush=True)
        outcome = reopen_everything()
        try:
            kept.append(os.open("/run/weightlease/planted", os.O_CREAT | os.O_RDWR))
            outcome["plant in the socket's folder"] = "WROTE"
        except OSError as error:
            outcome["plant in the socket's folder"] = errno.errorcode[error.errno or 0]
        print(json.dumps({"attempts": outcome}), flush=True)
        time.sleep(600)


main()
