"""``python -m codedla`` is the program ``codedla``."""

import sys

from codedla.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
