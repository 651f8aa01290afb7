"""`python -m automap_hlo`: the program automap."""

import sys

from automap_hlo_program import main

sys.exit(main())
