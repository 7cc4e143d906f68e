"""Runs one store operation in a process of its own, step by step.

    python store_child.py <module>:<callable> <argument> <operation> <fine-tune number>

Protocol on stdio, one word a line. `build` says "producing" when it holds the build and waits for a
line before it goes on; then "built", "joined", "hit" or "<status> <code>". `lease` says its status,
then holds the lease until it reads a line. `race` builds without stopping, `cleanup` cleans up.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from sample_producer import SampleProducer, fine_tune
from weightlease.reports import StoreResult
from weightlease.store.protocol import FileWriter, HostWeightStore


def open_store(maker: str, argument: str) -> HostWeightStore:
    module, _, name = maker.partition(":")
    made: Any = getattr(importlib.import_module(module), name)(argument)
    store: HostWeightStore = made
    return store


def say(text: str) -> None:
    print(text, flush=True)


def describe(result: StoreResult) -> str:
    return f"{result.status} {result.failure.code}" if result.failure else str(result.status)


class Stepping:
    """Announces the first file and waits."""

    def __init__(self) -> None:
        self.waited = False

    def __call__(self, writer: FileWriter) -> None:
        if not self.waited:
            self.waited = True
            say("producing")
            sys.stdin.readline()


def announce(writer: FileWriter) -> None:
    say("producing")


def main() -> None:
    maker, argument, operation, number = sys.argv[1:5]
    store, identity = open_store(maker, argument), fine_tune(int(number))
    if operation == "cleanup":
        say(str(store.cleanup(identity.key).status))
        return
    if operation == "build":
        result = store.get_or_build(SampleProducer(identity, during=Stepping()))
    elif operation == "race":
        result = store.get_or_build(SampleProducer(identity, assets={}, during=announce))
    else:
        result = store.lookup(identity)
    say(describe(result))
    if operation == "lease":
        sys.stdin.readline()
    if result.lease:
        result.lease.close()


if __name__ == "__main__":
    main()
