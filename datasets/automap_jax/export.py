"""Lets `python -m automap_jax.export` run the command; in Python, automap_jax.export is the
function of that name, so nothing imports this file.
"""

from .command import main

if __name__ == "__main__":
    main()
