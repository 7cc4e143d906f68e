"""`python -m weightlease_node_agent`."""

from __future__ import annotations

import sys

from weightlease_node_agent.main import main

if __name__ == "__main__":
    sys.exit(main())
