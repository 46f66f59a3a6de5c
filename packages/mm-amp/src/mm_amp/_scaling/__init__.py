"""Loss scaling, skipped steps and their causes."""
