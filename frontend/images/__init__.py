"""This package fetches the images of a request and makes them into the pixels that the model
reads."""
