"""``python -m twinprobe``: the command."""

from twinprobe._cli import main

if __name__ == "__main__":
    raise SystemExit(main())
