"""Many runs on Ray Tune."""
