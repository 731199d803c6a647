"""`python -m warmcold`: the command, where no script of that name is on the path."""

from .cli import main

main()
