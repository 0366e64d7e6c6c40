class LazySettings:
    def configure(self, default_settings: object = ..., **options: object) -> None: ...

settings: LazySettings
