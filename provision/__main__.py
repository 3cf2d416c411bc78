"""``python -m provision`` is ``provision``."""

from provision.cli.main import main

if __name__ == "__main__":
    main()
