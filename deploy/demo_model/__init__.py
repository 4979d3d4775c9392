"""A small chat model, trained here from nothing, for demonstrations and tests."""
