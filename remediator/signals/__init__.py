"""Where facts come from. Each module folds what it hears into levels with a time."""
