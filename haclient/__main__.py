"""`python -m haclient` is the command `haclient`."""

from haclient.cli import main

if __name__ == "__main__":
    main()
