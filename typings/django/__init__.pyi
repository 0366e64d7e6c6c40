# The part of Django that the example and its test use; the package itself has no types.
