"""`python -m jetflock` is the `jetflock` command."""

from jetflock.cli import main

if __name__ == "__main__":
    main()
