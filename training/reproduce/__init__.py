"""`wamdiff2 reproduce`: the paper's ablations at the size of the nano, with seeds and spread.

`recipes` says what is trained, `tables` what is compared, `runs` trains, `measure` measures, `render` writes.
"""

from typing import Literal

Scale = Literal["debug", "nano"]
