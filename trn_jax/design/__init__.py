"""Design: sweeps over chips and the search for better ones by gradient."""
