"""Training services behind an SDK: Tinker, MinT, SkyRL and Weaver."""
