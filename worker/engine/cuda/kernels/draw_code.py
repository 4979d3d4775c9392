"""What stands in the place of a drawn token id where no token could be drawn."""

NOT_A_NUMBER = -1  # the row's largest logit is not finite
NOTHING_ALLOWED = -2
