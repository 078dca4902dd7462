"""Where the agent's facts come from. Each source is one module or package of its own."""
