"""Jobs from data to a result: each a `run(config) -> Result` that can be killed and goes on where it stopped."""
