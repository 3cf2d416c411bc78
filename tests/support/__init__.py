"""What the tests on real nodes share."""
