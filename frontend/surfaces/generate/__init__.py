"""This package holds SGLang's /generate: the body of a request and the events of its answer."""
