"""What compiling did: graph breaks, recompilations, seconds, and whether it pays."""
