"""`python -m zrun.worker SCRIPT ARGS` or `… -m MODULE ARGS`: one rank, as torchrun starts it."""

import sys

from zrun.worker.bootstrap import main

if __name__ == "__main__":
    main(sys.argv[1:])
