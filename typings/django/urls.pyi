from collections.abc import Callable

from django.http import HttpResponse

class URLPattern: ...

def path(route: str, view: Callable[..., HttpResponse]) -> URLPattern: ...
