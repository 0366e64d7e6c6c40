from collections.abc import Callable
from typing import ParamSpec

from django.http import HttpResponse

_P = ParamSpec("_P")

def require_GET(view: Callable[_P, HttpResponse]) -> Callable[_P, HttpResponse]: ...  # noqa: N802
def require_POST(view: Callable[_P, HttpResponse]) -> Callable[_P, HttpResponse]: ...  # noqa: N802
