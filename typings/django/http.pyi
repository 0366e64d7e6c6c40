from collections.abc import Mapping
from typing import Any

class HttpRequest:
    @property
    def body(self) -> bytes: ...

class HttpResponse:
    content: bytes
    status_code: int

    def __init__(
        self, content: bytes | str = b"", *, content_type: str | None = None, status: int = 200
    ) -> None: ...
    def json(self) -> Any: ...  # of the test client

class JsonResponse(HttpResponse):
    def __init__(self, data: Mapping[str, object], *, status: int = 200) -> None: ...
