"""The layers that models are made of, and the seams behind which back ends compute them."""
