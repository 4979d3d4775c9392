"""This package holds scores and reranking: pairs of texts become jobs, and one number of each its
answer."""
