"""`python -m weightlease.api.generate FOLDER`: write the CustomResourceDefinitions."""

from __future__ import annotations

import argparse
import os

from weightlease.api.crd import DEFINITIONS, render


def write(folder: str) -> None:
    """One file per definition, named after its plural; files of other definitions go."""
    os.makedirs(folder, exist_ok=True)
    files = {f"{definition.plural}.yaml": render(definition) for definition in DEFINITIONS}
    for name in os.listdir(folder):
        if name.endswith(".yaml") and name not in files:
            os.unlink(os.path.join(folder, name))
    for name, text in files.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", help="where the YAML files go")
    write(parser.parse_args().folder)


if __name__ == "__main__":
    main()
