"""A bookmark ring of version 1 of its format, as that version's code has written it.

Client "worker-1". Subscription "orders": publishers 1 to 160, of each a message whose sequence is
5 above the publisher's id, all discarded, acknowledged up to 100|105|; server "a:1". Subscription
"prices": 7|1|, discarded.
"""

from __future__ import annotations

import base64
import zlib
from typing import Final

__all__ = ["OLD_RING"]

_PACKED: Final = (
    "eNrt2UdvlAcURuFvYoipoddA6L2X0EKzKQaM6b0G8FADNuMASeiQ0HsHU0xdIiEWkVjBhp/AigUbJDYWfwEjfMRw"
    "JCQkWGDpHmn06htbenYj3/GUvPyiwjkzClJJVY2rXrOST3ry8O2h7OfXK0oGN3g19eWx4sqJj9tW1kq+sjpVr4rS"
    "EaN3lGQ2pTP9BiVRFEVRFEVRFEVRFH3zCu+W18lrlCQP9P6bnA/7Q/Xzj1WvnCSVVFQ/p7Lez15+P1ebk3XvZy9f"
    "INTV1q7eelqc+lqcBlqchlqcn7Q4jbQ4jbU4TbQ4TbU4zbQ4zbU4LbQ4LbU4rbQ4rbU4bbQ4bbU4P2tx2mlx2mtx"
    "ftHidNDidNTidNLidNbidNHidNXidNPidNfi9NDi9NTi9NLi9Nbi9NHi9NXi9NPi9NfiDNDiDNTiDNLiDNbiDNHi"
    "DNXi/KrFGabFGa7FGaHFGanFGaXF+U2LM1qLM0aLM1aLM06LM16Lk6fFydfiTNDiTNTiTNLiTNbiFGhxpmhxpmpx"
    "pmlxCrU407U4RVqcGVqcmVqcWVqc2VqcOVqcuVqceVqc+VqcBVqchVqcRVqcxVqcJVqcpVqcZVqc5VqcFVqclVqc"
    "37U4q7Q4q7U4a7Q4xVqctBZnrRZnnRZnvRZngzatv8c2yqFNcugPObRZDm2RQyVyqFQObZVDGTlUJof+lEPb5NB2"
    "ObRDDv0lh/6WQ//IoZ1yaJcc2i2H9sihvXJonxzaL4cOyKGDcuhfOfSfHDokhw7LoSNy6KgcOiaHjsuhE3LopBw6"
    "JYdOy6EzcuisHDonh87LoQty6KIcuiSHLsuhK3Loqhy6JofK5dB1OXRDDt2UQ7fkUIUcui2H7sihu3Lonhy6z+dV"
    "pjidKVs1qqb/wzr97OnM9/f//c/8PO7/uP/j/o/7P+7/uP/j/o/7P+7/uP/j/o/7P+7/uP/j/q/59//IRy/+H5t1"
    "t7tP7/zUx8//zIY16bIkiqIoiqIoiqIoiqIaUM/nq0vef6ef84X3P8+5+nkqvheIoiiKoiiKoiiKou+2d9OWJWk="
)

OLD_RING: Final = zlib.decompress(base64.b64decode(_PACKED))
