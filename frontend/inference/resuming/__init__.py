"""This package finds requests that some frontend accepted, and reads them again from any place
on."""
