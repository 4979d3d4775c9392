"""Tests of models that hear."""
