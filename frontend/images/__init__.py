"""This package fetches the images and videos of a request and makes them into the pixels that the
model reads."""
