"""The detokenizer: folds the token log into text on per-request reply subjects."""
