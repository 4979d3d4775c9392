"""This package holds llama.cpp's /infill: what editors ask to fill the gap at a cursor."""
