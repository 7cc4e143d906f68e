"""`python -m weightlease_csi_driver`."""

from __future__ import annotations

import sys

from weightlease_csi_driver.main import main

if __name__ == "__main__":
    sys.exit(main())
